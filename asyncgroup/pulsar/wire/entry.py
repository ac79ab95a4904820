"""Entry: what the broker pushes at once, and the messages in it, which decode their metadata when they are asked for it.

An entry is a message, a batch of messages or a chunk. Of a batch only the bounds of its messages are read on arrival.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from asyncgroup.errors import CorruptRecordsError, DecodeError, UnsupportedVersionError
from asyncgroup.pulsar.wire.ack_set import bits_of, full_set
from asyncgroup.pulsar.wire.commands import CommandMessage
from asyncgroup.pulsar.wire.compression import decompress_body
from asyncgroup.pulsar.wire.frames import payload_bounds
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.metadata import (
    BrokerEntryMetadata,
    MessageMetadata,
    SingleMessageMetadata,
    payload_size_in,
)

__all__ = ["Entry", "EntryError", "EntryMessage", "ValidationError", "decode_entry"]

_U32: Final = struct.Struct(">I")


class ValidationError(NamedTuple):
    """Why an entry cannot be read: the number that its Ack has, and the reason."""

    number: int
    reason: str


UNCOMPRESSED_SIZE_CORRUPTION, DECOMPRESSION_ERROR, CHECKSUM_MISMATCH, BATCH_ERROR, DECRYPTION_ERROR = range(5)
"""The values of `CommandAck.ValidationError`."""


class EntryError(DecodeError):
    """An entry cannot be read; `found` says what its Ack has."""

    def __init__(self, found: ValidationError) -> None:
        self.found = found
        super().__init__(found.reason)


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
        bounds: list[tuple[int, int, int]] | None,
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
        words = pushed.ack_set
        self.unacked = bits_of(words) & full_set(self.count) if words else full_set(self.count)
        """The indexes that are not acknowledged, as an integer of bits."""

    def __repr__(self) -> str:
        return f"<Entry {self.id}: {self.count} messages>"

    @property
    def is_batch(self) -> bool:
        """Whether the entry has the format of a batch, also with one message."""
        return self.bounds is not None

    def messages(self) -> Iterator[EntryMessage]:
        """Yield the messages that are neither acknowledged nor compacted."""
        compacted = self.metadata.compacted_batch_indexes
        for index in range(self.count):
            if self.unacked >> index & 1 and index not in compacted:
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
        return entry.id if entry.bounds is None else entry.id._replace(batch_index=self.index)

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
        own = self.own
        text = own.partition_key
        if text is None or own.null_partition_key:
            return None
        return decode_key(text, is_base64=own.partition_key_b64_encoded)

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties; empty without any."""
        return self.own.properties

    @property
    def sequence_id(self) -> int:
        """The number that its producer gave it."""
        own = self.own.sequence_id
        return own if own is not None else self.entry.metadata.sequence_id + self.index

    @property
    def position(self) -> int | None:
        """Its index in the topic, if the broker counts (PIP-70); the broker counts to the entry's last message."""
        broker = self.entry.broker
        if broker is None or broker.index is None:
            return None
        return broker.index - self.entry.count + 1 + self.index


def decode_key(text: str, *, is_base64: bool) -> bytes:
    """Return the bytes of a key; text that is no base64 although it should be is taken as it is."""
    data = text.encode("utf-8", "surrogateescape")
    if is_base64:
        try:
            return b64decode(data, validate=True)
        except Base64Error:
            return data
    return data


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
        raise EntryError(ValidationError(CHECKSUM_MISMATCH, str(error))) from error
    body, bounds = _open_body(metadata, memoryview(frame)[parts.payload :], limit)
    return Entry(pushed, partition, metadata, broker, body, bounds)


def _open_body(
    metadata: MessageMetadata, payload: memoryview, limit: int
) -> tuple[bytes, list[tuple[int, int, int]] | None]:
    """Return the body and the bounds of a batch. A chunk stays compressed: its whole value is decompressed later."""
    if metadata.num_chunks_from_msg is not None and metadata.num_chunks_from_msg > 1:
        return bytes(payload), None
    if metadata.encryption_keys:
        raise EntryError(
            ValidationError(DECRYPTION_ERROR, "the message is encrypted, which this client does not read")
        )
    try:
        body = decompress_body(metadata.compression, payload, metadata.uncompressed_size, limit)
    except (CorruptRecordsError, UnsupportedVersionError) as error:
        raise EntryError(ValidationError(DECOMPRESSION_ERROR, str(error))) from error
    if metadata.num_messages_in_batch is None:
        return body, None
    try:
        return body, _bounds(body, metadata.num_messages_in_batch)
    except (DecodeError, IndexError, struct.error) as error:
        raise EntryError(
            ValidationError(BATCH_ERROR, str(error) or "the batch ends within a message")
        ) from error


def _bounds(body: bytes, count: int) -> list[tuple[int, int, int]]:
    if not 0 < count <= len(body) // 4:
        raise DecodeError(f"a batch of {len(body)} bytes cannot have {count} messages")
    found, at, end = [], 0, len(body)
    unpack = _U32.unpack_from
    for _ in range(count):
        (size,) = unpack(body, at)
        start = at + 4
        payload = start + size
        if payload > end:
            raise DecodeError("the metadata of a message ends after its batch")
        at = payload + payload_size_in(body, start, payload)
        if at > end:
            raise DecodeError("a message ends after its batch")
        found.append((start, payload, at))
    return found
