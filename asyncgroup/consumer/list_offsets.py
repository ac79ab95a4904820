"""Look up offsets by name or time: one ListOffsets request per leader, for any number of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, TransportError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "EARLIEST",
    "ISOLATION_LEVELS",
    "LATEST",
    "Isolation",
    "ListOffsetsResult",
    "ListedOffset",
    "is_retriable_error",
    "list_offsets",
    "list_offsets_once",
]

LATEST: Final = -1
"""Requests the log's end instead of a timestamp."""

EARLIEST: Final = -2
"""Requests the log's start instead of a timestamp."""

Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
"""Whether records of open and aborted transactions count (KIP-98)."""

ISOLATION_LEVELS: Final[Mapping[str, int]] = {"read_uncommitted": 0, "read_committed": 1}
"""Kafka's numbers for the isolation levels (KIP-98)."""


class ListedOffset(NamedTuple):
    """The result for one partition."""

    offset: int
    """-1 if there is no such record."""
    timestamp: int
    """In ms since 1970; -1 for none."""
    leader_epoch: int
    """-1 if unknown."""


class ListOffsetsResult(NamedTuple):
    """For each requested partition either its offset or its error."""

    listed: dict[TopicPartition, ListedOffset]
    problems: dict[TopicPartition, AsyncGroupError]

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The offsets without timestamps and epochs."""
        return {tp: listed.offset for tp, listed in self.listed.items()}


def is_retriable_error(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    return isinstance(error, TransportError) or bool(getattr(error, "retriable", False))


async def list_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation: Isolation = "read_uncommitted"
) -> dict[TopicPartition, int]:
    """Return each partition's offset at `EARLIEST`, `LATEST` or a timestamp (ms).

    A timestamp after the last record gives the log's end (Java's `offsetsForTimes` returns nothing then, and its callers
    request the end themselves). With `read_committed` the end is the last stable offset. Leader moves and other retriable
    errors are retried `metadata_retry_max` times. Raises BrokerError, TransportError.
    """
    found: dict[TopicPartition, int] = {}
    backoff = cluster.backoff()
    left = dict(wanted)
    while left:
        for tp in left:
            if cluster.view.leader(tp) < 0:
                await cluster.leader(tp)
        answer = await list_offsets_once(cluster, left, isolation)
        found |= answer.offsets
        left = {tp: spec for tp, spec in left.items() if tp not in found}
        if not left:
            break
        # raise an error that is not retriable first: it says more
        problem = min(answer.problems.values(), key=is_retriable_error)
        if is_retriable_error(problem) and backoff.failures < cluster.config.metadata_retry_max:
            await asyncio.sleep(backoff.next())
            await cluster.refresh()
        else:
            raise problem
    return found


async def list_offsets_once(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    isolation: Isolation = "read_uncommitted",
    *,
    or_end: bool = True,
) -> ListOffsetsResult:
    """As `list_offsets`, without retries: send one request to every known leader, all concurrently.

    Without `or_end` a timestamp after the last record gives -1, as in the protocol.
    """
    found = await _round(cluster, wanted, isolation)
    if not or_end:
        return found
    if ends := {tp: LATEST for tp, offset in found.offsets.items() if offset < 0 <= wanted[tp]}:
        for tp in ends:
            del found.listed[tp]
        listed, problems = await _round(cluster, ends, isolation)
        found = ListOffsetsResult(found.listed | listed, found.problems | problems)
    return found


async def _round(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation: Isolation
) -> ListOffsetsResult:
    found = ListOffsetsResult({}, {})
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, spec in wanted.items():
        by_leader.setdefault(cluster.view.leader(tp), {})[tp] = spec
    for tp in by_leader.pop(-1, ()):
        found.problems[tp] = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"offset of {tp}")
    requests = {node_id: _request(cluster, part, isolation) for node_id, part in by_leader.items()}
    await asyncio.gather(*(_ask(cluster, node_id, requests[node_id], found) for node_id in by_leader))
    for tp in wanted:
        if tp not in found.listed and tp not in found.problems:
            found.problems[tp] = BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"offset of {tp}", "the response does not contain it"
            )
    return found


async def _ask(
    cluster: ClusterClient, node_id: int, request: m.ListOffsetsRequest, found: ListOffsetsResult
) -> None:
    """Send a request to one leader and add the results of its partitions to `found`."""
    asked = {
        TopicPartition(topic.name, p.partition_index) for topic in request.topics for p in topic.partitions
    }
    try:
        response = await cluster.request(node_id, request)
    except AsyncGroupError as error:
        found.problems.update(dict.fromkeys(asked, error))
        return
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if tp not in asked:
                continue
            if part.error_code:
                found.problems[tp] = BrokerError(part.error_code, f"offset of {tp}")
            else:
                found.listed[tp] = ListedOffset(part.offset, part.timestamp, part.leader_epoch)


def _request(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation: Isolation
) -> m.ListOffsetsRequest:
    topics: dict[str, m.ListOffsetsRequest.ListOffsetsTopic] = {}
    for tp, timestamp in wanted.items():
        if tp.topic not in topics:
            topics[tp.topic] = m.ListOffsetsRequest.ListOffsetsTopic(name=tp.topic)
        info = cluster.view.partition(*tp)
        epoch = info.leader_epoch if info is not None else -1
        entry = m.ListOffsetsRequest.ListOffsetsPartition(
            partition_index=tp.partition, current_leader_epoch=epoch, timestamp=timestamp
        )
        topics[tp.topic].partitions.append(entry)
    return m.ListOffsetsRequest(
        replica_id=-1, isolation_level=ISOLATION_LEVELS[isolation], topics=list(topics.values())
    )
