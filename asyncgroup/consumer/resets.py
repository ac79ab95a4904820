"""Start offsets and offset resets: what the reset policies and a user's start positions mean.

The policies are those of `auto.offset.reset`: `earliest`, `latest`, by duration (KIP-1106) and `error` (Kafka's `none`).
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from asyncgroup.checks import check_offset
from asyncgroup.cluster import ClusterClient
from asyncgroup.config import AutoOffsetReset, ConsumerConfig
from asyncgroup.consumer.list_offsets import EARLIEST, LATEST, list_offsets
from asyncgroup.errors import ConfigError, OffsetOutOfRangeError
from asyncgroup.model import TopicPartition

__all__ = [
    "LogRange",
    "MillisClock",
    "StartOffset",
    "find_start",
    "out_of_range_error",
    "out_of_range_policy",
    "parse_start",
    "resolve_start_offsets",
    "timestamp_of",
    "wall_clock",
]

MillisClock: TypeAlias = Callable[[], int]
"""Returns the time of day in ms since 1970, as in record timestamps."""

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


def wall_clock() -> int:
    """Return the system's time of day in ms. It only turns durations into timestamps, as in Java; no wait depends on it."""
    return time.time_ns() // 1_000_000


class LogRange(NamedTuple):
    """The offsets of a log."""

    start: int
    """The log start offset."""
    end: int
    """The offset after the last readable record."""

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"


def timestamp_of(policy: Literal["earliest", "latest"] | timedelta, clock: MillisClock) -> int:
    """Return the timestamp to send in ListOffsets: `EARLIEST`, `LATEST`, or the time a duration ago, in ms.

    As `AutoOffsetResetStrategy.timestamp` in Kafka; a duration that reaches back before 1970 means 1970.
    """
    if isinstance(policy, timedelta):
        return max(0, clock() - policy // _MILLISECOND)
    return _NAMED[policy]


def out_of_range_policy(config: ConsumerConfig) -> AutoOffsetReset:
    """Return the policy for an offset that is not in the log: `out_of_range_reset`, else `auto_offset_reset`."""
    policy = config.out_of_range_reset
    return config.auto_offset_reset if policy is None else policy


def out_of_range_error(
    tp: TopicPartition, offset: int, log: LogRange, reset_to: int | None = None
) -> OffsetOutOfRangeError:
    """Return the error for an offset outside the log; `reset_to` is the offset chosen by the policy."""
    text = f"{tp}: offset {offset} is not in the log, which holds {log}"
    return OffsetOutOfRangeError(text if reset_to is None else f"{text}; continuing at {reset_to}")


# --- start offsets given by a user ------------------------------------------------------------------------------------


async def find_start(
    cluster: ClusterClient,
    tp: TopicPartition,
    where: StartOffset,
    config: ConsumerConfig,
    clock: MillisClock = wall_clock,
) -> int:
    """Return the offset that `where` stands for; a number is returned unchanged, without a request.

    Raises ConfigError if `where` is not a `StartOffset`, BrokerError, TransportError.
    """
    wanted = parse_start(where, clock)
    if wanted.timestamp is None:
        return wanted.offset
    return (await list_offsets(cluster, {tp: wanted.timestamp}, config.isolation_level))[tp]


class Start(NamedTuple):
    """An offset, or the timestamp to look up with ListOffsets."""

    offset: int
    """-1 if `timestamp` has to be looked up."""
    timestamp: int | None = None
    """In ms, or `EARLIEST` or `LATEST`."""


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


# --- start offsets of claims ------------------------------------------------------------------------------------------


async def resolve_start_offsets(
    cluster: ClusterClient,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int],
    config: ConsumerConfig,
    *,
    earliest_for: Collection[TopicPartition] = (),
    reader: str = "this consumer",
    clock: MillisClock = wall_clock,
) -> dict[TopicPartition, int]:
    """Return where each partition begins: at its committed offset, or by the policy `auto_offset_reset`.

    Sends one ListOffsets request to each leader of a partition without a committed offset (and a second one for those whose
    duration reaches past the last record). Committed offsets are not checked: one outside its log shows at the first fetch.
    The partitions `earliest_for` begin at the log's start under every policy: they were added after their topic was
    subscribed, and no record of them may be missed.

    Raises OffsetOutOfRangeError for policy `error`, naming `reader` and the partitions; BrokerError, TransportError.
    """
    wanted, earliest = list(partitions), frozenset(earliest_for)
    policy = config.auto_offset_reset
    missing = [tp for tp in wanted if tp not in committed]
    by_policy = [tp for tp in missing if tp not in earliest]
    if policy == "error":
        if by_policy:
            names = ", ".join(map(str, by_policy))
            raise OffsetOutOfRangeError(f"{reader} has no committed offset for {names}")
        timestamp = EARLIEST
    else:
        timestamp = timestamp_of(policy, clock)
    asked = {tp: EARLIEST if tp in earliest else timestamp for tp in missing}
    found = await list_offsets(cluster, asked, config.isolation_level) if asked else {}
    return {tp: committed[tp] if tp in committed else found[tp] for tp in wanted}
