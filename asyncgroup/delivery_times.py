"""Times that are arguments of a send: a datetime, milliseconds since 1970, or seconds from now."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from asyncgroup.checks import timedelta_hint
from asyncgroup.errors import InvalidRecordError
from asyncgroup.model import MillisClock

__all__ = ["LAST_TIME", "millis_after", "millis_of"]

LAST_TIME: Final = 2**63 - 1
"""The largest time in ms that brokers store."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_TIME: Final = "a datetime with a time zone, 1970 or later, or a whole number of milliseconds since 1970"
_SECONDS: Final = f"a number of seconds, 0 or more, at most {LAST_TIME // 1000} after 1970"


def millis_of(argument: str, when: Any) -> int:
    """Return a time in ms since 1970, rounded up. Raises InvalidRecordError, which names the argument."""
    hint = ""
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            hint = f"; this datetime has no time zone: {argument}.astimezone()?"
        elif when >= _EPOCH:
            return -((_EPOCH - when) // _MILLISECOND)
    elif type(when) is int and 0 <= when <= LAST_TIME:
        return when
    raise InvalidRecordError(argument, when, _TIME + hint)


def millis_after(argument: str, seconds: Any, clock: MillisClock) -> int:
    """Return the time in ms since 1970 that is `seconds` from now, rounded up. Raises InvalidRecordError."""
    hint = timedelta_hint(seconds, _SECONDS)
    if type(seconds) in (int, float) and 0 <= seconds <= LAST_TIME // 1000:
        # without the rounding, 0.07 s would be 71 ms: 0.07 * 1000 is 70.00000000000001
        time: int = clock() + math.ceil(round(seconds * 1000, 6))
        if time <= LAST_TIME:
            return time
    raise InvalidRecordError(argument, seconds, _SECONDS + hint)
