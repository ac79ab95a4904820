"""Record batches in wire format: their headers read, their bytes not copied.

The layout is that of `DefaultRecordBatch.java` (magic 2). All knowledge of where a batch's fields are is in this file;
`records.py` reads and builds the records of a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import Final
from zlib import crc32

from asyncgroup.errors import CorruptRecordsError
from asyncgroup.wire.primitives import Buffer

__all__ = [
    "CODEC_AT",
    "CODEC_MASK",
    "CONTROL",
    "CRC_FROM",
    "DELETE_HORIZON",
    "HEADER_SIZE",
    "LOG_APPEND_TIME",
    "LOG_OVERHEAD",
    "MAGIC_AT",
    "MESSAGE_HEADER",
    "MIN_LENGTH",
    "MIN_RECORD_SIZE",
    "PREFIX_BYTES",
    "BatchView",
    "assign_offsets",
    "batch_at",
    "batch_sizes",
    "complete_size",
    "iter_batches",
    "pack_batch",
    "put_uncompressed",
    "stamped",
    "truncated_batch_size",
    "update_crc",
    "with_attributes",
    "with_payload",
    "with_producer",
]

LOG_OVERHEAD: Final = 12
"""Bytes of a batch that its length field does not include: base offset and length (`Records.LOG_OVERHEAD`)."""

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = _HEADER.size
"""Bytes before the records of a batch of magic 2 (`DefaultRecordBatch.RECORDS_OFFSET`)."""

MIN_RECORD_SIZE: Final = 7
"""Bytes of a record without key, value and headers: a length and six numbers."""

CODEC_MASK: Final = 0x07
"""The attributes' bits for the compression codec; the flags follow."""
LOG_APPEND_TIME: Final = 0x08
"""The timestamp type: set by the broker, otherwise CreateTime."""
_TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
"""A transaction marker or another control record (KIP-98)."""
DELETE_HORIZON: Final = 0x40
"""The base timestamp is a delete horizon (KIP-534)."""

_PREFIX: Final = struct.Struct(">qi")
PREFIX_BYTES: Final = LOG_OVERHEAD + 5
"""Bytes at the beginning of a batch that contain its length and magic."""
MIN_LENGTH: Final = {0: 14, 1: 22, 2: HEADER_SIZE - LOG_OVERHEAD}
"""Smallest valid value of the length field, by magic."""
MESSAGE_HEADER: Final = struct.Struct(">qiIBB")
"""A message of magic 0 or 1 up to its attributes; then follow the timestamp (magic 1), the key and the value."""
_MESSAGE_KEY_AT: Final = {0: 18, 1: 26}
_SAMPLED: Final = struct.Struct(">qiibIhi")
"""The header up to the last offset delta."""
_STAMPED: Final = struct.Struct(">qii")
"""Base offset, length and leader epoch."""
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8

_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
MAGIC_AT: Final = 16
"""Position of the magic byte, in all versions."""
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_ATTRIBUTES: Final = struct.Struct(">h")
CRC_FROM: Final = 21
"""The CRC covers everything from there on, which begins with the attributes."""
CODEC_AT: Final = CRC_FROM + 1
"""Position of the attributes' low byte."""
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_AT: Final = 35
_PRODUCER: Final = struct.Struct(">qhi")
"""Producer id, producer epoch and first sequence number."""
_PRODUCER_AT: Final = 43


class BatchView:
    """A complete record batch: the fields of its header, and its bytes. `batch_at` and `iter_batches` create it.

    It shows the header as it was when it was created. `data` may be a view of a larger buffer, which it keeps in memory.

    In magic 0 and 1 a batch is one message. A compressed one counts as one record, though it may contain any number; its
    `base_offset` is -1, unknown: its header has the last offset only.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "data",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size",
    )

    data: Buffer
    size: int
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, data: Buffer) -> None:
        self.data = data
        # one unpack for the whole header: a view is created for each batch that is read
        if data[MAGIC_AT] >= 2:
            (
                self.base_offset,
                length,
                self.leader_epoch,
                self.magic,
                self.crc,
                self.attributes,
                self.last_offset_delta,
                self.base_timestamp,
                self.max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.record_count,
            ) = _HEADER.unpack_from(data)
        else:
            offset, length, self.crc, self.magic, attributes = MESSAGE_HEADER.unpack_from(data)
            # the other bits have no meaning in old messages
            self.attributes = attributes & (CODEC_MASK | LOG_APPEND_TIME if self.magic else CODEC_MASK)
            # a compressed one has the offset of its last record here
            self.base_offset = -1 if self.codec else offset
            self.last_offset_delta = offset - self.base_offset
            self.leader_epoch = self.base_timestamp = self.max_timestamp = -1
            self.producer_id = self.producer_epoch = self.base_sequence = -1
            self.record_count = 1
        self.size = LOG_OVERHEAD + length

    def __repr__(self) -> str:
        return f"<BatchView {self.base_offset} to {self.last_offset}, {self.size} bytes, magic {self.magic}>"

    @property
    def is_base_offset_certain(self) -> bool:
        """Whether `base_offset` is that of the first record even if the batch is damaged.

        A damaged message of magic 0 or 1 may be a compressed one, whose first offset is unknown, even if it looks like another.
        """
        return self.magic >= 2

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_transactional(self) -> bool:
        """Whether it is part of a transaction (KIP-98)."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it is a control batch, with a transaction marker instead of data records (KIP-98)."""
        return bool(self.attributes & CONTROL)

    @property
    def codec(self) -> int:
        """The number of its compression codec, see `CODECS`."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """0 for CreateTime (set by the producer), 1 for LogAppendTime (set by the broker)."""
        return (self.attributes >> 3) & 1

    @property
    def delete_horizon(self) -> int | None:
        """The time in ms from which on compaction may remove its tombstones or its marker (KIP-534); None without one."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def is_dense(self) -> bool:
        """Whether it has a record for every offset from the base to the last offset; compaction leaves gaps."""
        return self.record_count == self.last_offset_delta + 1

    @property
    def payload(self) -> memoryview:
        """The bytes that are compressed, if it is: those after the header, or the value in magic 0 and 1."""
        if self.magic >= 2:
            return memoryview(self.data)[HEADER_SIZE:]
        # key and value follow each other, each with its length; -1 is null
        key_at = _MESSAGE_KEY_AT[self.magic] + _LENGTH.size
        (key_length,) = _LENGTH.unpack_from(self.data, key_at - _LENGTH.size)
        return memoryview(self.data)[key_at + max(key_length, 0) + _LENGTH.size :]

    def crc_is_valid(self) -> bool:
        """Return whether the CRC-32C, or the CRC-32 of magic 0 and 1, matches its bytes."""
        if self.magic < 2:
            return crc32(memoryview(self.data)[MAGIC_AT:]) == self.crc
        from asyncgroup.wire.compiled import crc32c

        return crc32c(memoryview(self.data)[CRC_FROM:]) == self.crc

    def set_producer(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Set the attributes for the producer id, producer epoch and first sequence number; the bytes stay as they are."""
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, epoch, sequence

    def header_only(self) -> BatchView:
        """Return the header of a batch of magic 2 without the records, so that they can be freed."""
        return BatchView(bytes(memoryview(self.data)[:HEADER_SIZE]))

    def copy(self) -> BatchView:
        """Return the batch with a copy of its bytes, so that the buffer it was in can be freed."""
        return BatchView(bytes(self.data))


def batch_at(buffer: Buffer, start: int = 0) -> BatchView | None:
    """Return the batch at `start`, or None if the buffer ends before the batch does.

    Raises CorruptRecordsError for an invalid length or magic.
    """
    left = len(buffer) - start
    if left < PREFIX_BYTES:
        return None
    base_offset, length = _PREFIX.unpack_from(buffer, start)
    magic = buffer[start + MAGIC_AT]
    # before the size is compared: a damaged length must not look like an incomplete batch
    if length < MIN_LENGTH.get(magic, length + 1):
        raise CorruptRecordsError(f"batch at offset {base_offset}: invalid length {length} or magic {magic}")
    size = LOG_OVERHEAD + length
    if left < size:
        return None
    # a batch that is the whole buffer needs no view of it
    return BatchView(buffer if size == len(buffer) else memoryview(buffer)[start : start + size])


def iter_batches(buffer: Buffer) -> Iterator[BatchView]:
    """Yield all complete batches in the buffer; an incomplete last batch is ignored (KIP-74). Raises as `batch_at`."""
    start = 0
    while (batch := batch_at(buffer, start)) is not None:
        yield batch
        start += batch.size


def complete_size(buffer: Buffer, start: int) -> int:
    """Return the size of the batch at `start` by its length alone; 0 if it is not complete."""
    left = len(buffer) - start
    if left < PREFIX_BYTES:
        return 0
    (length,) = _LENGTH.unpack_from(buffer, start + _LENGTH_AT)
    # without a look at the magic: the caller only cuts the buffer
    return LOG_OVERHEAD + length if 0 < length <= left - LOG_OVERHEAD else 0


def truncated_batch_size(buffer: Buffer) -> int | None:
    """Return the size of the first batch if the non-empty buffer ends before the batch does; None if it is complete.

    0 if the buffer is too short to contain the size. Also None for an invalid length or magic.
    """
    try:
        if batch_at(buffer) is not None:
            return None
    except CorruptRecordsError:
        return None
    # the size that a larger request has to ask for
    return 0 if len(buffer) < PREFIX_BYTES else LOG_OVERHEAD + _PREFIX.unpack_from(buffer)[1]


def batch_sizes(buffer: Buffer) -> Iterator[tuple[int, int]]:
    """Yield bytes and offsets of each batch whose header is in the buffer, which may end inside a batch."""
    start = 0
    while start + _SAMPLED.size <= len(buffer):
        _, length, _, magic, _, _, last_offset_delta = _SAMPLED.unpack_from(buffer, start)
        # damaged: what follows would be read as sizes
        if length <= 0:
            return
        yield LOG_OVERHEAD + length, last_offset_delta + 1 if magic >= 2 else 1
        start += LOG_OVERHEAD + length


# -- writing -------------------------------------------------------------------------------------------------


def assign_offsets(batch: bytearray | mmap, base_offset: int, leader_epoch: int, start: int = 0) -> None:
    """Write base offset and leader epoch into a batch in place, as a broker does on append; the CRC covers neither."""
    _BASE_OFFSET.pack_into(batch, start, base_offset)
    _LEADER_EPOCH.pack_into(batch, start + LOG_OVERHEAD, leader_epoch)


def stamped(batch: Buffer, base_offset: int, leader_epoch: int) -> list[Buffer]:
    """Return the bytes of a batch in pieces, with another base offset and leader epoch; the CRC covers neither."""
    (length,) = _LENGTH.unpack_from(batch, _LENGTH_AT)
    return [_STAMPED.pack(base_offset, length, leader_epoch), memoryview(batch)[_STAMPED.size :]]


def with_attributes(batch: BatchView, attributes: int, max_timestamp: int | None = None) -> BatchView:
    """Return a copy with other attributes, with a largest timestamp in ms if it is given, and with its CRC-32C."""
    data = bytearray(batch.data)
    # the CRC covers attributes and timestamp, so it comes last
    _ATTRIBUTES.pack_into(data, CRC_FROM, attributes)
    if max_timestamp is not None:
        _MAX_TIMESTAMP.pack_into(data, _MAX_TIMESTAMP_AT, max_timestamp)
    update_crc(data)
    return BatchView(bytes(data))


def with_payload(batch: BatchView, codec: int, payload: Buffer) -> bytearray:
    """Return the bytes of an uncompressed batch with its records compressed by a codec."""
    return _packed(
        batch,
        attributes=batch.attributes | codec,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        count=batch.record_count,
        payload=payload,
    )


def with_producer(batch: Buffer, producer_id: int, epoch: int, sequence: int) -> bytes:
    """Return a copy of a batch's bytes with another producer id, producer epoch and first sequence number."""
    data = bytearray(batch)
    put_producer(data, producer_id, epoch, sequence)
    return bytes(data)


def put_producer(batch: bytearray, producer_id: int, epoch: int, sequence: int) -> None:
    """Write producer id, producer epoch and first sequence number into a batch in place, and update its CRC-32C."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, epoch, sequence)
    update_crc(batch)


def update_crc(batch: bytearray) -> None:
    """Recompute the CRC-32C of a complete batch of magic 2; `batch` is exactly its bytes."""
    from asyncgroup.wire.compiled import crc32c

    # released at the end: a bytearray with an exported view cannot grow
    with memoryview(batch) as view, view[CRC_FROM:] as covered:
        _CRC.pack_into(batch, _CRC_AT, crc32c(covered))


def pack_batch(
    like: BatchView, *, attributes: int, base_timestamp: int, max_timestamp: int, count: int, payload: bytes
) -> bytes:
    """Return a batch with the offsets, leader epoch and producer of another one, and with other records."""
    return bytes(
        _packed(
            like,
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            count=count,
            payload=payload,
        )
    )


def _packed(
    like: BatchView, *, attributes: int, base_timestamp: int, max_timestamp: int, count: int, payload: Buffer
) -> bytearray:
    batch = bytearray(HEADER_SIZE)
    _HEADER.pack_into(
        batch,
        0,
        like.base_offset,
        # the length field counts neither itself nor the base offset
        HEADER_SIZE - LOG_OVERHEAD + len(payload),
        like.leader_epoch,
        like.magic,
        0,
        attributes,
        like.last_offset_delta,
        base_timestamp,
        max_timestamp,
        like.producer_id,
        like.producer_epoch,
        like.base_sequence,
        count,
    )
    batch += payload
    update_crc(batch)
    return batch


def put_uncompressed(out: bytearray, start: int, size: int) -> None:
    """Change the header at `start` to that of an uncompressed batch with `size` bytes of records; the CRC is not updated."""
    _LENGTH.pack_into(out, start + _LENGTH_AT, HEADER_SIZE - LOG_OVERHEAD + size)
    # only the codec: the flags stay
    out[start + CODEC_AT] &= ~CODEC_MASK
