"""Committed offsets of a group: read, alter and delete them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from asyncgroup.admin.arguments import INT32_MAX, check_number
from asyncgroup.checks import check_metadata, check_offset, check_partition, wrong_type
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.requests.actions import ErrorTable, RequestAction, action_of
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.fan_out import request_apart, run_together
from asyncgroup.cluster.requests.repeat import repeat, retry_errors
from asyncgroup.cluster.requests.results import Progress, Results
from asyncgroup.cluster.requests.routes import ByCoordinator, Target
from asyncgroup.cluster.requests.time_limit import within
from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError, ErrorCode, UnsupportedVersionError
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.offsets.commit_requests import LAST_NAME_VERSION, build_commit
from asyncgroup.offsets.fetch_offsets import GROUPS_VERSION, fetch_commits_once
from asyncgroup.offsets.partition_offsets import CommittedOffset, MemberIdentity
from asyncgroup.topic_partition import TopicPartition, by_topic
from asyncgroup.wire import messages as m

__all__ = [
    "GroupOffset",
    "alter_group_offsets",
    "checked_offsets",
    "delete_group_offsets",
    "list_group_offsets",
    "list_offsets_of_groups",
]

_NO_MEMBER: Final = MemberIdentity()

_CODES: Final[ErrorTable] = {
    # the partitions are those of the caller: a repetition would not make one
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: RequestAction.FAIL,
    # a rebalance has members, and a group with members is refused
    ErrorCode.REBALANCE_IN_PROGRESS: RequestAction.FAIL,
}


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

    Brokers before Kafka 3.0 are asked for each group by itself. A silent coordinator costs the other groups `NODE_TIMEOUT`.
    """

    async def ask(target: Target, asked: list[str]) -> Results[str, Results[TopicPartition, GroupOffset]]:
        def build(version: int) -> m.OffsetFetchRequest:
            if version < GROUPS_VERSION:
                raise UnsupportedVersionError(f"{target} lists the offsets of one group only")
            groups = [m.OffsetFetchRequest.OffsetFetchRequestGroup(name, topics=None) for name in asked]
            return m.OffsetFetchRequest(groups=groups, require_stable=require_stable)

        response = await target.request(m.OffsetFetchRequest, build, highest=LAST_NAME_VERSION)
        results: Results[str, Results[TopicPartition, GroupOffset]] = Results()
        for group in response.groups:
            what = f"committed offsets of group {group.group_id!r}"
            if group.error_code:
                results.errors[group.group_id] = BrokerError(group.error_code, what)
            else:
                results.values[group.group_id] = _committed(group, what)
        return results

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
    route = ByCoordinator(cluster)
    found = await request_apart(wanted, route, ask, api="OffsetFetch", retry=budget.node_retry())
    old = [name for name, error in found.errors.items() if isinstance(error, UnsupportedVersionError)]
    for part in await run_together([(f"offsets of group {name!r}", alone(name)) for name in old]):
        for name in part.values:
            del found.errors[name]
        found.values |= part.values
        found.errors |= part.errors
    return found.in_order(wanted)


def _committed(
    group: m.OffsetFetchResponse.OffsetFetchResponseGroup, what: str
) -> Results[TopicPartition, GroupOffset]:
    results: Results[TopicPartition, GroupOffset] = Results()
    for topic in group.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                results.errors[tp] = BrokerError(part.error_code, f"{what}, partition {tp}")
            elif part.committed_offset >= 0:
                metadata = part.metadata or ""
                results.values[tp] = GroupOffset(part.committed_offset, metadata, part.committed_leader_epoch)
    return results


async def alter_group_offsets(
    cluster: ClusterClient,
    group_id: str,
    offsets: Mapping[TopicPartition, GroupOffset],
    retry: RetryLoop,
) -> Results[TopicPartition, None]:
    """Commit offsets for a group without members; UNKNOWN_MEMBER_ID for all partitions if it has members."""

    async def attempt(asked: list[TopicPartition]) -> Results[TopicPartition, None]:
        wanted = {
            tp: CommittedOffset(offsets[tp].offset, offsets[tp].metadata, offsets[tp].leader_epoch)
            for tp in asked
        }
        no_ids = dict.fromkeys(asked, m.NO_UUID)
        response = await cluster.coordinators.request_versioned(
            group_id,
            m.OffsetCommitRequest,
            lambda version: build_commit(version, group_id, _NO_MEMBER, wanted, no_ids),
            lane=CONTROL,
            highest=LAST_NAME_VERSION,
        )
        codes = {
            TopicPartition(topic.name, part.partition_index): part.error_code
            for topic in response.topics
            for part in topic.partitions
        }
        return _by_code(codes, f"committing an offset of group {group_id!r}")

    return await _repeated(cluster, group_id, offsets, attempt, retry, "OffsetCommit")


async def delete_group_offsets(
    cluster: ClusterClient, group_id: str, partitions: Iterable[TopicPartition], retry: RetryLoop
) -> Results[TopicPartition, None]:
    """Delete committed offsets (OffsetDelete, KIP-496); GROUP_SUBSCRIBED_TO_TOPIC for topics that members subscribe to."""

    async def attempt(asked: list[TopicPartition]) -> Results[TopicPartition, None]:
        part = m.OffsetDeleteRequest.OffsetDeleteRequestPartition
        topics = [
            m.OffsetDeleteRequest.OffsetDeleteRequestTopic(name, [part(number) for number in numbers])
            for name, numbers in by_topic(asked).items()
        ]
        response = await cluster.coordinators.request_versioned(
            group_id,
            m.OffsetDeleteRequest,
            lambda _: m.OffsetDeleteRequest(group_id=group_id, topics=topics),
            lane=CONTROL,
        )
        what = f"deleting an offset of group {group_id!r}"
        if response.error_code:
            return Results.failed(asked, BrokerError(response.error_code, what))
        codes = {
            TopicPartition(topic.name, each.partition_index): each.error_code
            for topic in response.topics
            for each in topic.partitions
        }
        return _by_code(codes, what)

    return await _repeated(cluster, group_id, partitions, attempt, retry, "OffsetDelete")


def _by_code(codes: Mapping[TopicPartition, int], what: str) -> Results[TopicPartition, None]:
    results: Results[TopicPartition, None] = Results()
    for tp, code in codes.items():
        if code:
            results.errors[tp] = BrokerError(code, f"{what}, partition {tp}")
        else:
            results.values[tp] = None
    return results


Attempt: TypeAlias = Callable[[list[TopicPartition]], Awaitable[Results[TopicPartition, None]]]
"""Sends one request for these partitions; an error that it raises is that of all of them."""


async def _repeated(
    cluster: ClusterClient,
    group_id: str,
    partitions: Iterable[TopicPartition],
    ask: Attempt,
    retry: RetryLoop,
    api: str,
) -> Results[TopicPartition, None]:
    """Ask the coordinator until each partition has its result, for those that are left; a moved coordinator is looked up."""
    progress: Progress[TopicPartition, None] = Progress(partitions, _CODES)

    async def attempt() -> RequestAction:
        left = progress.left
        try:
            before = progress.last_error(left)
            found = await within(retry.cut_at, ask(left), before, f"{api} of group {group_id!r}")
            found = found.completed(left, f"the response to {api}")
        except ClosedError:
            raise
        except AsyncGroupError as error:
            found = Results.failed(left, error)
        if any(action_of(error, _CODES) is RequestAction.LOOK_UP for error in found.errors.values()):
            cluster.coordinators.mark_unknown(group_id)
        return progress.apply(found)

    if progress.left:
        await repeat(attempt, lambda action: action, lambda _: retry)
    return progress.results()
