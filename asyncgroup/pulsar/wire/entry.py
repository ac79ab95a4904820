"""Entry: what the broker pushes at once, and the messages in it, which decode their metadata when they are asked for it.

An entry is a message, a batch of messages or a chunk. Of a batch only the bounds of its messages are read on arrival.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.errors import CorruptRecordsError, DecodeError, UnsupportedVersionError
from asyncgroup.pulsar.wire.ack_set import bits_of, full_set, indexes_of, set_of
from asyncgroup.pulsar.wire.commands import CommandMessage
from asyncgroup.pulsar.wire.compression import decompress_body
from asyncgroup.pulsar.wire.frames import payload_bounds
from asyncgroup.pulsar.wire.keys import decode_key
from asyncgroup.pulsar.wire.message_id import BatchMessageId, MessageId
from asyncgroup.pulsar.wire.metadata import (
    BrokerEntryMetadata,
    MessageMetadata,
    SingleMessageMetadata,
    payload_size_in,
)

__all__ = ["Entry", "EntryError", "EntryMessage", "ValidationError", "decode_entry"]

_U32: Final = struct.Struct(">I")

_SMALLEST_MESSAGE: Final = 6
"""Bytes of a message in a batch: the size of its metadata, and in them its payload size."""

_COMPACTED: Final = b"\x20\x01"
"""What metadata with `compacted_out` contain."""


class ValidationError(NamedTuple):
    """Why an entry cannot be read: the number that its Ack has, and the reason."""

    number: int
    reason: str


UNCOMPRESSED_SIZE_CORRUPTION, DECOMPRESSION_ERROR, CHECKSUM_MISMATCH, BATCH_ERROR, DECRYPTION_ERROR = range(5)
"""The values of `CommandAck.ValidationError`."""


class EntryError(DecodeError):
    """An entry cannot be read; `found` says what its Ack has, `count` how many permits it has used."""

    def __init__(self, found: ValidationError, count: int = 1) -> None:
        self.found = found
        self.count = count
        """The number of messages that its metadata has, 1 if the metadata cannot be read."""
        super().__init__(found.reason)


_Bounds: TypeAlias = list[tuple[int, int, int]]


class Entry:
    """An entry as it was pushed, decompressed."""

    __slots__ = (
        "body",
        "bounds",
        "broker",
        "count",
        "epoch",
        "id",
        "metadata",
        "present",
        "redelivery_count",
        "unacked",
    )

    def __init__(
        self,
        pushed: CommandMessage,
        partition: int,
        metadata: MessageMetadata,
        broker: BrokerEntryMetadata | None,
        body: bytes,
        bounds: _Bounds | None,
        present: int = 1,
    ) -> None:
        self.id = MessageId.of(pushed.message_id, partition)
        """The id of the whole entry: no batch index."""
        self.epoch = pushed.consumer_epoch
        self.redelivery_count = pushed.redelivery_count
        self.metadata = metadata
        self.broker = broker
        self.body = body
        self.bounds = bounds
        """Of a batch: where the metadata of each message begins, where its payload begins, and where it ends."""
        self.count = 1 if bounds is None else len(bounds)
        """Number of messages, which is what the entry costs in permits."""
        self.present = present
        """The indexes that are not compacted, as an integer of bits."""
        words = pushed.ack_set
        self.unacked = bits_of(words) & present if words else present
        """The indexes that are neither acknowledged nor compacted, as an integer of bits."""

    def __repr__(self) -> str:
        return f"<Entry {self.id}: {self.count} messages>"

    @property
    def is_batch(self) -> bool:
        """Whether the entry has the format of a batch, also with one message."""
        return self.bounds is not None

    def messages(self) -> Iterator[EntryMessage]:
        """Yield the messages that are neither acknowledged nor compacted."""
        for index in indexes_of(self.unacked):
            yield EntryMessage(self, index)


class EntryMessage:
    """One message of an entry. Its metadata is decoded when it is first asked for."""

    __slots__ = ("_single", "entry", "index")

    def __init__(self, entry: Entry, index: int) -> None:
        self.entry = entry
        self.index = index
        self._single: SingleMessageMetadata | MessageMetadata | None = None

    def __repr__(self) -> str:
        return f"<EntryMessage {self.id}>"

    @property
    def id(self) -> MessageId:
        """Its id."""
        entry = self.entry
        whole = entry.id
        if entry.bounds is None:
            return whole
        return BatchMessageId(whole.ledger_id, whole.entry_id, whole.partition, self.index, entry.count)

    @property
    def own(self) -> SingleMessageMetadata | MessageMetadata:
        """What belongs to this message alone: key, properties, event time. Raises DecodeError."""
        found = self._single
        if found is None:
            entry = self.entry
            if entry.bounds is None:
                found = entry.metadata
            else:
                start, end, _ = entry.bounds[self.index]
                found = SingleMessageMetadata.decode(entry.body, start, end)
            self._single = found
        return found

    @property
    def value(self) -> bytes | None:
        """The payload; None for a null value."""
        entry = self.entry
        if entry.bounds is None:
            return None if entry.metadata.null_value else entry.body
        _, start, end = entry.bounds[self.index]
        if start == end and self.own.null_value:
            return None
        return entry.body[start:end]

    @property
    def key(self) -> bytes | None:
        """The key's bytes; None without a key."""
        own = self._single or self.own
        text = own.partition_key
        if text is None or own.null_partition_key:
            return None
        return decode_key(text, is_base64=own.partition_key_b64_encoded)

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties; empty without any."""
        return (self._single or self.own).properties

    @property
    def sequence_id(self) -> int:
        """The number that its producer gave it."""
        own = (self._single or self.own).sequence_id
        return own if own is not None else self.entry.metadata.sequence_id + self.index

    @property
    def position(self) -> int | None:
        """Its index in the topic, if the broker counts (PIP-70); the broker counts to the entry's last message."""
        broker = self.entry.broker
        if broker is None or broker.index is None:
            return None
        return broker.index - self.entry.count + 1 + self.index


def decode_entry(
    pushed: CommandMessage,
    frame: bytes | bytearray,
    at: int,
    partition: int,
    limit: int,
    *,
    check: bool = True,
) -> Entry:
    """Return the entry of a MESSAGE frame whose command ends at `at`.

    `limit` is the largest body in bytes, uncompressed. Raises EntryError.
    """
    try:
        parts = payload_bounds(frame, at, check=check)
        metadata = MessageMetadata.decode(frame, *parts.metadata)
        broker = (
            None
            if parts.broker_metadata is None
            else BrokerEntryMetadata.decode(frame, *parts.broker_metadata)
        )
    except DecodeError as error:
        raise EntryError(ValidationError(CHECKSUM_MISMATCH, str(error)), _count_in(frame, at)) from error
    found = _open_body(metadata, frame, parts.payload, limit)
    if isinstance(found, ValidationError):
        raise EntryError(found, _count(metadata))
    return Entry(pushed, partition, metadata, broker, *found)


def _count_in(frame: bytes | bytearray, at: int) -> int:
    """Return the number of messages in an entry that cannot be read, as the broker has probably counted them."""
    try:
        return _count(MessageMetadata.decode(frame, *payload_bounds(frame, at, check=False).metadata))
    except DecodeError:
        return 1


def _count(metadata: MessageMetadata) -> int:
    return max(1, metadata.num_messages_in_batch or 1)


def _open_body(
    metadata: MessageMetadata, frame: bytes | bytearray, at: int, limit: int
) -> tuple[bytes, _Bounds | None, int] | ValidationError:
    """Return the body, and of a batch the bounds of its messages and the indexes that are not compacted.

    A chunk stays compressed: its whole value is decompressed later.
    """
    if metadata.encryption_keys:
        return ValidationError(DECRYPTION_ERROR, "the message is encrypted, which this client does not read")
    if metadata.num_chunks_from_msg is not None and metadata.num_chunks_from_msg > 1:
        return bytes(memoryview(frame)[at:]), None, 1
    size = metadata.uncompressed_size
    if metadata.compression and size > limit:
        return ValidationError(
            UNCOMPRESSED_SIZE_CORRUPTION,
            f"a message of {size} bytes uncompressed is larger than the limit of {limit}",
        )
    try:
        body = decompress_body(metadata.compression, memoryview(frame)[at:], size, limit)
    except (CorruptRecordsError, UnsupportedVersionError) as error:
        return ValidationError(DECOMPRESSION_ERROR, str(error))
    if metadata.num_messages_in_batch is None:
        return body, None, 1
    try:
        bounds, empty = _bounds(body, metadata.num_messages_in_batch)
        return body, bounds, _present(metadata, body, bounds, empty)
    except DecodeError as error:
        return ValidationError(BATCH_ERROR, str(error))
    except (IndexError, struct.error):
        return ValidationError(BATCH_ERROR, "the batch ends within a message")


def _bounds(body: bytes, count: int) -> tuple[_Bounds, list[int]]:
    """Return the bounds of the messages, and which of them have no payload."""
    if not 0 < count <= len(body) // _SMALLEST_MESSAGE:
        raise DecodeError(f"a batch of {len(body)} bytes cannot have {count} messages")
    found: _Bounds = []
    empty = []
    at, end = 0, len(body)
    unpack = _U32.unpack_from
    for index in range(count):
        (size,) = unpack(body, at)
        start = at + 4
        payload = start + size
        if payload > end:
            raise DecodeError("the metadata of a message ends after its batch")
        at = payload + payload_size_in(body, start, payload)
        if at > end:
            raise DecodeError("a message ends after its batch")
        if at == payload:
            empty.append(index)
        found.append((start, payload, at))
    return found, empty


def _present(metadata: MessageMetadata, body: bytes, bounds: _Bounds, empty: list[int]) -> int:
    """Return the indexes that compaction has kept: Pulsar 4.1 and later list them, releases before mark the others."""
    kept = metadata.compacted_batch_indexes
    if kept:
        return set_of(kept, len(bounds))
    present = full_set(len(bounds))
    gone = [index for index in empty if _is_compacted(body, *bounds[index])]
    return present & ~set_of(gone, len(bounds)) if gone else present


def _is_compacted(body: bytes, start: int, end: int, _: int) -> bool:
    """Return whether a message without payload was compacted; others are null or empty values."""
    return _COMPACTED in body[start:end] and SingleMessageMetadata.decode(body, start, end).compacted_out
