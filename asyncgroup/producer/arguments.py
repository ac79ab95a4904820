"""Check the arguments of `send`, `send_nowait`, `enqueue` and `enqueue_all`, and compute the size of a record.

The arguments `ordering_key`, `deliver_at` and `deliver_after` become headers. They stand for `orderingKey` and `deliverAtTime` of
Pulsar's messages. Only work queues act on them: brokers, and consumers other than work queues, treat them as any header.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias, TypedDict

from asyncgroup.checks import check_topic
from asyncgroup.delivery_headers import DELIVER_AT, ORDERING_KEY
from asyncgroup.delivery_times import millis_after, millis_of
from asyncgroup.errors import ConfigError, InvalidRecordError
from asyncgroup.model import Header, MillisClock
from asyncgroup.producer.batches.batch import HEADER_OVERHEAD, RECORD_OVERHEAD, record_size

__all__ = [
    "RecordFields",
    "SendOptions",
    "add_delivery_headers",
    "check_bytes",
    "check_fields",
    "check_headers",
    "check_record",
    "check_records",
    "check_sequence_id",
    "check_topic_name",
    "copy_headers",
    "measure_record",
]

RecordFields: TypeAlias = tuple[str, bytes | None, bytes | None, Sequence[Header], int | None, int | None]
"""The arguments of `send` in their order: topic, value, key, headers, partition, timestamp."""


class SendOptions(TypedDict, total=False):
    """The keyword arguments of `send`, `send_nowait` and `enqueue`, for methods that pass them on."""

    key: bytes | None
    headers: Sequence[Header]
    partition: int | None
    timestamp: int | None
    ordering_key: bytes | None
    deliver_at: datetime | int | None
    deliver_after: float | None


_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_FIELDS: Final = 6
FIELDS_RULE: Final = "a tuple of six values (topic, value, key, headers, partition, timestamp): None, for headers (), where there is none"
HEADERS_RULE: Final = "a sequence of pairs (str, bytes or None)"


def measure_record(
    value: bytes | None,
    key: bytes | None,
    headers: Sequence[Header],
    partition: int | None,
    timestamp: int | None,
) -> int:
    """Return the bytes of buffer memory that a record needs. Raises InvalidRecordError if it is invalid."""
    # fast path for the most frequent types; all others are checked in full
    if (
        type(value) is bytes
        and (key is None or type(key) is bytes)
        and (headers or type(headers) is tuple or type(headers) is list)
        and (timestamp is None or (type(timestamp) is int and 0 <= timestamp <= _INT64_MAX))
        and (partition is None or (type(partition) is int and 0 <= partition <= _INT32_MAX))
        and (size := _plain_headers_size(headers) if headers else 0) >= 0
    ):
        return size + RECORD_OVERHEAD + len(value) + (len(key) if key else 0)
    check_record(value, key, headers, partition, timestamp)
    return record_size(value, key, headers)


def copy_headers(headers: Sequence[Header]) -> list[Header]:
    """Return the headers of a record that has to wait: its caller may modify the list after it was measured."""
    return [(name, content) for name, content in headers]


def _plain_headers_size(headers: Sequence[Header]) -> int:
    """Return the most bytes that headers take if they have the most frequent types and ASCII names, else -1."""
    if type(headers) is not list and type(headers) is not tuple:
        return -1
    size = 0
    for header in headers:
        if type(header) is not tuple or len(header) != 2:
            return -1
        name, content = header
        if type(name) is not str or not name.isascii():
            return -1
        size += HEADER_OVERHEAD + len(name)
        if type(content) is bytes:
            size += len(content)
        elif content is not None:
            return -1
    return size


def check_record(value: Any, key: Any, headers: Any, partition: Any, timestamp: Any) -> None:
    """Raise InvalidRecordError for the first invalid argument, with its name and value."""
    check_bytes("value", value)
    check_bytes("key", key)
    check_headers(headers)
    if partition is not None and not _is_int_up_to(partition, _INT32_MAX):
        raise InvalidRecordError("partition", partition, "None, or a partition's number")
    if timestamp is not None and not _is_int_up_to(timestamp, _INT64_MAX):
        hint = "; int(1000 * timestamp.timestamp())?" if isinstance(timestamp, datetime) else ""
        allowed = f"None, or a whole number of milliseconds since 1970{hint}"
        raise InvalidRecordError("timestamp", timestamp, allowed)


def check_bytes(name: str, content: Any) -> None:
    """Raise InvalidRecordError unless the argument `name` is bytes or None."""
    if content is not None and not isinstance(content, bytes):
        hint = f"; encode text first: {name}.encode()" if isinstance(content, str) else ""
        raise InvalidRecordError(name, _short(content), f"bytes or None{hint}")


def check_headers(headers: Any) -> None:
    """Raise InvalidRecordError unless `headers` is a sequence of pairs (str, bytes or None)."""
    if not isinstance(headers, Sequence) or isinstance(headers, (str, bytes)):
        raise InvalidRecordError("headers", _short(headers), HEADERS_RULE)
    for header in headers:
        _check_header(header)


def check_fields(record: Any) -> None:
    """Raise InvalidRecordError unless a record of `enqueue_all` is a tuple or list with six fields."""
    if not isinstance(record, (tuple, list)) or len(record) != _FIELDS:
        raise InvalidRecordError("record", _short(record), FIELDS_RULE)


def check_topic_name(topic: Any) -> None:
    """Raise InvalidRecordError unless Kafka allows the topic's name."""
    try:
        check_topic(topic)
    except ConfigError as error:
        raise InvalidRecordError("topic", _short(topic), error.allowed or "") from None


def check_records(records: Any) -> None:
    """Raise ConfigError unless the argument of `enqueue_all` is an iterable, and not text."""
    if not isinstance(records, Iterable) or isinstance(records, (str, bytes)):
        hint = "; not an async iterable" if hasattr(records, "__aiter__") else ""
        raise ConfigError("records", _short(records), f"an iterable of records, each {FIELDS_RULE}{hint}")


def check_sequence_id(initial: object) -> None:
    """Raise ConfigError unless it is None or a whole number, -1 or more."""
    if initial is not None and not (type(initial) is int and -1 <= initial <= _INT64_MAX):
        raise ConfigError("initial_sequence_id", initial, "None, or a whole number, -1 or more")


def _check_header(header: Any) -> None:
    if isinstance(header, (tuple, list)) and len(header) == 2:
        name, content = header
        if isinstance(name, str) and (content is None or isinstance(content, bytes)) and _is_text(name):
            return
    raise InvalidRecordError("headers", _short(header), HEADERS_RULE)


def _is_text(name: str) -> bool:
    """Return whether a name can be encoded: surrogates, as of a file name that is not UTF-8, cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_int_up_to(number: Any, high: int) -> bool:
    return type(number) is int and 0 <= number <= high


def _short(value: Any) -> Any:
    return value if len(repr(value)) <= 80 else f"{repr(value)[:80]}…"


# --- headers of delayed delivery and ordering keys ---------------------------------------------------------------------


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
        added.append((DELIVER_AT, b"%d" % millis_of("deliver_at", deliver_at)))
    elif deliver_after is not None:
        added.append((DELIVER_AT, b"%d" % millis_after("deliver_after", deliver_after, clock)))
    own = copy_headers(headers)
    for name, _ in added:
        if any(name == given for given, _ in own):
            argument = "ordering_key" if name == ORDERING_KEY else "deliver_at or deliver_after"
            raise InvalidRecordError(
                "headers", name, f"the header of {argument}: give the header or the argument"
            )
    return own + added
