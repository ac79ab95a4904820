"""The arguments of `send` that write headers of delayed delivery and ordering keys.

They stand for `deliverAtTime` and `orderingKey` of Pulsar's messages. Only work queues act on them: brokers, and consumers
other than work queues, treat them as any header.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from asyncgroup.checks import timedelta_hint
from asyncgroup.delivery_headers import DELIVER_AT, ORDERING_KEY
from asyncgroup.errors import InvalidRecordError
from asyncgroup.model import Header, MillisClock
from asyncgroup.producer.arguments import check_bytes, check_headers, copy_headers

__all__ = ["add_delivery_headers"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT64_MAX: Final = 2**63 - 1
_TIME: Final = "a datetime with a time zone, 1970 or later, or a whole number of milliseconds since 1970"
_SECONDS: Final = f"a number of seconds, 0 or more, at most {_INT64_MAX // 1000} after 1970"


def add_delivery_headers(
    headers: Sequence[Header],
    ordering_key: bytes | None,
    deliver_at: datetime | int | None,
    deliver_after: float | None,
    clock: MillisClock,
) -> list[Header]:
    """Return the headers of a record, followed by those for each argument that is not None.

    `deliver_after` counts from `clock()`. Times are rounded up to ms. Raises InvalidRecordError for invalid arguments, for both
    times, and if `headers` has the header of an argument already.
    """
    check_headers(headers)
    added: list[Header] = []
    if deliver_at is not None and deliver_after is not None:
        raise InvalidRecordError(
            "deliver_after", deliver_after, f"None with deliver_at={deliver_at!r}: give one of them"
        )
    if ordering_key is not None:
        check_bytes("ordering_key", ordering_key)
        added.append((ORDERING_KEY, ordering_key))
    if deliver_at is not None:
        added.append((DELIVER_AT, b"%d" % _time_of(deliver_at)))
    elif deliver_after is not None:
        added.append((DELIVER_AT, b"%d" % _time_after(deliver_after, clock)))
    own = copy_headers(headers)
    for name, _ in added:
        if any(name == given for given, _ in own):
            argument = "ordering_key" if name == ORDERING_KEY else "deliver_at or deliver_after"
            raise InvalidRecordError(
                "headers", name, f"the header of {argument}: give the header or the argument"
            )
    return own + added


def _time_of(deliver_at: Any) -> int:
    """Return a delivery time in ms since 1970."""
    hint = ""
    if isinstance(deliver_at, datetime):
        if deliver_at.utcoffset() is None:
            hint = "; this datetime has no time zone: deliver_at.astimezone()?"
        elif deliver_at >= _EPOCH:
            return -((_EPOCH - deliver_at) // _MILLISECOND)
    elif type(deliver_at) is int and 0 <= deliver_at <= _INT64_MAX:
        return deliver_at
    raise InvalidRecordError("deliver_at", deliver_at, _TIME + hint)


def _time_after(deliver_after: Any, clock: MillisClock) -> int:
    """Return the time in ms since 1970 that is `deliver_after` seconds from now."""
    hint = timedelta_hint(deliver_after, _SECONDS)
    if type(deliver_after) in (int, float) and 0 <= deliver_after <= _INT64_MAX // 1000:
        # without the rounding, 0.07 s would be 71 ms: 0.07 * 1000 is 70.00000000000001
        time: int = clock() + math.ceil(round(deliver_after * 1000, 6))
        if time <= _INT64_MAX:
            return time
    raise InvalidRecordError("deliver_after", deliver_after, _SECONDS + hint)
