"""Argument types for points in time and durations: one rule for all commands. A time without a zone is refused.

Kafka's tools take such a time as UTC, which is hours away from what an operator means who reads a local clock.
"""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from asyncgroup.cluster.requests.list_offsets import millis_ago, millis_of
from asyncgroup.model import now_ms

__all__ = ["INSTANTS", "NoZone", "parse_duration", "parse_instant", "parse_time", "timestamp_of_instant"]

_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_DURATION: Final = re.compile(r"(\d{1,9})([dhms])", re.ASCII)
_ISO_DURATION: Final = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})S)?)?", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_DURATIONS: Final = "a duration such as 90s, 30m, 24h or 7d, or as for Kafka's tool PT24H"
INSTANTS: Final = (
    "a time with its zone such as 2026-11-27T10:00Z or 2026-11-27T10:00+01:00, a timestamp of 13 digits (ms) or 10 (seconds), "
    "or a duration before now such as 90s, 30m, 24h or 7d"
)
"""What `parse_instant` takes, in words."""


class NoZone(argparse.ArgumentTypeError):
    """A time without its zone."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} has no zone: append Z for UTC, or such as +01:00")


def parse_instant(text: str, allowed: str = INSTANTS) -> datetime | timedelta:
    """Argument type: a point in time, or a duration before now, also with a minus; `allowed` is for the error."""
    found = _point(text) or _duration(text.removeprefix("-"))
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")
    return found


def parse_time(text: str) -> datetime:
    """Argument type: a point in time, with its zone."""
    found = parse_instant(text)
    if isinstance(found, timedelta):
        raise argparse.ArgumentTypeError(
            f"{text!r} is a duration, not a time with its zone such as 2026-11-27T10:00Z"
        )
    return found


def parse_duration(text: str) -> timedelta:
    """Argument type: a duration, above 0."""
    found = _duration(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not {_DURATIONS}")
    return found


def timestamp_of_instant(instant: datetime | timedelta) -> int:
    """Return an instant in ms since 1970, as the running event loop has the time."""
    return millis_of(instant) if isinstance(instant, datetime) else millis_ago(instant, now_ms)


def _point(text: str) -> datetime | None:
    """Return a point in time; None for other text. Raises NoZone."""
    try:
        if re.fullmatch(r"[0-9]{13}|[0-9]{10}", text):
            return _EPOCH + timedelta(milliseconds=int(text) if len(text) == 13 else 1000 * int(text))
        time = datetime.fromisoformat(text) if re.match(r"[0-9]{4}-", text) else None
        if time is None or time.tzinfo is not None:
            return None if time is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    raise NoZone(text)


def _duration(text: str) -> timedelta | None:
    """Return a duration; None for other text, and for 0."""
    try:
        if (found := _DURATION.fullmatch(text)) is not None:
            return timedelta(**{_UNITS[found[2]]: int(found[1])}) or None
        if (found := _ISO_DURATION.fullmatch(text)) is not None:
            days, hours, minutes, seconds = (int(group or 0) for group in found.groups())
            return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) or None
    except OverflowError:
        pass
    return None
