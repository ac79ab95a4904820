"""Rewrite a record batch for log compaction: keep some of its records, with their offsets and sequence numbers.

As Kafka's `MemoryRecords.filterTo`, the base and last offset, producer id and sequence of the batch are kept, so that a
producer's last sequence number can be read even from an empty batch. A batch with tombstones or a transaction marker
carries its delete horizon in place of the base timestamp (KIP-534): the time from which on they may be removed.

Records are compressed in the formats that Kafka's libraries read: snappy framed as by Java's library
(`SnappyOutputStream` of xerial), LZ4 in independent blocks (KIP-57). The inverse is `wire/decompression.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final

import cramjam

from asyncgroup.errors import UnsupportedVersionError
from asyncgroup.model import Record
from asyncgroup.wire.batch_view import CODEC_MASK, DELETE_HORIZON, BatchView, pack_batch
from asyncgroup.wire.decompression import CODECS, GZIP_WINDOW, XERIAL_BLOCK_SIZE, XERIAL_HEADER
from asyncgroup.wire.primitives import uvarint

__all__ = ["compress", "empty_batch", "rewrite_batch"]

_LOG_APPEND_TIME: Final = 1
_NO_TIMESTAMP: Final = -1


def empty_batch(batch: BatchView) -> bytes:
    """Return the batch without records; it keeps a producer's last sequence number, or the end of the log."""
    attributes = batch.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    return pack_batch(
        batch,
        attributes=attributes,
        base_timestamp=_NO_TIMESTAMP,
        max_timestamp=batch.max_timestamp,
        count=0,
        payload=b"",
    )


def rewrite_batch(batch: BatchView, records: Sequence[Record], horizon: int | None = None) -> bytes:
    """Return the batch with only `records`, in its own compression; `horizon` (ms) is its new delete horizon."""
    attributes = batch.attributes & ~DELETE_HORIZON
    if horizon is not None:
        attributes |= DELETE_HORIZON
    base = records[0].timestamp if horizon is None else horizon
    newest = max(record.timestamp for record in records)
    if batch.timestamp_type == _LOG_APPEND_TIME:
        newest = batch.max_timestamp
    payload = b"".join(_record(record, record.offset - batch.base_offset, base) for record in records)
    return pack_batch(
        batch,
        attributes=attributes,
        base_timestamp=base,
        max_timestamp=newest,
        count=len(records),
        payload=compress(batch.codec, payload),
    )


def _record(record: Record, offset_delta: int, base_timestamp: int) -> bytes:
    parts = [b"\0", _varint(record.timestamp - base_timestamp), _varint(offset_delta)]
    parts += [_sized(record.key), _sized(record.value), _varint(len(record.headers))]
    for name, value in record.headers:
        parts += [_sized(name.encode()), _sized(value)]
    body = b"".join(parts)
    return _varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Encode a signed number in zigzag form, seven bits per byte (`ByteUtils.writeVarlong`)."""
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


_XERIAL_BLOCK_BYTES: Final = 32 * 1024
"""Uncompressed bytes per block."""


def compress(codec: int, data: bytes) -> bytes:
    """Compress `data` with the codec of this number in `CODECS`; raises UnsupportedVersionError for an unknown number."""
    compress_one = _COMPRESSORS.get(codec)
    if compress_one is None:
        raise UnsupportedVersionError(f"unknown compression codec {codec:#04x}")
    return compress_one(data)


def _gzip(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=GZIP_WINDOW)
    return compressor.compress(data) + compressor.flush()


def _snappy(data: bytes) -> bytes:
    out = [XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        out += [XERIAL_BLOCK_SIZE.pack(len(block)), block]
    return b"".join(out)


def _lz4(data: bytes) -> bytes:
    compressor = cramjam.lz4.Compressor(level=9, content_checksum=False, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def _zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=3))


_COMPRESSORS: Final[dict[int, Callable[[bytes], bytes]]] = {
    CODECS["none"]: bytes,
    CODECS["gzip"]: _gzip,
    CODECS["snappy"]: _snappy,
    CODECS["lz4"]: _lz4,
    CODECS["zstd"]: _zstd,
}
