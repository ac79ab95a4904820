"""ListOffsets: offsets of partitions at their ends, at timestamps and at the borders of tiered storage; asked at the leaders."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.actions import ErrorTable, RequestAction
from asyncgroup.cluster.requests.fan_out import Ask, request_apart
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import ByLeader, Target
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, TransportError, UnsupportedVersionError
from asyncgroup.model import MillisClock
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.topic_partition import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "EARLIEST",
    "EARLIEST_LOCAL",
    "EARLIEST_PENDING_UPLOAD",
    "ISOLATION_LEVELS",
    "LATEST",
    "LATEST_TIERED",
    "LIST_OFFSETS",
    "MAX_TIMESTAMP",
    "Isolation",
    "ListedOffset",
    "ask_high_watermarks",
    "build_list_offsets",
    "is_retriable_error",
    "list_offsets_of_leaders",
    "may_be_listed_later",
    "millis_ago",
    "millis_of",
    "parse_list_offsets",
]

LATEST: Final = -1
"""Requests the log's end instead of a timestamp."""

EARLIEST: Final = -2
"""Requests the log's start instead of a timestamp."""

MAX_TIMESTAMP: Final = -3
"""Requests the record with the largest timestamp (KIP-734)."""

EARLIEST_LOCAL: Final = -4
"""Requests the first offset on the leader's disk (KIP-405): the log's start without tiered storage."""

LATEST_TIERED: Final = -5
"""Requests the last offset in tiered storage (KIP-1005)."""

EARLIEST_PENDING_UPLOAD: Final = -6
"""Requests the first offset that is not in tiered storage yet (KIP-1023)."""

_SINCE: Final[Mapping[int, tuple[int, str]]] = {
    MAX_TIMESTAMP: (7, "the offset of the largest timestamp (KIP-734)"),
    EARLIEST_LOCAL: (8, "the start of the local log (KIP-405)"),
    LATEST_TIERED: (9, "the last offset in tiered storage (KIP-1005)"),
    EARLIEST_PENDING_UPLOAD: (11, "the first offset that is not in tiered storage yet (KIP-1023)"),
}
"""The lowest version of ListOffsets with each of the later special timestamps, and what it asks for."""

Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
"""Whether records of open and aborted transactions count (KIP-98)."""

ISOLATION_LEVELS: Final[Mapping[str, int]] = {"read_uncommitted": 0, "read_committed": 1}
"""Kafka's numbers for the isolation levels (KIP-98)."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def millis_of(when: datetime) -> int:
    """Return an aware datetime in ms since 1970, rounded up: a record of the millisecond that has begun may be older. 0 before 1970."""
    return max(0, -((_EPOCH - when) // _MILLISECOND))


def millis_ago(duration: timedelta, clock: MillisClock) -> int:
    """Return the time a duration before now in ms since 1970; 0 before 1970."""
    return max(0, clock() - duration // _MILLISECOND)


class ListedOffset(NamedTuple):
    """The result for one partition."""

    offset: int
    """-1 if there is no such record."""
    timestamp: int
    """In ms since 1970; -1 for none."""
    leader_epoch: int
    """-1 if unknown."""


# --- errors -----------------------------------------------------------------------------------------------------------


def is_retriable_error(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    return isinstance(error, TransportError) or bool(getattr(error, "retriable", False))


_REFUSALS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)
"""Codes of ListOffsets that a repetition does not change."""


def may_be_listed_later(error: BaseException) -> bool:
    """Return whether a partition's offset may be known later: all codes but those of a request that stays wrong are repeated.

    As in Java, for that partition alone (`OffsetFetcherUtils.handleListOffsetResponse`): a broker that fails unexpectedly
    at one partition (UNKNOWN_SERVER_ERROR) must not end the reading of the others.
    """
    return is_retriable_error(error) or (isinstance(error, BrokerError) and error.code not in _REFUSALS)


LIST_OFFSETS: Final[ErrorTable] = {
    code: RequestAction.LOOK_UP if may_be_listed_later(BrokerError(code, "")) else RequestAction.FAIL
    for code in ErrorCode
    if code
}
"""The codes of ListOffsets, by partition."""


# --- request and response ---------------------------------------------------------------------------------------------


def build_list_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation: Isolation
) -> m.ListOffsetsRequest:
    """Return the request for these timestamps, with the leader epochs that the cluster knows now."""
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


def parse_list_offsets(response: m.ListOffsetsResponse) -> Results[TopicPartition, ListedOffset]:
    """Return the offset or the error of each partition in a response."""
    results: Results[TopicPartition, ListedOffset] = Results()
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                results.errors[tp] = BrokerError(part.error_code, f"offset of {tp}")
            else:
                results.values[tp] = ListedOffset(part.offset, part.timestamp, part.leader_epoch)
    return results


async def list_offsets_of_leaders(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    isolation: Isolation = "read_uncommitted",
    *,
    retry: RetryLoop | None = None,
) -> Results[TopicPartition, ListedOffset]:
    """Look up each partition at a timestamp in ms, or at one of the special ones above; one request per leader.

    Each leader's partitions are repeated by themselves, so that a leader that does not answer delays no other. A leader that does not
    know a special timestamp yet has UnsupportedVersionError for these partitions alone. The caller tracks the topics. Raises
    ClosedError.
    """

    async def ask(target: Target, asked: list[TopicPartition]) -> Results[TopicPartition, ListedOffset]:
        # before the request waits for a connection: the epochs come from the metadata that named the leader
        request = build_list_offsets(cluster, {tp: wanted[tp] for tp in asked}, isolation)
        unsupported: dict[TopicPartition, AsyncGroupError] = {}

        def build(version: int) -> m.ListOffsetsRequest:
            unsupported.update(_unsupported(target, {tp: wanted[tp] for tp in asked}, version))
            # no partition has a timestamp that this broker supports: no request is sent
            if len(unsupported) == len(asked):
                raise next(iter(unsupported.values()))
            for topic in request.topics:
                parts = topic.partitions
                topic.partitions = [
                    part
                    for part in parts
                    if TopicPartition(topic.name, part.partition_index) not in unsupported
                ]
            return request

        try:
            results = parse_list_offsets(await target.request(m.ListOffsetsRequest, build))
        except UnsupportedVersionError:
            if not unsupported:
                raise  # the node does not know the request at all
            results = Results()
        results.errors |= unsupported
        return results

    route = ByLeader(cluster, "offset of")
    return await request_apart(wanted, route, ask, api="ListOffsets", retry=retry, table=LIST_OFFSETS)


def ask_high_watermarks(cluster: ClusterClient) -> Ask[TopicPartition, int]:
    """Return a function that asks one leader for the high watermarks of its partitions, for a request that needs them."""

    async def ask(target: Target, asked: list[TopicPartition]) -> Results[TopicPartition, int]:
        # with this isolation level the end of the log is the high watermark
        request = build_list_offsets(cluster, dict.fromkeys(asked, LATEST), "read_uncommitted")
        found = parse_list_offsets(await target.request(m.ListOffsetsRequest, lambda _: request))
        return Results({tp: each.offset for tp, each in found.values.items()}, found.errors)

    return ask


def _unsupported(
    target: Target, asked: Mapping[TopicPartition, int], version: int
) -> dict[TopicPartition, AsyncGroupError]:
    """Return an error for each partition whose special timestamp this version does not have."""
    errors: dict[TopicPartition, AsyncGroupError] = {}
    for tp, timestamp in asked.items():
        lowest, what = _SINCE.get(timestamp, (0, ""))
        # what is not in the table, times included, is supported by every version
        if version < lowest:
            text = f"offset of {tp}: {target} does not list {what}: ListOffsets {lowest} is needed, it has {version}"
            errors[tp] = UnsupportedVersionError(text)
    return errors
