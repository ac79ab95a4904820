"""Record batches: reading, checking and building them, on aiokafka's compiled record code.

This is the only module that imports aiokafka; a contract test names every symbol used here. The header layout
is that of `DefaultRecordBatch.java` (magic 2); `legacy.py` reads the older message sets. What is compressed is
decompressed here, up to a limit, before aiokafka's reader sees it: the reader has no limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.errors import UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from asyncgroup.errors import AsyncGroupError, ConfigError, CorruptRecordsError, UnsupportedVersionError
from asyncgroup.model import Header, Record
from asyncgroup.wire.checksum import fast_crc32c
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
"""Bytes of a batch that its length does not count: base offset and length."""

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
"""The checksum covers everything from the attributes on."""


class BatchHeader(NamedTuple):
    """The header of a record batch of magic 2; `start` and `size` say where it lies in its buffer.

    For the older magics 0 and 1, where a "batch" is one message, only `base_offset`, `magic`, `start`, `size`, `codec`
    and `timestamp_type` mean anything; `base_offset` of a compressed one is the offset of its last message.
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
        """The offset behind the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_transactional(self) -> bool:
        """Whether a transactional producer wrote it (KIP-98)."""
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        """Whether it holds a transaction marker instead of records of users (KIP-98)."""
        return bool(self.attributes & 0x20)

    @property
    def codec(self) -> int:
        """The number of its compression codec, see `CODECS`."""
        return self.attributes & 0x07

    @property
    def timestamp_type(self) -> int:
        """0 for the producer's time, 1 for the broker's (log append) time."""
        return (self.attributes >> 3) & 1


def read_batch_header(buffer: Buffer, start: int = 0) -> BatchHeader | None:
    """The header of the batch at `start`, or None if the buffer ends before the batch does.

    Raises CorruptRecordsError for a length or magic that no batch can have.
    """
    if len(buffer) - start < LOG_OVERHEAD + 5:
        return None
    base_offset, length = _PREFIX.unpack_from(buffer, start)
    magic = buffer[start + 16]
    if length < _MIN_LENGTH.get(magic, length + 1):
        raise CorruptRecordsError(
            f"batch at offset {base_offset}: length {length} with magic {magic} is impossible"
        )
    size = LOG_OVERHEAD + length
    if len(buffer) - start < size:
        return None
    if magic < 2:
        attributes = buffer[start + 17] & 0x0F
        return BatchHeader(start, size, base_offset, -1, magic, 0, attributes, 0, -1, -1, -1, -1, -1, 1)
    base, _, *rest = _HEADER.unpack_from(buffer, start)
    return BatchHeader(start, size, base, *rest)


def iter_batch_headers(buffer: Buffer) -> Iterator[BatchHeader]:
    """The headers of all whole batches in the buffer; a batch cut short at the end is left out (KIP-74)."""
    start = 0
    while (header := read_batch_header(buffer, start)) is not None:
        yield header
        start += header.size


def truncated_batch_size(buffer: Buffer) -> int | None:
    """The size of the first batch if the buffer, which is not empty, ends before the batch does; None if it is whole.

    0 where too little is there to know the size. Also None for a length or magic that no batch can have.
    """
    try:
        if read_batch_header(buffer) is not None:
            return None
    except CorruptRecordsError:
        return None
    return 0 if len(buffer) < LOG_OVERHEAD + 5 else LOG_OVERHEAD + _PREFIX.unpack_from(buffer)[1]


def crc_is_valid(batch: Buffer) -> bool:
    """Whether a batch of magic 2, whole and alone in its buffer, has the CRC-32C that fits its bytes."""
    return len(batch) >= _HEADER.size and _crc_matches(batch, _CRC.unpack_from(batch, _CRC_POSITION)[0])


def _crc_matches(batch: Buffer, crc: int) -> bool:
    if fast_crc32c is None:
        return bool(DefaultRecordBatch(batch).validate_crc())
    return fast_crc32c(memoryview(batch)[_CRC_FROM:]) == crc


def check_batch(
    topic: str, partition: int, batch: Buffer, header: BatchHeader, check_crc: bool = True
) -> None:
    """Whether a batch of magic 2 may be read: its size, its codec and, with `check_crc`, its checksum.

    Raises as `decode_batch` does.
    """
    if len(batch) != header.size:  # aiokafka's compiled reader trusts the header's size
        text = f"{len(batch)} bytes are not the batch's {header.size}"
        raise CorruptRecordsError(f"{_location(topic, partition, header)}: {text}")
    if header.codec >= len(CODECS):
        text = f"Unknown compression codec {header.codec:#04x}"
        raise UnsupportedVersionError(f"{_location(topic, partition, header)}: {text}")
    if check_crc and not _crc_matches(batch, header.crc):
        text = "the batch's CRC does not fit its bytes"
        raise CorruptRecordsError(f"{_location(topic, partition, header)}: {text}")


def payload(batch: Buffer) -> memoryview:
    """Return the bytes of a batch of magic 2 after its header: the records, compressed or not."""
    return memoryview(batch)[_HEADER.size :]


def is_large_compressed(batch: Buffer, header: BatchHeader, limit: int) -> bool:
    """Whether a batch of magic 2 is compressed and may hold more than `limit` bytes: it should be decoded before it is
    handed on.
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
    """The records of a batch of magic 2 that `check_batch` has passed, each made when it is asked for.

    Raises as `decode_batch` does, then in the middle of the iteration; `on_error` is called just before.
    """
    epoch, kind, make = header.leader_epoch, header.timestamp_type, object.__new__
    try:
        for raw in raw_records(batch, header, limit)[0]:
            record = make(
                Record
            )  # filled here: the call of __init__ would be a third of the time of decoding
            record.topic = topic
            record.partition = partition
            record.offset = raw.offset
            record.timestamp = raw.timestamp
            record.timestamp_type = kind
            record.key = raw.key
            record.value = raw.value
            record.headers = raw.headers or ()  # a list less to keep for each record
            record.leader_epoch = epoch
            yield record
    except Exception as error:  # each decompressor has errors of its own, most of them without a common base
        if on_error is not None:
            on_error()
        raise translate_error(error, topic, partition, header) from error


def raw_records(
    batch: Buffer, header: BatchHeader, limit: int = MAX_DECOMPRESSED
) -> tuple[Iterator[Any], int]:
    """aiokafka's compiled reader of a batch of magic 2 that `check_batch` has passed, and the uncompressed bytes.

    Each record is an object with `offset`, `timestamp`, `key`, `value` and `headers`. Raises whatever comes, also in
    the middle of the iteration: see `translate_error`.
    """
    plain = _uncompressed(batch, header, limit) if header.codec else batch
    return iter(DefaultRecordBatch(plain)), len(plain)


def _uncompressed(batch: Buffer, header: BatchHeader, limit: int) -> bytearray:
    """The batch as it was before it was compressed; its CRC, which nobody looks at any more, is that of before."""
    out = decompress(header.codec, payload(batch), limit, _HEADER.size)
    if header.record_count > (len(out) - _HEADER.size) // _MIN_RECORD_SIZE:
        text = f"{header.record_count} records do not fit {len(out) - _HEADER.size} bytes"
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
    """The records of one whole batch (`batch` holds just its bytes). Control batches are the caller's to skip.

    `limit` is how many bytes a compressed batch may hold. Raises CorruptRecordsError naming topic, partition and base
    offset if it holds more, or if CRC or content are wrong, and UnsupportedVersionError for an unknown codec.
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
    """What to raise in the place of an error of reading a batch, with the place in the log."""
    place = _location(topic, partition, header)
    if isinstance(error, UnsupportedCodecError):
        return UnsupportedVersionError(f"{place}: {error}")
    if isinstance(error, AsyncGroupError):
        return type(error)(f"{place}: {error}")
    return CorruptRecordsError(f"{place}: {type(error).__name__}: {error}")


def _decode_legacy(topic: str, partition: int, data: bytes, check_crc: bool, limit: int) -> list[Record]:
    def decompress_value(codec: int, compressed: bytes) -> bytes:
        if codec == _ZSTD:
            raise UnsupportedVersionError(f"codec {codec} is none of a message set's")
        return bytes(decompress(codec, compressed, limit))

    return [
        Record(topic, partition, m.offset, m.timestamp, m.timestamp_type, m.key, m.value)
        for m in read_message_set(data, decompress_value, check_crc=check_crc)
    ]


def assign_offsets(batch: bytearray, base_offset: int, leader_epoch: int, start: int = 0) -> None:
    """Write base offset and leader epoch into a batch in place, as a broker does on append (the CRC covers neither)."""
    _BASE_OFFSET.pack_into(batch, start, base_offset)
    _LEADER_EPOCH.pack_into(batch, start + LOG_OVERHEAD, leader_epoch)


def update_crc(batch: bytearray) -> None:
    """Write the CRC-32C that fits the bytes of a batch of magic 2, whole and alone in its buffer."""
    _CRC.pack_into(batch, _CRC_POSITION, calc_crc32c(bytes(batch[_CRC_FROM:])))


class BatchBuilder:
    """Builds one record batch of magic 2.

    `codec` is a name of `CODECS` (else ConfigError), `size_limit` the bytes (uncompressed) after which `append`
    refuses; the first record always fits, and a batch has at least one. `count` is the number of records so far.
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
        self._builder = DefaultRecordBatchBuilder(
            2, CODECS[codec], int(transactional), producer_id, producer_epoch, base_sequence, size_limit
        )
        self._without_timestamps = False
        self.count = 0

    def append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
    ) -> bool:
        """Add a record with a timestamp in ms (-1: none); False if the batch is full.

        A batch that begins with a record without a timestamp is also full for a record with one.
        """
        if self.count == 0:
            self._without_timestamps = timestamp == -1
        elif (
            self._without_timestamps and timestamp != -1
        ):  # aiokafka would take its time for the first record's, too
            return False
        if self._builder.append(self.count, timestamp, key, value, list(headers)) is None:
            return False
        self.count += 1
        return True

    @property
    def size(self) -> int:
        """Bytes so far, uncompressed."""
        return int(self._builder.size())

    def build(self) -> bytes:
        """The batch's bytes, with base offset 0; once only. Raises UnsupportedVersionError for a codec without library."""
        try:
            return bytes(self._builder.build())
        except UnsupportedCodecError as error:
            raise UnsupportedVersionError(str(error)) from error
