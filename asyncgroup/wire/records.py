"""Record batches: read, check and build them, with aiokafka's compiled record code (`compiled.py`).

`batch_view.py` knows the headers, `legacy.py` reads the messages of magic 0 and 1. Compressed records are decompressed here,
up to a limit, because aiokafka's reader has none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any

from asyncgroup.errors import AsyncGroupError, ConfigError, CorruptRecordsError, UnsupportedVersionError
from asyncgroup.model import Header, Record
from asyncgroup.wire.batch_run import BatchRun
from asyncgroup.wire.batch_view import (
    HEADER_SIZE,
    MIN_RECORD_SIZE,
    BatchView,
    put_producer,
    put_uncompressed,
    with_payload,
)
from asyncgroup.wire.compression import compress
from asyncgroup.wire.decompression import CODECS, MAX_DECOMPRESSED, decompress_within, too_large
from asyncgroup.wire.legacy import read_messages

__all__ = [
    "CODECS",
    "MARKER_KEY",
    "MAX_DECOMPRESSED",
    "BatchBuilder",
    "ControlType",
    "check_batch",
    "decode_batch",
    "raw_records",
    "read_batch",
    "read_control_type",
    "translate_error",
    "uncompressed",
]


def check_batch(topic: str, partition: int, batch: BatchView, check_crc: bool = True) -> None:
    """Check a batch before it is read: size, CRC (with `check_crc`) and codec.

    Raises as `decode_batch` does.
    """
    if len(batch.data) != batch.size:  # aiokafka's compiled reader trusts the size in the header
        text = f"the buffer has {len(batch.data)} bytes, the batch {batch.size}"
        raise CorruptRecordsError(f"{_location(topic, partition, batch)}: {text}")
    if check_crc and not batch.crc_is_valid():
        text = "the CRC of the batch does not match its bytes"
        raise CorruptRecordsError(f"{_location(topic, partition, batch)}: {text}")
    if batch.record_count and batch.codec >= len(CODECS):
        text = f"unknown compression codec {batch.codec:#04x}"
        raise UnsupportedVersionError(f"{_location(topic, partition, batch)}: {text}")


def read_batch(
    topic: str,
    partition: int,
    batch: BatchView | BatchRun,
    limit: int = MAX_DECOMPRESSED,
    on_error: Callable[[], None] | None = None,
    *,
    check_crc: bool = True,
) -> Iterator[Record]:
    """Yield the records of a batch that `check_batch` has accepted, or of a valid, uncompressed run, each created on demand.

    With `check_crc` the CRCs inside a compressed message of magic 0 or 1 are checked. Raises as `decode_batch` does, possibly
    in the middle of the iteration; `on_error` is called before that.
    """
    epoch, kind, make = batch.leader_epoch, batch.timestamp_type, object.__new__
    try:
        for raw in raw_records(batch, limit, check_crc)[0]:
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
        raise translate_error(error, topic, partition, batch) from error


def raw_records(
    batch: BatchView | BatchRun, limit: int = MAX_DECOMPRESSED, check_crc: bool = True
) -> tuple[Iterator[Any], int]:
    """Return the records of a batch or run as for `read_batch`, and their uncompressed size.

    aiokafka's compiled reader reads them, and `legacy` those of magic 0 and 1.

    Each record is an object with `offset`, `timestamp`, `key`, `value` and `headers`. Errors of the decompressors and of
    the reader are raised as they are, possibly in the middle of the iteration: see `translate_error`.
    """
    if isinstance(batch, BatchRun):
        return batch.raw_records(), batch.size
    if batch.magic < 2:
        messages, size = read_messages(batch, limit, check_crc)
        return iter(messages), size
    from asyncgroup.wire.compiled import DefaultRecordBatch

    plain = _plain_bytes(batch, limit) if batch.codec else batch.data
    if plain is None:
        raise too_large(batch.codec, batch.payload, limit)
    return iter(DefaultRecordBatch(plain)), len(plain)


def uncompressed(batch: BatchView, limit: int) -> BatchView | None:
    """Return a batch of magic 2 with its records decompressed; None if they are larger than `limit` bytes.

    A batch that is not compressed is returned as it is. The CRC is not updated, so it has to be checked before. Raises as
    `decompress`, and CorruptRecordsError if the batch claims more records than fit into the decompressed bytes.
    """
    if not batch.codec:
        return batch
    plain = _plain_bytes(batch, limit)
    return None if plain is None else BatchView(plain)


def _plain_bytes(batch: BatchView, limit: int) -> bytearray | None:
    if batch.record_count:
        out = decompress_within(batch.codec, batch.payload, limit, HEADER_SIZE)
    else:  # compaction leaves the header; brokers may keep its codec. Java reads nothing either (`iterator()` of its batches)
        out = bytearray(HEADER_SIZE)
    if out is None:
        return None
    if batch.record_count > (len(out) - HEADER_SIZE) // MIN_RECORD_SIZE:
        text = f"{len(out) - HEADER_SIZE} bytes cannot contain {batch.record_count} records"
        raise CorruptRecordsError(text)
    out[:HEADER_SIZE] = batch.data[:HEADER_SIZE]
    put_uncompressed(out, 0, len(out) - HEADER_SIZE)
    return out


def decode_batch(
    topic: str,
    partition: int,
    batch: BatchView,
    check_crc: bool = True,
    limit: int = MAX_DECOMPRESSED,
) -> list[Record]:
    """Return the records of a batch; the caller skips control batches.

    `limit` is the largest allowed decompressed size in bytes. Raises CorruptRecordsError, with topic, partition and base
    offset, for a larger batch and for a wrong CRC or content; UnsupportedVersionError for an unknown codec.
    """
    check_batch(topic, partition, batch, check_crc)
    return list(read_batch(topic, partition, batch, limit, check_crc=check_crc))


def _location(topic: str, partition: int, batch: BatchView | BatchRun) -> str:
    offset = batch.base_offset if batch.base_offset >= 0 else batch.last_offset
    return f"{topic}-{partition} at offset {offset}"


def translate_error(
    error: Exception, topic: str, partition: int, batch: BatchView | BatchRun
) -> AsyncGroupError:
    """Return the error to raise for an error while reading a batch, with topic, partition and offset."""
    from asyncgroup.wire.compiled import UnsupportedCodecError

    if isinstance(batch, BatchRun):
        batch = next((one for one in batch.views() if not _is_readable(one)), batch)
    place = _location(topic, partition, batch)
    if isinstance(error, UnsupportedCodecError):
        return UnsupportedVersionError(f"{place}: {error}")
    if isinstance(error, AsyncGroupError):
        return type(error)(f"{place}: {error}")
    return CorruptRecordsError(f"{place}: {type(error).__name__}: {error}")


def _is_readable(batch: BatchView) -> bool:
    try:
        for _ in raw_records(batch)[0]:
            pass
    except Exception:  # noqa: BLE001  decompressors raise errors without a common base class
        return False
    return True


MARKER_KEY = struct.Struct(">hh")
"""A transaction marker's key: version and control type."""


class ControlType(IntEnum):
    """The result of the transaction that a marker ends."""

    ABORT = 0
    COMMIT = 1


def read_control_type(batch: BatchView, *, check_crc: bool = True) -> ControlType | None:
    """Return the control type of a control batch: the COMMIT or ABORT marker that ends a transaction in a partition (KIP-98).

    A marker has one record with the key (version, type) and the value (version, coordinator epoch), as in Kafka's
    `ControlRecordType` and `EndTransactionMarker`. None for other control records, and for a batch without records after
    compaction. Raises CorruptRecordsError for malformed bytes.
    """
    if batch.record_count == 0:
        return None
    try:
        check_batch("", -1, batch, check_crc)
        record = next(iter(read_batch("", -1, batch)))
        _, control_type = MARKER_KEY.unpack_from(record.key or b"")
        return ControlType(control_type)
    except ValueError:
        return None  # snapshot and leader-change records of KRaft, and types of later versions
    except (AsyncGroupError, struct.error, StopIteration) as error:
        raise CorruptRecordsError(f"control batch at offset {batch.base_offset}: {error}") from error


_compiled: Any = None
"""The module of the compiled code once it is loaded: an import statement for each batch would cost more than its builder."""


def _load_compiled() -> Any:
    global _compiled
    from asyncgroup.wire import compiled

    _compiled = compiled
    return compiled


class BatchBuilder:
    """Builds one record batch of magic 2.

    `codec` is a name in `CODECS` (otherwise ConfigError), `level` one of its levels, `size_limit` the largest uncompressed size
    in bytes, which only the first record may exceed. A batch must have at least one record. `count` is the number of records
    so far.
    """

    __slots__ = (
        "_builder",
        "_builds_whole",
        "_built",
        "_codec",
        "_compressed",
        "_level",
        "_plain",
        "_plain_size",
        "_without_timestamps",
        "append_unchecked",
        "count",
    )

    def __init__(
        self,
        codec: str = "none",
        size_limit: int = 1 << 20,
        *,
        transactional: bool = False,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        level: int | None = None,
    ) -> None:
        number = CODECS.get(codec)
        if number is None:
            raise ConfigError("codec", codec, f"one of {', '.join(CODECS)}")
        self._codec, self._level = number, level
        # By the same library and at the same level, but without a CRC of the plain records, which is later overwritten.
        in_builder = codec == "zstd" and level is None
        self._builder = (_compiled or _load_compiled()).DefaultRecordBatchBuilder(
            2,
            number if in_builder else 0,
            int(transactional),
            producer_id,
            producer_epoch,
            base_sequence,
            size_limit,
        )
        self.append_unchecked: Callable[[int, int, bytes | None, bytes | None, list[Header]], object] = (
            self._builder.append
        )
        """Add a record with its index, timestamp in ms (not -1), key, value and a list of tuples; return None if it is full.

        The compiled function itself, for callers that count for themselves: a call of `append` takes twice as long.
        """
        self._without_timestamps = False
        self._plain: BatchView | None = None  # without compression, once it is compressed
        self._compressed = b""
        self._built: bytearray | None = None  # by the builder, once it is done
        self._plain_size = 0  # of `_built`
        self._builds_whole = in_builder or codec == "none"
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
        if self.append_unchecked(self.count, timestamp, key, value, list(headers)) is None:
            return False
        self.count += 1
        return True

    @property
    def size(self) -> int:
        """Bytes so far, uncompressed."""
        return self._plain_size or int(self._builder.size())

    def build(self, producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
        """Return the batch's bytes, with base offset 0; may be called once.

        `producer_id`, its `epoch`, and the `sequence` number of the first record belong to idempotent producers.
        """
        return bytes(self.build_buffer(producer_id, epoch, sequence))

    def compress(self) -> None:
        """Compress the records, which `build` does otherwise. No further record can be added. May run on a thread."""
        if self._builds_whole:
            self._build()
            return
        plain = BatchView(self._builder.build())
        self._compressed = compress(self._codec, plain.payload, self._level)
        self._plain = plain.header_only()

    def build_buffer(self, producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytearray:
        """Return the batch as `build` does, without the last copy."""
        if self._builds_whole:
            return self._build_whole(producer_id, epoch, sequence)
        if self._plain is None:
            self.compress()
        assert self._plain is not None
        if producer_id >= 0:
            self._plain.set_producer(producer_id, epoch, sequence)
        return with_payload(self._plain, self._codec, self._compressed)

    def _build_whole(self, producer_id: int, epoch: int, sequence: int) -> bytearray:
        if self._built is not None:  # compressed before its sequence number was known
            if producer_id >= 0:
                put_producer(self._built, producer_id, epoch, sequence)
            return self._built
        if producer_id >= 0:
            self._builder.set_producer_state(producer_id, epoch, sequence)
        return self._build()

    def _build(self) -> bytearray:
        self._plain_size = self._builder.size()
        data: bytearray = self._builder.build()
        self._built = data
        return data
