"""Offsets by name or time: the start offsets that a user may give, and their lookup with ListOffsets.

One request per leader for any number of partitions. The names are those of `auto.offset.reset`: `earliest`, `latest`, and
by duration (KIP-1106).
"""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from asyncgroup.checks import check_offset
from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.actions import RequestAction, action_of
from asyncgroup.cluster.requests.fan_out import fan_out
from asyncgroup.cluster.requests.list_offsets import (
    EARLIEST,
    LATEST,
    LIST_OFFSETS,
    Isolation,
    ListedOffset,
    build_list_offsets,
    may_be_listed_later,
    millis_ago,
    millis_of,
    parse_list_offsets,
)
from asyncgroup.cluster.requests.repeat import repeat
from asyncgroup.cluster.requests.results import Progress, Results
from asyncgroup.cluster.requests.routes import ByLeader, Target
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    ConfigError,
    ErrorCode,
    OffsetLookupError,
    OffsetOutOfRangeError,
)
from asyncgroup.model import MillisClock, TopicPartition, wall_clock
from asyncgroup.wire import messages as m

__all__ = [
    "ListOffsetsResult",
    "Start",
    "StartOffset",
    "list_offsets",
    "list_offsets_once",
    "look_up_each",
    "look_up_offsets",
    "parse_start",
    "reset_timestamps",
    "timestamp_of",
]

StartOffset: TypeAlias = int | Literal["earliest", "latest"] | datetime | timedelta
"""Where to begin: an offset, the log's start or end, the first record at or after a time, or the first record not older
than a duration."""

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
        return millis_ago(policy, clock)
    return _NAMED[policy]


def parse_start(where: Any, clock: MillisClock) -> Start:
    """Parse a start offset given by a user; raise ConfigError if it is not a `StartOffset`."""
    if isinstance(where, str):
        if where in _NAMED:
            return Start(-1, _NAMED[where])
    elif isinstance(where, datetime):
        if where.tzinfo is not None and where.utcoffset() is not None:
            return Start(-1, millis_of(where))
        raise ConfigError("offset", where, f"{_ALLOWED}; this datetime has no time zone: where.astimezone()?")
    elif isinstance(where, timedelta):
        if where > timedelta():
            return Start(-1, timestamp_of(where, clock))
    # also integers of NumPy; a bool would be the offset 0 or 1
    elif not isinstance(where, bool | type) and hasattr(where, "__index__") and operator.index(where) >= 0:
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


class ListOffsetsResult(NamedTuple):
    """For each requested partition either its offset or its error."""

    listed: dict[TopicPartition, ListedOffset]
    problems: dict[TopicPartition, AsyncGroupError]

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The offsets without timestamps and epochs."""
        return {tp: listed.offset for tp, listed in self.listed.items()}


async def list_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation: Isolation = "read_uncommitted"
) -> dict[TopicPartition, int]:
    """Return each partition's offset at `EARLIEST`, `LATEST` or a timestamp (ms).

    A timestamp after the last record gives the log's end (Java's `offsetsForTimes` returns nothing then, and its callers
    request the end themselves). With `read_committed` the end is the last stable offset. Leader moves and other errors that may
    pass (`may_be_listed_later`) are retried `metadata_retry_max` times. Raises BrokerError, TransportError.
    """
    found: dict[TopicPartition, int] = {}
    is_repeated = False

    async def attempt() -> AsyncGroupError | None:
        """Look up what is left; return the error to raise: one that stays says more."""
        nonlocal is_repeated
        # the first attempt does with the metadata at hand, without another round trip
        if is_repeated:
            await cluster.refresh()
        is_repeated = True
        left = {tp: spec for tp, spec in wanted.items() if tp not in found}
        for tp in left:
            if cluster.view.leader(tp) < 0:
                await cluster.leader(tp)
        answer = await list_offsets_once(cluster, left, isolation)
        found.update(answer.offsets)
        return min(answer.problems.values(), key=may_be_listed_later, default=None)

    retry = cluster.retry(retries=cluster.config.metadata_retry_max)
    problem = await repeat(attempt, lambda error: action_of(error, LIST_OFFSETS), lambda _: retry)
    if problem is not None:
        raise problem
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
    progress: Progress[TopicPartition, ListedOffset] = Progress(wanted, LIST_OFFSETS)
    is_repeated = False

    async def attempt() -> RequestAction:
        nonlocal is_repeated
        if is_repeated:
            await cluster.try_refresh()
        is_repeated = True
        left = {tp: wanted[tp] for tp in progress.left}
        answer = await list_offsets_once(cluster, left, isolation, or_end=False)
        problems = {tp: _problem(cluster, tp, error) for tp, error in answer.problems.items()}
        return progress.apply(Results(answer.listed, problems))

    retry = cluster.retry(retries=cluster.config.metadata_retry_max)
    # a broker with `auto.create.topics.enable` would create topics that are only asked about
    with cluster.tracking(sorted({tp.topic for tp in wanted}), creates=False):
        if any(cluster.view.leader(tp) < 0 for tp in wanted):
            await cluster.refresh()
        await repeat(attempt, lambda action: action, lambda _: retry)
    results = progress.results()
    return results.values, results.errors


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
    # the names have negative numbers: only a time has no record
    if ends := {tp: LATEST for tp, offset in found.offsets.items() if offset < 0 <= wanted[tp]}:
        for tp in ends:
            # or it would be left with -1 if the lookup of its end fails
            del found.listed[tp]
        listed, problems = await _round(cluster, ends, isolation)
        found = ListOffsetsResult(found.listed | listed, found.problems | problems)
    return found


async def _round(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation: Isolation
) -> ListOffsetsResult:
    def ask(target: Target, asked: list[TopicPartition]) -> Awaitable[Results[TopicPartition, ListedOffset]]:
        return _ask(target, asked, requests[asked[0]])

    located = await ByLeader(cluster, "offset of").locate(list(wanted))
    # before the first one is sent: the epochs come from the metadata that named the leaders
    requests = {
        shard.keys[0]: build_list_offsets(cluster, {tp: wanted[tp] for tp in shard.keys}, isolation)
        for shard in located.shards
    }
    found = ListOffsetsResult({}, located.errors)
    for _, part in await fan_out(located.shards, ask, "ListOffsets"):
        found.listed.update(part.values)
        found.problems.update(part.errors)
    return found


async def _ask(
    target: Target, asked: list[TopicPartition], request: m.ListOffsetsRequest
) -> Results[TopicPartition, ListedOffset]:
    """Send a request to one leader; return the results of its partitions."""
    try:
        response = await target.request(m.ListOffsetsRequest, lambda _: request)
    except ClosedError as error:  # it is raised with the other errors of the lookup
        return Results.failed(asked, error)
    results = parse_list_offsets(response)
    for tp in asked:
        if tp not in results.values and tp not in results.errors:
            results.errors[tp] = BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"offset of {tp}", "the response does not contain it"
            )
    return results
