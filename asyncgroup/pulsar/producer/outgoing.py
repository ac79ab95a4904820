"""OutgoingMessage: a message on its way to a broker, checked and measured.

A key is text on the wire, and routing hashes that text. A `str` is written as it is (Java's `key`). `bytes` that are valid
UTF-8 are written as this text: a key is then the same for `b"eggs"` and `"eggs"`, goes to the same partition, and reads the
same with every client, also with those that do not know the base64 flag (C++, Python). Other bytes are base64 with the
flag, as all keys of Java's `keyBytes` are; with `base64_keys` all `bytes` are, for topics that `keyBytes` writes to.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from asyncgroup.delivery_times import LAST_TIME, millis_after, millis_of
from asyncgroup.errors import InvalidRecordError
from asyncgroup.model import MillisClock
from asyncgroup.pulsar.send_receiver import SendReceiver
from asyncgroup.pulsar.transactions.txn_id import TxnId
from asyncgroup.pulsar.wire.keys import encode_key

__all__ = [
    "MESSAGE_OVERHEAD",
    "OutgoingMessage",
    "SendArguments",
    "key_text",
    "outgoing_message",
]

MESSAGE_OVERHEAD: Final = 16
"""Bytes that each message counts for in addition to its contents: about the smallest metadata of one in a batch."""

SendArguments: TypeAlias = tuple[Any, Any, Any, Any, Any, Any, Any, Any]
"""Those of `send`, in its order, not checked."""

_NO_PROPERTIES: Final[dict[str, str]] = {}
_PROPERTIES: Final = "a mapping of str to str"


class OutgoingMessage:
    """A message that is valid. Times are in ms, 0 and None without; `sequence_id` is None until it is accepted."""

    __slots__ = (
        "deliver_at",
        "event_time",
        "is_base64",
        "key",
        "ordering_key",
        "properties",
        "receiver",
        "sequence_id",
        "size",
        "transaction",
        "value",
    )

    def __init__(
        self,
        value: bytes | None,
        size: int,
        key: str | None = None,
        is_base64: bool = False,
        properties: Mapping[str, str] = _NO_PROPERTIES,
        ordering_key: bytes | None = None,
        event_time: int = 0,
        deliver_at: int | None = None,
        sequence_id: int | None = None,
        receiver: SendReceiver | None = None,
    ) -> None:
        self.value = value
        self.size = size
        """Bytes that it counts for in batches and limits."""
        self.key = key
        """The text on the wire."""
        self.is_base64 = is_base64
        self.properties = properties
        self.ordering_key = ordering_key
        self.event_time = event_time
        self.deliver_at = deliver_at
        self.sequence_id = sequence_id
        self.receiver = receiver
        """None if no caller waits for the result."""
        self.transaction: TxnId | None = None
        """The transaction that it is a part of."""

    def __repr__(self) -> str:
        return f"<OutgoingMessage {self.sequence_id}: {self.size} bytes>"


def outgoing_message(
    value: Any,
    key: bytes | str | None,
    properties: Any,
    ordering_key: bytes | str | None,
    event_time: datetime | int | None,
    deliver_at: datetime | int | None,
    deliver_after: float | None,
    sequence_id: int | None,
    clock: MillisClock,
    *,
    base64_keys: bool = False,
) -> OutgoingMessage:
    """Return a message with these contents. Raises InvalidRecordError for the first argument that is invalid."""
    if value is None:
        size = MESSAGE_OVERHEAD
    elif isinstance(value, bytes):
        size = MESSAGE_OVERHEAD + len(value)
    else:
        hint = "; encode text first: value.encode()" if isinstance(value, str) else ""
        raise InvalidRecordError("value", _short(value), f"bytes or None{hint}")
    message = OutgoingMessage(value, size)
    if key is not None:
        message.key, message.is_base64 = key_text(key, base64_keys=base64_keys)
        message.size += len(message.key)
    if properties:
        message.properties = own = _checked_properties(properties)
        message.size += sum(map(len, own)) + sum(map(len, own.values())) + MESSAGE_OVERHEAD * len(own)
    elif properties is not None and not isinstance(properties, Mapping):
        raise InvalidRecordError("properties", _short(properties), _PROPERTIES)
    if ordering_key is not None:
        message.ordering_key = _ordering_key(ordering_key)
        message.size += len(message.ordering_key)
    if event_time is not None:
        message.event_time = millis_of("event_time", event_time)
    if deliver_at is not None or deliver_after is not None:
        message.deliver_at = _delivery_time(deliver_at, deliver_after, clock)
    if sequence_id is not None:
        if type(sequence_id) is not int or not 0 <= sequence_id <= LAST_TIME:
            raise InvalidRecordError(
                "sequence_id", sequence_id, "None, or a whole number of at most 63 bits, 0 or more"
            )
        message.sequence_id = sequence_id
    return message


def key_text(key: bytes | str, *, base64_keys: bool = False) -> tuple[str, bool]:
    """Return the text of a key on the wire, and whether it is base64. Raises InvalidRecordError for other types."""
    if isinstance(key, str):
        _check_text("key", key)
    elif not isinstance(key, bytes):
        raise InvalidRecordError("key", _short(key), "bytes, str or None")
    return encode_key(key, base64_keys=base64_keys)


def _ordering_key(key: Any) -> bytes:
    if isinstance(key, str):
        _check_text("ordering_key", key)
        return key.encode("utf-8", "surrogateescape")
    if not isinstance(key, bytes):
        raise InvalidRecordError("ordering_key", _short(key), "bytes, str or None")
    return key


def _checked_properties(properties: Any) -> dict[str, str]:
    """Return a copy: the caller may modify its mapping before the batch is encoded."""
    if not isinstance(properties, Mapping):
        raise InvalidRecordError("properties", _short(properties), _PROPERTIES)
    own = dict(properties)
    for name, text in own.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InvalidRecordError("properties", _short({name: text}), _PROPERTIES)
        _check_text("properties", name)
        _check_text("properties", text)
    return own


def _check_text(argument: str, text: str) -> None:
    """Raise InvalidRecordError for text that is not Unicode; bytes that a client read as surrogates are written back."""
    if not text.isascii():
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidRecordError(argument, _short(text), "text that can be encoded as UTF-8") from None


def _delivery_time(deliver_at: Any, deliver_after: Any, clock: MillisClock) -> int:
    if deliver_at is None:
        return millis_after("deliver_after", deliver_after, clock)
    if deliver_after is not None:
        raise InvalidRecordError(
            "deliver_after", deliver_after, f"None with deliver_at={deliver_at!r}: give one of them"
        )
    return millis_of("deliver_at", deliver_at)


def _short(value: Any) -> Any:
    return value if len(repr(value)) <= 80 else f"{repr(value)[:80]}…"
