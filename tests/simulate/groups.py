"""The group as a coordinator has it, with the classic or the consumer protocol: its state, and whose commits it accepts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

from asyncgroup import TopicPartition
from asyncgroup.broker.groups import offsets
from asyncgroup.broker.groups.classic import classic_checks
from asyncgroup.broker.groups.consumer import consumer_checks
from asyncgroup.broker.groups.consumer.consumer_group_member import TopicIdPartition
from asyncgroup.broker.groups.consumer.consumer_groups import ConsumerGroups
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.coordinator import GroupCoordinator
from asyncgroup.broker.groups.shared.requests import RequestMember
from asyncgroup.error_codes import ErrorCode
from tests.simulate.oracle import ClaimLog

__all__ = ["accepts", "owner_of", "owners_of", "state_of", "strict_epochs", "targets_of"]

COMMIT_VERSION: Final = 10
"""A version of OffsetCommit that members of the consumer protocol send."""

NOWHERE: Final = TopicIdPartition(UUID(int=0), -1)
"""A partition that no member has."""


def state_of(coordinator: GroupCoordinator, group_id: str) -> tuple[str, int]:
    """Return the state of a group, and its generation or epoch."""
    modern, classic = coordinator.consumer_groups.get(group_id), coordinator.groups.get(group_id)
    if modern is not None:
        return str(modern.state), modern.epoch
    return ("Dead", -1) if classic is None else (str(classic.state), classic.generation_id)


def owners_of(groups: ConsumerGroups, group_id: str) -> dict[TopicPartition, str]:
    """Return the member of a consumer group that each partition belongs to, also one that is asked to revoke it."""
    group = groups.get(group_id)
    named = () if group is None else ((_named(groups, tp), owner) for tp, owner in group.owners.items())
    return {tp: owner for tp, owner in named if tp is not None}


def owner_of(groups: ConsumerGroups, group_id: str, tp: TopicPartition) -> str | None:
    """Return the member of a consumer group that a partition belongs to, or None."""
    group, tid = groups.get(group_id), _identified(groups, tp)
    return None if group is None or tid is None else group.owners.get(tid)


def _named(groups: ConsumerGroups, partition: TopicIdPartition) -> TopicPartition | None:
    name = groups.topics.name_of(partition.topic_id)
    return None if name is None else TopicPartition(name, partition.partition)


def _identified(groups: ConsumerGroups, tp: TopicPartition) -> TopicIdPartition | None:
    facts = groups.topics.find(tp.topic)
    return None if facts is None else TopicIdPartition(facts.id, tp.partition)


@contextmanager
def strict_epochs() -> Iterator[None]:
    """Let coordinators accept only commits with the member's present epoch during the block (Kafka 4.0 to 4.2)."""
    check = consumer_checks.check_commit

    def strict(group: ModernGroup, sender: RequestMember, **how: Any) -> ErrorCode:
        member = group.members.get(sender.id)
        if member is not None and sender.generation_id < member.epoch:
            how["partitions"] = [NOWHERE]
        return check(group, sender, **how)

    with (
        patch.object(consumer_checks, "check_commit", strict),
        patch.object(offsets, "check_member_commit", strict),
    ):
        yield


def targets_of(group: ModernGroup) -> Iterator[tuple[TopicIdPartition, str]]:
    """Yield each partition of the target assignment with its member."""
    for member_id, target in group.targets.items():
        for partition in target:
            yield partition, member_id


def accepts(coordinator: GroupCoordinator, group_id: str, claim: ClaimLog) -> bool:
    """Return whether the coordinator would accept a commit of a claim's member and generation or epoch."""
    groups, classic = coordinator.consumer_groups, coordinator.groups.get(group_id)
    sender = RequestMember(claim.member_id, claim.generation, claim.instance_id)
    if (modern := groups.get(group_id)) is not None:
        partition = _identified(groups, claim.tp)
        return not consumer_checks.check_commit(
            modern,
            sender,
            partitions=[] if partition is None else [partition],
            version=COMMIT_VERSION,
            transactional=False,
        )
    return classic is not None and not classic_checks.check_commit(classic, sender)
