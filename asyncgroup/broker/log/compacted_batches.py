"""Rewrite a record batch for log compaction: keep some of its records, with their offsets and sequence numbers.

As Kafka's `MemoryRecords.filterTo`, the base and last offset, producer id and sequence of the batch are kept, so that a
producer's last sequence number can be read even from an empty batch. A batch with tombstones or a transaction marker
carries its delete horizon in place of the base timestamp (KIP-534): the time from which on they may be removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from asyncgroup.broker.log.compression import compress
from asyncgroup.model import Record
from asyncgroup.wire.batch_view import CODEC_MASK, DELETE_HORIZON, BatchView, pack_batch

__all__ = ["empty_batch", "rewrite_batch"]

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
    left = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
