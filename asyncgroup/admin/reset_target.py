"""Where the offsets of a group are to be set: what a caller may give, and what it means."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from asyncgroup.admin.arguments import several
from asyncgroup.checks import check_offset, check_partition, check_partitions, check_topic
from asyncgroup.cluster.requests.list_offsets import millis_ago, millis_of
from asyncgroup.errors import ConfigError
from asyncgroup.model import MillisClock
from asyncgroup.topic_partition import Partitions, TopicPartition

__all__ = [
    "ParsedTarget",
    "ResetScope",
    "ResetTarget",
    "ShiftBy",
    "TargetKind",
    "checked_scope",
    "parse_target",
]

_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
_ALLOWED: Final = (
    "'earliest', 'latest', 'current', an offset (0 or more), ShiftBy(n), a datetime with a time zone, a timedelta "
    "(that long ago), or a mapping from partitions to offsets"
)


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """A number of offsets from the committed one, as `--shift-by` of `kafka-consumer-groups`.

    Raises ConfigError unless it is a whole number.
    """

    offsets: int
    """How far the committed offset is moved: forwards if positive, backwards if negative."""

    def __post_init__(self) -> None:
        is_number = isinstance(self.offsets, int) and not isinstance(self.offsets, bool)
        if not is_number or abs(self.offsets) > _INT64_MAX:
            raise ConfigError("ShiftBy", self.offsets, "a whole number, such as -10")


ResetTarget: TypeAlias = (
    Literal["earliest", "latest", "current"]
    | int
    | ShiftBy
    | datetime
    | timedelta
    | Mapping[TopicPartition, int]
    | Mapping[tuple[str, int], int]
)
"""Where offsets are reset to: the log's start or end, the committed offset itself, an offset, the committed offset shifted, the
first record at or after a time, the first record not older than a duration, or an offset for each partition."""


class TargetKind(Enum):
    """The scenarios of `kafka-consumer-groups --reset-offsets`."""

    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "an offset"
    SHIFT = "a shift"
    TIME = "a time"
    EACH = "an offset for each partition"


class ParsedTarget(NamedTuple):
    """A checked target."""

    kind: TargetKind
    text: str
    """What was given, for messages."""
    number: int = 0
    """The offset, the shift, or the timestamp in ms since 1970."""
    offsets: Mapping[TopicPartition, int] = {}
    """The offset for each partition, for `TargetKind.EACH`."""


_NAMED: Final = {kind.value: kind for kind in (TargetKind.EARLIEST, TargetKind.LATEST, TargetKind.CURRENT)}


def parse_target(target: Any, clock: MillisClock) -> ParsedTarget:
    """Parse a target; `clock` is the present time for a duration. Raises ConfigError if it is not a `ResetTarget`."""
    match target:
        case str() if target in _NAMED:
            return ParsedTarget(_NAMED[target], target)
        case ShiftBy():
            return ParsedTarget(TargetKind.SHIFT, f"shifted by {target.offsets}", target.offsets)
        case datetime():
            return _at(target)
        case timedelta():
            if target < timedelta():
                raise ConfigError("target", target, "a timedelta that is not negative: that long ago")
            timestamp = millis_ago(target, clock)
            return ParsedTarget(TargetKind.TIME, f"{target} ago", timestamp)
        case Mapping():
            offsets = {_checked(tp): check_offset(offset) for tp, offset in target.items()}
            return ParsedTarget(TargetKind.EACH, TargetKind.EACH.value, offsets=dict(sorted(offsets.items())))
    if isinstance(target, bool | type) or not hasattr(target, "__index__") or operator.index(target) < 0:
        raise ConfigError("target", target, _ALLOWED)
    offset = check_offset(target)
    return ParsedTarget(TargetKind.OFFSET, f"offset {offset}", offset)


def _at(when: datetime) -> ParsedTarget:
    if when.utcoffset() is None:
        rule = "a datetime with a time zone: when.astimezone(), or when.replace(tzinfo=UTC)"
        raise ConfigError("target", when, rule)
    return ParsedTarget(TargetKind.TIME, when.isoformat(), millis_of(when))


def _checked(place: object) -> TopicPartition:
    tp = check_partition(place)
    check_topic(tp.topic)
    return tp


# --- scope ------------------------------------------------------------------------------------------------------------


class ResetScope(NamedTuple):
    """Which partitions are reset."""

    topics: tuple[str, ...] | None
    """Topics with all their partitions; None if the caller named none."""
    partitions: tuple[TopicPartition, ...] | None
    """Single partitions; None if the caller named none. With neither, all partitions with a committed offset."""


def checked_scope(
    target: ParsedTarget,
    topics: Iterable[str] | None,
    partitions: Partitions | None,
) -> ResetScope:
    """Return the scope; the partitions of a mapping are its own scope. Raises ConfigError for invalid names."""
    if target.kind is TargetKind.EACH:
        if topics is not None or partitions is not None:
            given = topics if topics is not None else partitions
            raise ConfigError("topics or partitions", given, "none beside offsets for each partition")
        return ResetScope(None, tuple(target.offsets))
    return ResetScope(
        None
        if topics is None
        else tuple(dict.fromkeys(check_topic(name) for name in several("topics", topics))),
        None if partitions is None else tuple(check_partitions(partitions)),
    )
