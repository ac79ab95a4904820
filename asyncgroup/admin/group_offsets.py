"""Committed offsets of a group: read, alter and delete them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from asyncgroup.admin.arguments import INT32_MAX, check_number
from asyncgroup.checks import check_metadata, check_offset, check_partition, wrong_type
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.fan_out import run_together
from asyncgroup.cluster.requests.group_offsets import (
    commit_without_member,
    delete_group_offsets,
    fetch_offsets_of_groups,
)
from asyncgroup.cluster.requests.repeat import retry_errors
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import AsyncGroupError, ClosedError, UnsupportedVersionError
from asyncgroup.model import CommittedOffset
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.offsets.fetch_offsets import fetch_commits_once
from asyncgroup.topic_partition import TopicPartition

__all__ = [
    "GroupOffset",
    "alter_group_offsets",
    "checked_offsets",
    "delete_group_offsets",
    "list_group_offsets",
    "list_offsets_of_groups",
]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A committed offset of a group."""

    offset: int
    """The next offset to read."""
    metadata: str = ""
    """The metadata as it is stored: the user's text, or the envelope of a work queue with its ack window."""
    leader_epoch: int = -1
    """The leader epoch of the last record that was read; -1 if unknown."""


def checked_offsets(wanted: Any) -> dict[TopicPartition, GroupOffset]:
    """Return what is to be committed for each partition. Raises ConfigError for wrong values."""
    if not isinstance(wanted, Mapping):
        raise wrong_type("offsets", wanted, "a mapping from each partition to its offset")
    return {check_partition(tp): _checked_offset(each) for tp, each in wanted.items()}


def _checked_offset(given: Any) -> GroupOffset:
    if not isinstance(given, GroupOffset):
        return GroupOffset(check_offset(given))
    check_offset(given.offset)
    check_metadata(given.metadata)
    if given.leader_epoch != -1:
        check_number("leader_epoch", given.leader_epoch, INT32_MAX)
    return given


async def list_group_offsets(
    cluster: ClusterClient, group_id: str, retry: RetryLoop, *, require_stable: bool
) -> Results[TopicPartition, GroupOffset]:
    """Return all commits of the group, and the errors of single partitions. Raises the group's error.

    With `require_stable` a partition that an open transaction may still change has UNSTABLE_OFFSET_COMMIT.
    """
    found = await retry_errors(
        lambda: fetch_commits_once(cluster, group_id, None, lane=CONTROL, require_stable=require_stable),
        retry,
        what=f"OffsetFetch of group {group_id!r}",
    )
    values = {
        tp: GroupOffset(commit.committed.offset, commit.raw, commit.committed.leader_epoch)
        for tp, commit in sorted(found.found.items())
    }
    return Results(values, dict(found.problems))


async def list_offsets_of_groups(
    cluster: ClusterClient, group_ids: Iterable[str], budget: RequestBudget, *, require_stable: bool
) -> Results[str, Results[TopicPartition, GroupOffset]]:
    """Return the commits of each group as `list_group_offsets`, with one request to each coordinator (KIP-709).

    Brokers before Kafka 3.0 are asked for each group by itself. A silent coordinator delays the result by `NODE_TIMEOUT`.
    """

    async def alone(group_id: str) -> Results[str, Results[TopicPartition, GroupOffset]]:
        try:
            retry = budget.node_retry()
            found = await list_group_offsets(cluster, group_id, retry, require_stable=require_stable)
        except ClosedError:
            raise
        except AsyncGroupError as error:
            return Results.failed([group_id], error)
        return Results({group_id: found})

    wanted = list(dict.fromkeys(group_ids))
    fetched = await fetch_offsets_of_groups(
        cluster, wanted, require_stable=require_stable, retry=budget.node_retry()
    )
    found = Results({name: _listed(each) for name, each in fetched.values.items()}, fetched.errors)
    old = [name for name, error in found.errors.items() if isinstance(error, UnsupportedVersionError)]
    for part in await run_together([(f"offsets of group {name!r}", alone(name)) for name in old]):
        for name in part.values:
            del found.errors[name]
        found.values |= part.values
        found.errors |= part.errors
    return found.in_order(wanted)


def _listed(found: Results[TopicPartition, CommittedOffset]) -> Results[TopicPartition, GroupOffset]:
    values = {
        tp: GroupOffset(each.offset, each.metadata, each.leader_epoch) for tp, each in found.values.items()
    }
    return Results(values, found.errors)


async def alter_group_offsets(
    cluster: ClusterClient,
    group_id: str,
    offsets: Mapping[TopicPartition, GroupOffset],
    retry: RetryLoop,
) -> Results[TopicPartition, None]:
    """Commit offsets for a group without members; UNKNOWN_MEMBER_ID for all partitions if it has members."""
    wanted = {
        tp: CommittedOffset(each.offset, each.metadata, each.leader_epoch) for tp, each in offsets.items()
    }
    return await commit_without_member(cluster, group_id, wanted, retry)
