"""Copies of records for retry and dead letter topics, and the headers that describe the original. Pure functions.

Key, value, event time and headers are kept, and the ordering key, which is a header. Pulsar's properties are headers
(`RetryMessageUtil` and `ConsumerImpl.getPropertiesMap` of its Java client), a dead letter has the headers of KIP-1191 as
well. Values are UTF-8 text, numbers in decimal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from asyncgroup.checks import is_legal_name
from asyncgroup.delivery_headers import DELIVER_AT, ORDERING_KEY
from asyncgroup.model import Header, MillisClock, Record
from asyncgroup.workqueue.engine import OutgoingCopy

__all__ = [
    "DELAY_TIME",
    "DLQ_DELIVERY_COUNT",
    "DLQ_GROUP",
    "DLQ_MESSAGE",
    "DLQ_OFFSET",
    "DLQ_PARTITION",
    "DLQ_TOPIC",
    "ORIGIN_MESSAGE_ID",
    "ORIGIN_MESSAGE_ID_LEGACY",
    "REAL_SUBSCRIPTION",
    "REAL_TOPIC",
    "RECONSUMETIMES",
    "CopyHeaders",
    "RecordOrigin",
    "dead_letter_copy",
    "deliver_at",
    "due_at",
    "earlier_attempts",
    "is_of_other_group",
    "ordering_key",
    "origin",
    "retry_copy",
    "shortened",
    "user_headers",
]

REAL_TOPIC: Final = "REAL_TOPIC"
"""The topic of the record's first delivery."""
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
"""`topic-partition@offset` of the record's first delivery."""
ORIGIN_MESSAGE_ID_LEGACY: Final = "ORIGIN_MESSAGE_IDY_TIME"
"""The same; the name that older clients of Pulsar use."""
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
"""Of a copy in a retry topic the group that wrote it; of a dead letter the group that copied the record first."""
RECONSUMETIMES: Final = "RECONSUMETIMES"
"""The number of deliveries before this copy."""
DELAY_TIME: Final = "DELAY_TIME"
"""The delay of the copy in milliseconds."""

DLQ_TOPIC: Final = "__dlq.errors.topic"
DLQ_PARTITION: Final = "__dlq.errors.partition"
DLQ_OFFSET: Final = "__dlq.errors.offset"
DLQ_GROUP: Final = "__dlq.errors.group"
DLQ_DELIVERY_COUNT: Final = "__dlq.errors.delivery.count"
DLQ_MESSAGE: Final = "__dlq.errors.message"

MAX_REASON_LENGTH: Final = 1000
"""The most characters of a dead letter's reason."""

_ORIGIN: Final = (REAL_TOPIC, ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID_LEGACY, REAL_SUBSCRIPTION)
_SINGLE_COPY: Final = frozenset({RECONSUMETIMES, DELAY_TIME, DELIVER_AT})  # not passed on to the next copy
_KIP_1191: Final = frozenset(
    {DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET, DLQ_GROUP, DLQ_DELIVERY_COUNT, DLQ_MESSAGE}
)
_ADDED: Final = frozenset(_ORIGIN) | _SINGLE_COPY | _KIP_1191

_INT32_MAX: Final = 0x7FFFFFFF
_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
_LONGEST_DELAY: Final = 1e15
"""Seconds from which on a delivery time would not fit 64 bits."""


class RecordOrigin(NamedTuple):
    """The record of the first delivery, which a copy comes from."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


# --- copies -----------------------------------------------------------------------------------------------------------------


class CopyHeaders:
    """The CopyFormat of a subscription, with the headers of Pulsar's clients and of KIP-1191.

    `now_ms` returns the time of day, from which delays count; `check_headers(headers)` raises if a user's headers are invalid.
    """

    def __init__(
        self, group_id: str, now_ms: MillisClock, check_headers: Callable[[object], None] = lambda _: None
    ) -> None:
        self._group_id = group_id
        self._now_ms = now_ms
        self._check_headers = check_headers

    def __repr__(self) -> str:
        return f"<CopyHeaders of {self._group_id!r}>"

    def retry_copy(
        self, record: Record, topic: str, attempt: int, delay: float, headers: Sequence[Header]
    ) -> OutgoingCopy:
        """See `CopyFormat.retry_copy`."""
        self._check_headers(headers)
        return retry_copy(record, topic, self._group_id, delay, self._now_ms(), headers, attempt=attempt)

    def dead_letter_copy(self, record: Record, topic: str, attempt: int, reason: str) -> OutgoingCopy:
        """See `CopyFormat.dead_letter_copy`."""
        return dead_letter_copy(record, topic, self._group_id, attempt, reason)


def retry_copy(
    record: Record,
    topic: str,
    group_id: str,
    delay: float,
    now_ms: int,
    headers: Iterable[Header] = (),
    *,
    attempt: int,
) -> OutgoingCopy:
    """Return the copy of a record that is delivered again `delay` seconds after `now_ms`, never earlier.

    `attempt` is the number of the delivery that ends; the copy's first one has the next number. `headers` replace headers of
    the record with the same names: RECONSUMETIMES replaces the count of earlier deliveries, as in Pulsar. REAL_SUBSCRIPTION
    is always this group, which the copy is for: groups may share a retry topic, and the record may be a dead letter of another one.
    """
    added = list(headers)
    merged = _merge(record.headers, added)
    times = attempt
    # a user's count replaces ours, as in Pulsar, and this delivery is added
    if any(name == RECONSUMETIMES for name, _ in added):
        given = _number(_last(added, RECONSUMETIMES), _INT32_MAX)
        times = attempt if given is None else given + 1
    # headers about one copy are not for the next one
    kept = [header for header in merged if header[0] not in _SINGLE_COPY and header[0] != REAL_SUBSCRIPTION]
    _add_origin(kept, record, group_id)
    delay_ms = _milliseconds(delay)
    kept += [
        (RECONSUMETIMES, b"%d" % min(times, _INT32_MAX)),
        (DELAY_TIME, b"%d" % delay_ms),
        (DELIVER_AT, b"%d" % min(now_ms + delay_ms, _INT64_MAX)),
    ]
    return _copy(record, topic, kept)


def dead_letter_copy(record: Record, topic: str, group_id: str, attempt: int, reason: str) -> OutgoingCopy:
    """Return the copy of a record for the dead letter topic: `attempt` deliveries were made, the last one failed by `reason`.

    It has no delay and no RECONSUMETIMES, so that a queue that reads the dead letter topic counts from 1 again; KIP-1191's headers
    contain the count. They name the record of the first delivery, also if the last one was of a copy in the retry topic.
    """
    # a dead letter that was sent back and has failed again gets the headers of this failure
    dropped = _SINGLE_COPY | _KIP_1191
    kept = [header for header in record.headers if header[0] not in dropped]
    first = _origin_of(kept) or RecordOrigin(record.topic, record.partition, record.offset)
    _add_origin(kept, record, group_id)
    kept += [
        (DLQ_TOPIC, first.topic.encode()),
        (DLQ_PARTITION, b"%d" % first.partition),
        (DLQ_OFFSET, b"%d" % first.offset),
        (DLQ_GROUP, _text(group_id)),
        (DLQ_DELIVERY_COUNT, b"%d" % attempt),
        (DLQ_MESSAGE, _text(shortened(reason))),
    ]
    return _copy(record, topic, kept)


def _copy(record: Record, topic: str, headers: list[Header]) -> OutgoingCopy:
    timestamp = record.timestamp if record.timestamp >= 0 else None
    return OutgoingCopy(topic, record.value, record.key, headers, timestamp)


def _merge(headers: Sequence[Header], added: list[Header]) -> list[Header]:
    """Return the headers and after them the added ones, which replace those of the same names."""
    if not added:
        return list(headers)
    names = {name for name, _ in added}
    return [header for header in headers if header[0] not in names] + added


def _add_origin(headers: list[Header], record: Record, group_id: str) -> None:
    """Add the four origin headers that are missing; those that exist are of the first delivery."""
    present = {name for name, _ in headers}
    where = _text(str(RecordOrigin(record.topic, record.partition, record.offset)))
    values = (record.topic.encode(), where, where, _text(group_id))
    headers += [(name, value) for name, value in zip(_ORIGIN, values, strict=True) if name not in present]


def _milliseconds(seconds: float) -> int:
    """Return a delay in ms, rounded up, except for the inexact last digit of a float; 0 for a negative delay."""
    if not seconds > 0:
        return 0
    if seconds >= _LONGEST_DELAY:
        return _INT64_MAX
    # 0.1 * 3 s are 300 ms, and not 301
    return math.ceil(round(seconds * 1000, 6))


def _text(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def shortened(reason: str) -> str:
    """Return the reason of a dead letter, cut to MAX_REASON_LENGTH."""
    return reason if len(reason) <= MAX_REASON_LENGTH else f"{reason[:MAX_REASON_LENGTH]}…"


# --- reading the headers of a copy -------------------------------------------------------------------------------------------


def earlier_attempts(record: Record) -> int:
    """Return the number of deliveries before this copy was written; 0 if the record has no valid RECONSUMETIMES."""
    if not record.headers:
        return 0
    return _number(_last(record.headers, RECONSUMETIMES), _INT32_MAX) or 0


def is_of_other_group(group_id: str, record: Record) -> bool:
    """Whether another group has written this record of a retry topic, for itself; one without a group is for all of them."""
    named = _last(record.headers, REAL_SUBSCRIPTION)
    return named is not None and named != _text(group_id)


def deliver_at(record: Record) -> int | None:
    """Return the time in ms since 1970 before which a record is not delivered; None if it has no valid one."""
    if not record.headers:
        return None
    return _number(_last(record.headers, DELIVER_AT), _INT64_MAX)


def due_at(retry_topic: str | None, record: Record, *, delays_all: bool) -> int | None:
    """Return `deliver_at` of a record for which it counts: without `delays_all` only of copies in the retry topic."""
    return deliver_at(record) if delays_all or record.topic == retry_topic else None


def ordering_key(record: Record) -> bytes | None:
    """Return the header `ag-ordering-key`, else the record's key."""
    for name, value in record.headers:
        if name == ORDERING_KEY:
            return value
    return record.key


def origin(record: Record) -> RecordOrigin | None:
    """Return the record of the first delivery; None if the headers do not contain it.

    Dead letters that brokers write for share groups (KIP-1191) also have it.
    """
    return _origin_of(record.headers) if record.headers else None


def user_headers(record: Record) -> list[Header]:
    """Return the headers without those that work queues and brokers add to copies, as to send a dead letter back."""
    return [header for header in record.headers if header[0] not in _ADDED]


def _origin_of(headers: Sequence[Header]) -> RecordOrigin | None:
    message_id = _decoded(_last(headers, ORIGIN_MESSAGE_ID))
    if message_id is not None and (found := _parsed(message_id)) is not None:
        return found
    topic = _decoded(_last(headers, DLQ_TOPIC))
    partition = _number(_last(headers, DLQ_PARTITION), _INT32_MAX)
    offset = _number(_last(headers, DLQ_OFFSET), _INT64_MAX)
    if topic is None or not is_legal_name(topic) or partition is None or offset is None:
        return None
    return RecordOrigin(topic, partition, offset)


def _parsed(message_id: str) -> RecordOrigin | None:
    place, _, offset_text = message_id.rpartition("@")
    # from the right: a topic's name may have dashes
    topic, _, partition_text = place.rpartition("-")
    partition = _number(partition_text.encode(), _INT32_MAX)
    offset = _number(offset_text.encode(), _INT64_MAX)
    if partition is None or offset is None or not is_legal_name(topic):
        return None
    return RecordOrigin(topic, partition, offset)


def _last(headers: Sequence[Header], name: str) -> bytes | None:
    """Return the value of the last header with this name (`Headers.lastHeader`)."""
    for each, value in reversed(headers):
        if each == name:
            return value
    return None


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _number(value: bytes | None, highest: int) -> int | None:
    """Return a decimal number from 0 to `highest`, None for other values: `int` would accept signs, spaces and underscores."""
    # no more digits than an int64 has: `int` takes long for thousands of them, or raises
    if value is None or not value.isdigit() or len(value) > 19:
        return None
    number = int(value)
    return number if number <= highest else None
