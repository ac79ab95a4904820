"""Where to read without a valid offset: what the reset policies and the offsets of a user mean, in one place.

Policies are those of `auto.offset.reset`: `earliest`, `latest`, by duration (KIP-1106) and `error` (Kafka's `none`).
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from asyncgroup.checks import check_offset
from asyncgroup.cluster import Cluster
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
"""The time of day, in ms since 1970: what timestamps of records are compared with."""

StartOffset: TypeAlias = int | Literal["earliest", "latest"] | datetime | timedelta
"""Where to begin: an offset, the log's start or end, the first record at or after a time, or one not older than that."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}
_ALLOWED: Final = (
    "an offset (0 or more), 'earliest', 'latest', a datetime with a time zone, or a timedelta (the first record not "
    "older than that)"
)


def wall_clock() -> int:
    """The machine's time of day. Nothing waits by it; it is read where a duration becomes a timestamp, as in Java."""
    return time.time_ns() // 1_000_000


class LogRange(NamedTuple):
    """What a log holds: from `start` up to `end`, the offset behind its last readable record."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"


def timestamp_of(policy: Literal["earliest", "latest"] | timedelta, clock: MillisClock) -> int:
    """What ListOffsets is asked for: `EARLIEST`, `LATEST`, or the time of day a duration ago, in ms.

    As `AutoOffsetResetStrategy.timestamp` in Kafka; a duration that reaches beyond 1970 means 1970.
    """
    if isinstance(policy, timedelta):
        return max(0, clock() - policy // _MILLISECOND)
    return _NAMED[policy]


def out_of_range_policy(config: ConsumerConfig) -> AutoOffsetReset:
    """The policy for an offset that the log does not hold."""
    policy = config.out_of_range_reset
    return config.auto_offset_reset if policy is None else policy


def out_of_range_error(
    tp: TopicPartition, offset: int, log: LogRange, reset_to: int | None = None
) -> OffsetOutOfRangeError:
    """The error of an offset outside the log; `reset_to` is where the policy went on."""
    text = f"{tp}: offset {offset} is not in the log, which holds {log}"
    return OffsetOutOfRangeError(text if reset_to is None else f"{text}; going on at {reset_to}")


# --- where a user asks to begin ---------------------------------------------------------------------------------------


async def find_start(
    cluster: Cluster,
    tp: TopicPartition,
    where: StartOffset,
    config: ConsumerConfig,
    clock: MillisClock = wall_clock,
) -> int:
    """The offset that a user's `where` stands for; a number is taken as it is and looked up nowhere.

    Raises ConfigError for what is none of `StartOffset`, BrokerError, TransportError.
    """
    wanted = parse_start(where, clock)
    if wanted.timestamp is None:
        return wanted.offset
    return (await list_offsets(cluster, {tp: wanted.timestamp}, config.isolation_level))[tp]


class Start(NamedTuple):
    """An offset, or the timestamp to ask ListOffsets for."""

    offset: int
    timestamp: int | None = None


def parse_start(where: Any, clock: MillisClock) -> Start:
    """What a user's `where` means; raises ConfigError."""
    if isinstance(where, str):
        if where in _NAMED:
            return Start(-1, _NAMED[where])
    elif isinstance(where, datetime):
        if where.tzinfo is not None and where.utcoffset() is not None:
            # a fraction of a millisecond counts up: a record of that millisecond may be older than asked
            return Start(-1, max(0, -((_EPOCH - where) // _MILLISECOND)))
        raise ConfigError("offset", where, f"{_ALLOWED}; this datetime has no time zone: where.astimezone()?")
    elif isinstance(where, timedelta):
        if where > timedelta():
            return Start(-1, timestamp_of(where, clock))
    elif not isinstance(where, bool) and hasattr(where, "__index__") and operator.index(where) >= 0:
        return Start(check_offset(where))
    hint = "; a time is given as a datetime" if isinstance(where, float) else ""
    raise ConfigError("offset", where, _ALLOWED + hint)


# --- where claims begin -----------------------------------------------------------------------------------------------


async def resolve_start_offsets(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int],
    config: ConsumerConfig,
    *,
    earliest_for: Collection[TopicPartition] = (),
    reader: str = "this consumer",
    clock: MillisClock = wall_clock,
) -> dict[TopicPartition, int]:
    """Where each partition begins: at its committed offset, or where `auto_offset_reset` says.

    One ListOffsets request for each leader of a partition without a commit (and another one for those whose duration
    reaches behind the last record), none if there is no such partition; a committed offset outside its log shows
    itself at the first fetch. `earliest_for` begin at the log's start whatever
    the policy says: partitions that came into being after their topic was subscribed, of which nothing must be missed.

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
