"""Offsets by name or time: the start offsets that a user may give, and their lookup with ListOffsets.

One request per leader for any number of partitions. The names are those of `auto.offset.reset`: `earliest`, `latest`, and
by duration (KIP-1106).
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from asyncgroup.checks import check_offset
from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ConfigError,
    ErrorCode,
    OffsetLookupError,
    OffsetOutOfRangeError,
    TransportError,
)
from asyncgroup.model import MillisClock, TopicPartition, wall_clock
from asyncgroup.wire import messages as m

__all__ = [
    "EARLIEST",
    "ISOLATION_LEVELS",
    "LATEST",
    "Isolation",
    "ListOffsetsResult",
    "ListedOffset",
    "Start",
    "StartOffset",
    "is_retriable_error",
    "list_offsets",
    "list_offsets_once",
    "look_up_each",
    "look_up_offsets",
    "may_be_listed_later",
    "parse_start",
    "reset_timestamps",
    "timestamp_of",
]

LATEST: Final = -1
"""Requests the log's end instead of a timestamp."""

EARLIEST: Final = -2
"""Requests the log's start instead of a timestamp."""

Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
"""Whether records of open and aborted transactions count (KIP-98)."""

ISOLATION_LEVELS: Final[Mapping[str, int]] = {"read_uncommitted": 0, "read_committed": 1}
"""Kafka's numbers for the isolation levels (KIP-98)."""

StartOffset: TypeAlias = int | Literal["earliest", "latest"] | datetime | timedelta
"""Where to begin: an offset, the log's start or end, the first record at or after a time, or the first record not older
than a duration."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}
_ALLOWED: Final = (
    "an offset (0 or more), 'earliest', 'latest', a datetime with a time zone, or a timedelta (the first record not "
    "older than that)"
)


# --- start offsets ---------------------------------------------------------------------------------------------------


class Start(NamedTuple):
    """An offset, or the timestamp to look up with ListOffsets."""

    offset: int
    """-1 if `timestamp` has to be looked up."""
    timestamp: int | None = None
    """In ms, or `EARLIEST` or `LATEST`."""


def timestamp_of(policy: Literal["earliest", "latest"] | timedelta, clock: MillisClock) -> int:
    """Return the timestamp to send in ListOffsets: `EARLIEST`, `LATEST`, or the time a duration ago, in ms.

    As `AutoOffsetResetStrategy.timestamp` in Kafka; a duration that reaches back before 1970 means 1970.
    """
    if isinstance(policy, timedelta):
        return max(0, clock() - policy // _MILLISECOND)
    return _NAMED[policy]


def parse_start(where: Any, clock: MillisClock) -> Start:
    """Parse a start offset given by a user; raise ConfigError if it is not a `StartOffset`."""
    if isinstance(where, str):
        if where in _NAMED:
            return Start(-1, _NAMED[where])
    elif isinstance(where, datetime):
        if where.tzinfo is not None and where.utcoffset() is not None:
            # round up: a record of the millisecond that has begun may be older than the given time
            return Start(-1, max(0, -((_EPOCH - where) // _MILLISECOND)))
        raise ConfigError("offset", where, f"{_ALLOWED}; this datetime has no time zone: where.astimezone()?")
    elif isinstance(where, timedelta):
        if where > timedelta():
            return Start(-1, timestamp_of(where, clock))
    elif not isinstance(where, bool) and hasattr(where, "__index__") and operator.index(where) >= 0:
        return Start(check_offset(where))
    hint = "; a time is given as a datetime" if isinstance(where, float) else ""
    raise ConfigError("offset", where, _ALLOWED + hint)


def reset_timestamps(
    partitions: Iterable[TopicPartition],
    config: ConsumerConfig,
    *,
    earliest_for: Collection[TopicPartition] = (),
    reader: str = "this consumer",
    clock: MillisClock = wall_clock,
) -> dict[TopicPartition, int]:
    """Return the timestamps with which partitions without a committed offset are looked up, by `auto_offset_reset`.

    The partitions `earliest_for` begin at the log's start under every policy: they were added after their topic was
    subscribed, and no record of them may be missed. Raises OffsetOutOfRangeError for policy `error`, naming `reader` and the
    partitions.
    """
    wanted, earliest, policy = list(partitions), frozenset(earliest_for), config.auto_offset_reset
    if policy == "error":
        if refused := [tp for tp in wanted if tp not in earliest]:
            names = ", ".join(map(str, refused))
            raise OffsetOutOfRangeError(f"{reader} has no committed offset for {names}")
        return dict.fromkeys(wanted, EARLIEST)
    timestamp = timestamp_of(policy, clock)
    return {tp: EARLIEST if tp in earliest else timestamp for tp in wanted}


# --- lookups ---------------------------------------------------------------------------------------------------------


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


async def list_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation: Isolation = "read_uncommitted"
) -> dict[TopicPartition, int]:
    """Return each partition's offset at `EARLIEST`, `LATEST` or a timestamp (ms).

    A timestamp after the last record gives the log's end (Java's `offsetsForTimes` returns nothing then, and its callers
    request the end themselves). With `read_committed` the end is the last stable offset. Leader moves and other errors that may
    pass (`may_be_listed_later`) are retried `metadata_retry_max` times. Raises BrokerError, TransportError.
    """
    found: dict[TopicPartition, int] = {}
    retry = cluster.retry(retries=cluster.config.metadata_retry_max)
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
        # raise an error that stays first: it says more
        problem = min(answer.problems.values(), key=may_be_listed_later)
        if not may_be_listed_later(problem):
            raise problem
        await retry.pause(problem)
        await cluster.refresh()
    return found


async def look_up_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation: Isolation
) -> dict[TopicPartition, ListedOffset]:
    """As `look_up_each`; raises OffsetLookupError with an error for each partition that failed."""
    found, errors = await look_up_each(cluster, wanted, isolation)
    if errors:
        raise OffsetLookupError(errors)
    return found


async def look_up_each(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation: Isolation
) -> tuple[dict[TopicPartition, ListedOffset], dict[TopicPartition, AsyncGroupError]]:
    """Look up each partition at `EARLIEST`, `LATEST` or a timestamp in ms; the offset is -1 without such a record.

    `isolation` decides where logs end. Errors that may pass (`may_be_listed_later`) are retried `metadata_retry_max` times.
    Returns what was found, and the errors of the others. Raises TransportError if no broker answers.
    """
    found: dict[TopicPartition, ListedOffset] = {}
    final: dict[TopicPartition, AsyncGroupError] = {}  # errors that stay
    left, retry = dict(wanted), cluster.retry(retries=cluster.config.metadata_retry_max)
    topics = sorted({tp.topic for tp in wanted})
    with cluster.tracking(topics, creates=False):
        if any(cluster.view.leader(tp) < 0 for tp in left):
            await cluster.refresh()
        while left:
            answer = await list_offsets_once(cluster, left, isolation, or_end=False)
            found |= answer.listed
            problems = {tp: _problem(cluster, tp, error) for tp, error in answer.problems.items()}
            final |= {tp: error for tp, error in problems.items() if not may_be_listed_later(error)}
            left = {tp: wanted[tp] for tp in problems if tp not in final}
            if left:
                if not retry.failed():
                    return found, final | problems
                await retry.wait()
                await cluster.try_refresh()
    return found, final


def _problem(cluster: ClusterClient, tp: TopicPartition, error: AsyncGroupError) -> AsyncGroupError:
    """Return the error to report for a partition: without a leader, the metadata may show that it does not exist."""
    if cluster.view.leader(tp) >= 0:
        return error
    topic = cluster.view.topics.get(tp.topic)
    if topic is not None and topic.error_code:
        return BrokerError(topic.error_code, f"offset of {tp}")
    if topic is None or tp.partition not in topic.partitions:
        return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"offset of {tp}", "it does not exist")
    return error


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
    requests = [(node_id, part, _request(cluster, part, isolation)) for node_id, part in by_leader.items()]
    await asyncio.gather(*(_ask(cluster, *request, found) for request in requests))
    for tp in wanted:
        if tp not in found.listed and tp not in found.problems:
            found.problems[tp] = BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"offset of {tp}", "the response does not contain it"
            )
    return found


async def _ask(
    cluster: ClusterClient,
    node_id: int,
    asked: Mapping[TopicPartition, int],
    request: m.ListOffsetsRequest,
    found: ListOffsetsResult,
) -> None:
    """Send a request to one leader and add the results of its partitions to `found`."""
    try:
        response = await cluster.network.request(node_id, request)
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
