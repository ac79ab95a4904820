"""The group as a coordinator has it, with the classic or the consumer protocol: its state, and whose commits it accepts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

from asyncgroup import TopicPartition
from asyncgroup.broker.groups import offsets
from asyncgroup.broker.groups.classic import classic_checks
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup
from asyncgroup.broker.groups.consumer import consumer_checks
from asyncgroup.broker.groups.consumer.consumer_group_member import TopicIdPartition
from asyncgroup.broker.groups.consumer.consumer_groups import ConsumerGroups
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.coordinator import GroupCoordinator
from asyncgroup.broker.groups.shared.requests import RequestMember
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned
from tests.simulate.oracle import ClaimLog, CommitRules

__all__ = ["owner_of", "owners_of", "rules_of", "state_of", "strict_epochs", "targets_of"]

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


def owners_of(group: ClassicGroup) -> dict[TopicPartition, str]:
    """Return the member of a classic group that has each partition in its assignment."""
    return {
        tp: member.member_id for member in group.members.values() for tp in partitions_of(member.assignment)
    }


@lru_cache(1 << 12)
def partitions_of(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions in the assignment of a member of a classic group."""
    if not assignment:
        return ()
    topics = decode_versioned(m.ConsumerProtocolAssignment, assignment).assigned_partitions
    return tuple(TopicPartition(one.topic, partition) for one in topics for partition in one.partitions)


def owner_of(groups: ConsumerGroups, group_id: str, tp: TopicPartition) -> str | None:
    """Return the member of a consumer group that a partition belongs to, or None."""
    group, tid = groups.get(group_id), _identified(groups, tp)
    return None if group is None or tid is None else group.owners.get(tid)


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


class ClassicRules:
    """Whose commits the coordinator of a classic group would accept now: one decision for each member and generation."""

    def __init__(self, group: ClassicGroup) -> None:
        self._group = group
        self._verdicts: dict[RequestMember, bool] = {}

    def accepts(self, claim: ClaimLog) -> bool:
        """Return whether it would accept a commit of a claim's member and generation."""
        sender = _sender(claim)
        verdict = self._verdicts.get(sender)
        if verdict is None:
            verdict = self._verdicts[sender] = not classic_checks.check_commit(self._group, sender)
        return verdict

    def is_owner(self, _claim: ClaimLog) -> bool:
        """Return true: only the members know who owns what."""
        return True


class ConsumerRules:
    """Whose commits the coordinator of a consumer group would accept now."""

    def __init__(self, groups: ConsumerGroups, group: ModernGroup) -> None:
        self._groups = groups
        self._group = group
        self._topic_ids: dict[str, UUID | None] = {}

    def accepts(self, claim: ClaimLog) -> bool:
        """Return whether it would accept a commit of a claim's member, epoch and partition."""
        partition = self._identified(claim.tp)
        return not consumer_checks.check_commit(
            self._group,
            _sender(claim),
            partitions=[] if partition is None else [partition],
            version=COMMIT_VERSION,
            transactional=False,
        )

    def is_owner(self, claim: ClaimLog) -> bool:
        """Return whether the claim's partition belongs to its member."""
        partition = self._identified(claim.tp)
        return partition is not None and self._group.owners.get(partition) == claim.member_id

    def _identified(self, tp: TopicPartition) -> TopicIdPartition | None:
        if tp.topic not in self._topic_ids:
            facts = self._groups.topics.find(tp.topic)
            self._topic_ids[tp.topic] = None if facts is None else facts.id
        topic_id = self._topic_ids[tp.topic]
        return None if topic_id is None else TopicIdPartition(topic_id, tp.partition)


def _sender(claim: ClaimLog) -> RequestMember:
    return RequestMember(claim.member_id, claim.generation, claim.instance_id)


def rules_of(coordinator: GroupCoordinator, group_id: str) -> CommitRules | None:
    """Return what a coordinator would decide now about commits of a group; None if it has no such group."""
    modern, classic = coordinator.consumer_groups.get(group_id), coordinator.groups.get(group_id)
    if modern is not None:
        return ConsumerRules(coordinator.consumer_groups, modern)
    return None if classic is None else ClassicRules(classic)
