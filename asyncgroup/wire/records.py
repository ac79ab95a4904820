"""Record batches: read, check and build them, with aiokafka's compiled record code (`compiled.py`).

The header layout is that of `DefaultRecordBatch.java` (magic 2); `legacy.py` reads the older message sets. Compressed
records are decompressed here, up to a limit, because aiokafka's reader has none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from asyncgroup.errors import AsyncGroupError, ConfigError, CorruptRecordsError, UnsupportedVersionError
from asyncgroup.model import Header, Record
from asyncgroup.wire.decompression import CODECS, MAX_DECOMPRESSED, decompress, may_exceed
from asyncgroup.wire.legacy import MIN_SIZE, read_message_set
from asyncgroup.wire.primitives import Buffer

__all__ = [
    "CODECS",
    "MAX_DECOMPRESSED",
    "BatchBuilder",
    "BatchHeader",
    "assign_offsets",
    "check_batch",
    "crc_is_valid",
    "decode_batch",
    "is_large_compressed",
    "iter_batch_headers",
    "payload",
    "raw_records",
    "read_batch",
    "read_batch_header",
    "translate_error",
    "truncated_batch_size",
    "update_crc",
]

_ZSTD: Final = CODECS["zstd"]

LOG_OVERHEAD: Final = 12
"""Bytes of a batch that its length field does not include: base offset and length (`Records.LOG_OVERHEAD`)."""

_PREFIX = struct.Struct(">qi")
_HEADER = struct.Struct(">qiibIhiqqqhii")
_MIN_LENGTH: Final = {**MIN_SIZE, 2: _HEADER.size - LOG_OVERHEAD}
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_CRC_POSITION: Final = 17
_ATTRIBUTES: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">i")
_LENGTH_POSITION: Final = 8
_CODEC_MASK: Final = 0x07
_MIN_RECORD_SIZE: Final = 7
"""Bytes of a record without key, value and headers: a length and six numbers."""

_CRC_FROM: Final = 21
"""Position of the attributes: the CRC covers everything from there on."""


class BatchHeader(NamedTuple):
    """The header of a record batch of magic 2; `start` and `size` are its position and bytes in the buffer.

    For magic 0 and 1, where a "batch" is one message, only `base_offset`, `magic`, `start`, `size`, `codec` and
    `timestamp_type` are valid; the `base_offset` of a compressed message is the offset of its last inner message.
    """

    start: int
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
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        """Whether it is a control batch, with a transaction marker instead of data records (KIP-98)."""
        return bool(self.attributes & 0x20)

    @property
    def codec(self) -> int:
        """The number of its compression codec, see `CODECS`."""
        return self.attributes & 0x07

    @property
    def timestamp_type(self) -> int:
        """0 for CreateTime (set by the producer), 1 for LogAppendTime (set by the broker)."""
        return (self.attributes >> 3) & 1


def read_batch_header(buffer: Buffer, start: int = 0) -> BatchHeader | None:
    """Return the header of the batch at `start`, or None if the buffer ends before the batch does.

    Raises CorruptRecordsError for an invalid length or magic.
    """
    if len(buffer) - start < LOG_OVERHEAD + 5:
        return None
    base_offset, length = _PREFIX.unpack_from(buffer, start)
    magic = buffer[start + 16]
    if length < _MIN_LENGTH.get(magic, length + 1):
        raise CorruptRecordsError(f"batch at offset {base_offset}: invalid length {length} or magic {magic}")
    size = LOG_OVERHEAD + length
    if len(buffer) - start < size:
        return None
    if magic < 2:
        attributes = buffer[start + 17] & 0x0F
        return BatchHeader(start, size, base_offset, -1, magic, 0, attributes, 0, -1, -1, -1, -1, -1, 1)
    base, _, *rest = _HEADER.unpack_from(buffer, start)
    return BatchHeader(start, size, base, *rest)


def iter_batch_headers(buffer: Buffer) -> Iterator[BatchHeader]:
    """Yield the headers of all complete batches in the buffer; an incomplete last batch is ignored (KIP-74)."""
    start = 0
    while (header := read_batch_header(buffer, start)) is not None:
        yield header
        start += header.size


def truncated_batch_size(buffer: Buffer) -> int | None:
    """Return the size of the first batch if the non-empty buffer ends before the batch does; None if it is complete.

    0 if the buffer is too short to contain the size. Also None for an invalid length or magic.
    """
    try:
        if read_batch_header(buffer) is not None:
            return None
    except CorruptRecordsError:
        return None
    return 0 if len(buffer) < LOG_OVERHEAD + 5 else LOG_OVERHEAD + _PREFIX.unpack_from(buffer)[1]


def crc_is_valid(batch: Buffer) -> bool:
    """Whether the CRC-32C of a complete batch of magic 2 matches its bytes; `batch` is exactly those bytes."""
    return len(batch) >= _HEADER.size and _crc_matches(batch, _CRC.unpack_from(batch, _CRC_POSITION)[0])


def _crc_matches(batch: Buffer, crc: int) -> bool:
    from asyncgroup.wire.compiled import crc32c

    return crc32c(memoryview(batch)[_CRC_FROM:]) == crc


def check_batch(
    topic: str, partition: int, batch: Buffer, header: BatchHeader, check_crc: bool = True
) -> None:
    """Check a batch of magic 2 before it is read: size, CRC (with `check_crc`) and codec.

    Raises as `decode_batch` does.
    """
    if len(batch) != header.size:  # aiokafka's compiled reader trusts the size in the header
        text = f"the buffer has {len(batch)} bytes, the batch {header.size}"
        raise CorruptRecordsError(f"{_location(topic, partition, header)}: {text}")
    if check_crc and not _crc_matches(batch, header.crc):
        text = "the CRC of the batch does not match its bytes"
        raise CorruptRecordsError(f"{_location(topic, partition, header)}: {text}")
    if header.codec >= len(CODECS):
        text = f"unknown compression codec {header.codec:#04x}"
        raise UnsupportedVersionError(f"{_location(topic, partition, header)}: {text}")


def payload(batch: Buffer) -> memoryview:
    """Return the bytes of a batch of magic 2 after its header: the records, compressed or not."""
    return memoryview(batch)[_HEADER.size :]


def is_large_compressed(batch: Buffer, header: BatchHeader, limit: int) -> bool:
    """Whether a batch of magic 2 is compressed and may decompress to more than `limit` bytes.

    Such a batch should be decoded before it is passed to the application.
    """
    return header.codec != 0 and may_exceed(header.codec, payload(batch), limit)


def read_batch(
    topic: str,
    partition: int,
    batch: Buffer,
    header: BatchHeader,
    limit: int = MAX_DECOMPRESSED,
    on_error: Callable[[], None] | None = None,
) -> Iterator[Record]:
    """Yield the records of a batch of magic 2 that `check_batch` has accepted, each created on demand.

    Raises as `decode_batch` does, possibly in the middle of the iteration; `on_error` is called before that.
    """
    epoch, kind, make = header.leader_epoch, header.timestamp_type, object.__new__
    try:
        for raw in raw_records(batch, header, limit)[0]:
            record = make(Record)  # without __init__, whose call would take a third of the decoding time
            record.topic = topic
            record.partition = partition
            record.offset = raw.offset
            record.timestamp = raw.timestamp
            record.timestamp_type = kind
            record.key = raw.key
            record.value = raw.value
            record.headers = raw.headers or ()  # () saves an empty list per record
            record.leader_epoch = epoch
            yield record
    except Exception as error:  # decompressors raise errors without a common base class
        if on_error is not None:
            on_error()
        raise translate_error(error, topic, partition, header) from error


def raw_records(
    batch: Buffer, header: BatchHeader, limit: int = MAX_DECOMPRESSED
) -> tuple[Iterator[Any], int]:
    """Return aiokafka's compiled reader of a batch that `check_batch` has accepted, and the batch's uncompressed size.

    Each record is an object with `offset`, `timestamp`, `key`, `value` and `headers`. Errors of the decompressors and of
    the reader are raised as they are, possibly in the middle of the iteration: see `translate_error`.
    """
    from asyncgroup.wire.compiled import DefaultRecordBatch

    plain = _uncompressed(batch, header, limit) if header.codec else batch
    return iter(DefaultRecordBatch(plain)), len(plain)


def _uncompressed(batch: Buffer, header: BatchHeader, limit: int) -> bytearray:
    """Return the batch with its records decompressed; the CRC is not updated, because it is checked before."""
    out = decompress(header.codec, payload(batch), limit, _HEADER.size)
    if header.record_count > (len(out) - _HEADER.size) // _MIN_RECORD_SIZE:
        text = f"{len(out) - _HEADER.size} bytes cannot contain {header.record_count} records"
        raise CorruptRecordsError(text)
    out[: _HEADER.size] = batch[: _HEADER.size]
    _LENGTH.pack_into(out, _LENGTH_POSITION, len(out) - LOG_OVERHEAD)
    _ATTRIBUTES.pack_into(out, _CRC_FROM, header.attributes & ~_CODEC_MASK)
    return out


def decode_batch(
    topic: str,
    partition: int,
    batch: Buffer,
    header: BatchHeader,
    check_crc: bool = True,
    limit: int = MAX_DECOMPRESSED,
) -> list[Record]:
    """Return the records of one complete batch (`batch` is exactly its bytes); the caller skips control batches.

    `limit` is the largest allowed decompressed size in bytes. Raises CorruptRecordsError, with topic, partition and base
    offset, for a larger batch and for a wrong CRC or content; UnsupportedVersionError for an unknown codec.
    """
    if header.magic >= 2:
        check_batch(topic, partition, batch, header, check_crc)
        return list(read_batch(topic, partition, batch, header, limit))
    try:
        return _decode_legacy(topic, partition, bytes(batch), check_crc, limit)
    except Exception as error:
        raise translate_error(error, topic, partition, header) from error


def _location(topic: str, partition: int, header: BatchHeader) -> str:
    return f"{topic}-{partition} at offset {header.base_offset}"


def translate_error(error: Exception, topic: str, partition: int, header: BatchHeader) -> AsyncGroupError:
    """Return the error to raise for an error while reading a batch, with topic, partition and offset."""
    from asyncgroup.wire.compiled import UnsupportedCodecError

    place = _location(topic, partition, header)
    if isinstance(error, UnsupportedCodecError):
        return UnsupportedVersionError(f"{place}: {error}")
    if isinstance(error, AsyncGroupError):
        return type(error)(f"{place}: {error}")
    return CorruptRecordsError(f"{place}: {type(error).__name__}: {error}")


def _decode_legacy(topic: str, partition: int, data: bytes, check_crc: bool, limit: int) -> list[Record]:
    def decompress_value(codec: int, compressed: bytes) -> bytes:
        if codec == _ZSTD:
            raise UnsupportedVersionError(f"compression codec {codec} is not supported in magic 0 and 1")
        return bytes(decompress(codec, compressed, limit))

    return [
        Record(topic, partition, m.offset, m.timestamp, m.timestamp_type, m.key, m.value)
        for m in read_message_set(data, decompress_value, check_crc=check_crc)
    ]


def assign_offsets(batch: bytearray, base_offset: int, leader_epoch: int, start: int = 0) -> None:
    """Write base offset and leader epoch into a batch in place, as a broker does on append; the CRC covers neither."""
    _BASE_OFFSET.pack_into(batch, start, base_offset)
    _LEADER_EPOCH.pack_into(batch, start + LOG_OVERHEAD, leader_epoch)


def update_crc(batch: bytearray) -> None:
    """Recompute the CRC-32C of a complete batch of magic 2; `batch` is exactly its bytes."""
    from asyncgroup.wire.compiled import crc32c

    with memoryview(batch) as view, view[_CRC_FROM:] as covered:
        _CRC.pack_into(batch, _CRC_POSITION, crc32c(covered))


class BatchBuilder:
    """Builds one record batch of magic 2.

    `codec` is a name in `CODECS` (otherwise ConfigError), `size_limit` the largest uncompressed size in bytes, which only
    the first record may exceed. A batch must have at least one record. `count` is the number of records so far.
    """

    __slots__ = ("_builder", "_without_timestamps", "count")

    def __init__(
        self,
        codec: str = "none",
        size_limit: int = 1 << 20,
        *,
        transactional: bool = False,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
    ) -> None:
        if codec not in CODECS:
            raise ConfigError("codec", codec, f"one of {', '.join(CODECS)}")
        from asyncgroup.wire.compiled import DefaultRecordBatchBuilder

        self._builder = DefaultRecordBatchBuilder(
            2, CODECS[codec], int(transactional), producer_id, producer_epoch, base_sequence, size_limit
        )
        self._without_timestamps = False
        self.count = 0

    def append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
    ) -> bool:
        """Add a record with a timestamp in ms (-1: none); return False if the batch is full.

        If the first record has no timestamp, the batch also counts as full for records that have one.
        """
        if self.count == 0:
            self._without_timestamps = timestamp == -1
        elif self._without_timestamps and timestamp != -1:
            return False  # aiokafka would use this timestamp for the first record too
        if self._builder.append(self.count, timestamp, key, value, list(headers)) is None:
            return False
        self.count += 1
        return True

    @property
    def size(self) -> int:
        """Bytes so far, uncompressed."""
        return int(self._builder.size())

    def build(self) -> bytes:
        """Return the batch's bytes, with base offset 0; may be called once.

        Raises UnsupportedVersionError if the library of the codec is not installed.
        """
        from asyncgroup.wire.compiled import UnsupportedCodecError

        try:
            return bytes(self._builder.build())
        except UnsupportedCodecError as error:
            raise UnsupportedVersionError(str(error)) from error
