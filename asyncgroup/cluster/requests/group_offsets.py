"""Committed offsets of groups, at their coordinators: of several groups in one request each, and changes without a member."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.requests.actions import ErrorTable, RequestAction, action_of
from asyncgroup.cluster.requests.fan_out import request_apart
from asyncgroup.cluster.requests.offset_versions import GROUPS_VERSION, LAST_NAME_VERSION
from asyncgroup.cluster.requests.repeat import repeat
from asyncgroup.cluster.requests.results import Progress, Results
from asyncgroup.cluster.requests.routes import ByCoordinator, Target
from asyncgroup.cluster.requests.time_limit import within
from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError, ErrorCode, UnsupportedVersionError
from asyncgroup.model import CommittedOffset
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.topic_partition import TopicPartition, by_topic
from asyncgroup.wire import messages as m

__all__ = [
    "commit_without_member",
    "delete_group_offsets",
    "fetch_offsets_of_groups",
]

_CODES: Final[ErrorTable] = {
    # the partitions are those of the caller: a repetition would not make one
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: RequestAction.FAIL,
    # a rebalance has members, and a group with members is refused
    ErrorCode.REBALANCE_IN_PROGRESS: RequestAction.FAIL,
}


async def fetch_offsets_of_groups(
    cluster: ClusterClient, group_ids: Iterable[str], *, require_stable: bool, retry: RetryLoop | None = None
) -> Results[str, Results[TopicPartition, CommittedOffset]]:
    """Return the commits of each group and the errors of its partitions, with one request to each coordinator (KIP-709).

    A group whose coordinator is older than Kafka 3.0 has UnsupportedVersionError. Raises ClosedError.
    """

    async def ask(target: Target, asked: list[str]) -> Results[str, Results[TopicPartition, CommittedOffset]]:
        def build(version: int) -> m.OffsetFetchRequest:
            # one request for each group would be another call: the caller decides
            if version < GROUPS_VERSION:
                raise UnsupportedVersionError(f"{target} lists the offsets of one group only")
            groups = [m.OffsetFetchRequest.OffsetFetchRequestGroup(name, topics=None) for name in asked]
            return m.OffsetFetchRequest(groups=groups, require_stable=require_stable)

        # from version 10 on topics have ids, and the names of deleted ones would be lost
        response = await target.request(m.OffsetFetchRequest, build, highest=LAST_NAME_VERSION)
        results: Results[str, Results[TopicPartition, CommittedOffset]] = Results()
        for group in response.groups:
            what = f"committed offsets of group {group.group_id!r}"
            if group.error_code:
                results.errors[group.group_id] = BrokerError(group.error_code, what)
            else:
                results.values[group.group_id] = _committed(group, what)
        return results

    return await request_apart(group_ids, ByCoordinator(cluster), ask, api="OffsetFetch", retry=retry)


def _committed(
    group: m.OffsetFetchResponse.OffsetFetchResponseGroup, what: str
) -> Results[TopicPartition, CommittedOffset]:
    results: Results[TopicPartition, CommittedOffset] = Results()
    for topic in group.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                results.errors[tp] = BrokerError(part.error_code, f"{what}, partition {tp}")
            # -1: the group has no commit of it
            elif part.committed_offset >= 0:
                metadata = part.metadata or ""
                results.values[tp] = CommittedOffset(
                    part.committed_offset, metadata, part.committed_leader_epoch
                )
    return results


async def commit_without_member(
    cluster: ClusterClient,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    retry: RetryLoop,
) -> Results[TopicPartition, None]:
    """Commit offsets for a group without members; UNKNOWN_MEMBER_ID for all partitions if it has members."""

    async def attempt(asked: list[TopicPartition]) -> Results[TopicPartition, None]:
        # only those that are left: the others are committed
        request = _commit(group_id, {tp: offsets[tp] for tp in asked})
        response = await cluster.coordinators.request_versioned(
            group_id, m.OffsetCommitRequest, lambda _: request, lane=CONTROL, highest=LAST_NAME_VERSION
        )
        codes = {
            TopicPartition(topic.name, part.partition_index): part.error_code
            for topic in response.topics
            for part in topic.partitions
        }
        return _by_code(codes, f"committing an offset of group {group_id!r}")

    return await _repeated(cluster, group_id, offsets, attempt, retry, "OffsetCommit")


def _commit(group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> m.OffsetCommitRequest:
    """Return the request of no member: without a generation and a member id."""
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition
    topics = []
    for name, numbers in by_topic(offsets).items():
        topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name)
        for number in numbers:
            found = offsets[TopicPartition(name, number)]
            topic.partitions.append(
                part(
                    partition_index=number,
                    committed_offset=found.offset,
                    committed_leader_epoch=found.leader_epoch,
                    committed_metadata=found.metadata,
                )
            )
        topics.append(topic)
    return m.OffsetCommitRequest(
        group_id=group_id, generation_id_or_member_epoch=-1, member_id="", retention_time_ms=-1, topics=topics
    )


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
            # the same in all versions
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
            # a partition that the response lacks must not be repeated without end
            found = found.completed(left, f"the response to {api}")
        except ClosedError:
            raise
        except AsyncGroupError as error:
            found = Results.failed(left, error)
        # once for all of them: one coordinator has the group
        if any(action_of(error, _CODES) is RequestAction.LOOK_UP for error in found.errors.values()):
            cluster.coordinators.mark_unknown(group_id)
        return progress.apply(found)

    if progress.left:
        await repeat(attempt, lambda action: action, lambda _: retry)
    return progress.results()
