"""Argument types for points in time and durations of administrative commands: a time without a zone is refused.

Kafka's tools take such a time as UTC, which is hours away from what an operator means who reads a local clock.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from asyncgroup.model import MillisClock, wall_clock

__all__ = ["millis_of", "parse_duration", "parse_instant", "parse_time"]

_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_DURATION: Final = re.compile(r"(\d{1,9})([dhms])", re.ASCII)
_ISO_DURATION: Final = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})S)?)?", re.ASCII
)
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_DURATIONS: Final = "a duration such as 90s, 30m, 24h or 7d, or as for Kafka's tool PT24H"
_INSTANTS: Final = (
    "a time with its zone such as 2026-11-27T10:00Z or 2026-11-27T10:00+01:00, a timestamp of 13 digits (ms) or 10 (seconds), "
    "or a duration before now such as 90s, 30m, 24h or 7d"
)


def parse_time(text: str) -> datetime:
    """Argument type: a point in time, with its zone."""
    found = parse_instant(text)
    if isinstance(found, timedelta):
        raise argparse.ArgumentTypeError(
            f"{text!r} is a duration, not a time with its zone such as 2026-11-27T10:00Z"
        )
    return found


def millis_of(instant: datetime | timedelta) -> int:
    """Return an instant in ms since 1970, as the running event loop has the time."""
    if isinstance(instant, datetime):
        return -((_EPOCH - instant) // _MILLISECOND)  # rounded up: a record before the instant does not count
    clock: MillisClock = getattr(asyncio.get_running_loop(), "wall_clock", wall_clock)
    return max(0, clock() - instant // _MILLISECOND)


def parse_duration(text: str) -> timedelta:
    """Argument type: a duration, above 0."""
    try:
        if (found := _DURATION.fullmatch(text)) is not None:
            duration = timedelta(**{_UNITS[found[2]]: int(found[1])})
        elif (found := _ISO_DURATION.fullmatch(text)) is not None:
            days, hours, minutes, seconds = (int(group or 0) for group in found.groups())
            duration = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        else:
            duration = timedelta()
    except OverflowError:
        duration = timedelta()
    if duration <= timedelta():
        raise argparse.ArgumentTypeError(f"{text!r} is not {_DURATIONS}")
    return duration


def parse_instant(text: str) -> datetime | timedelta:
    """Argument type: a point in time, or a duration before now."""
    try:
        if re.fullmatch(r"[0-9]{13}|[0-9]{10}", text):
            milliseconds = int(text) if len(text) == 13 else 1000 * int(text)
            return _EPOCH + timedelta(milliseconds=milliseconds)
        if re.match(r"[0-9]{4}-", text):
            time = datetime.fromisoformat(text)
            if time.tzinfo is None:
                raise argparse.ArgumentTypeError(f"{text!r} has no zone: append Z for UTC, or such as +01:00")
            return time.astimezone(UTC)
        return parse_duration(text)
    except argparse.ArgumentTypeError as error:
        if "no zone" in str(error):
            raise
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not {_INSTANTS}")
