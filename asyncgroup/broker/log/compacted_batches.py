"""Rewrite a record batch for log compaction: keep some of its records, with their offsets and sequence numbers.

As Kafka's `MemoryRecords.filterTo`, the base and last offset, producer id and sequence of the batch are kept, so that a
producer's last sequence number can be read even from an empty batch. A batch with tombstones or a transaction marker
carries its delete horizon in place of the base timestamp (KIP-534): the time from which on they may be removed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from asyncgroup.broker.log.compression import compress
from asyncgroup.model import Record
from asyncgroup.wire.records import LOG_OVERHEAD, BatchHeader, update_crc

__all__ = ["delete_horizon", "empty_batch", "rewrite_batch"]

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CODEC_MASK: Final = 0x07
_DELETE_HORIZON: Final = 0x40
_LOG_APPEND_TIME: Final = 1
_NO_TIMESTAMP: Final = -1


def delete_horizon(header: BatchHeader) -> int | None:
    """Return the batch's delete horizon in ms; None if it has none."""
    return header.base_timestamp if header.attributes & _DELETE_HORIZON else None


def empty_batch(header: BatchHeader) -> bytes:
    """Return the batch without records; it keeps a producer's last sequence number, or the end of the log."""
    attributes = header.attributes & ~(_CODEC_MASK | _DELETE_HORIZON)
    return _packed(header, attributes, _NO_TIMESTAMP, header.max_timestamp, 0, b"")


def rewrite_batch(header: BatchHeader, records: Sequence[Record], horizon: int | None = None) -> bytes:
    """Return the batch with only `records`, in its own compression; `horizon` (ms) is its new delete horizon."""
    attributes = header.attributes & ~_DELETE_HORIZON
    if horizon is not None:
        attributes |= _DELETE_HORIZON
    base = records[0].timestamp if horizon is None else horizon
    newest = max(record.timestamp for record in records)
    if header.timestamp_type == _LOG_APPEND_TIME:
        newest = header.max_timestamp
    payload = b"".join(_record(record, record.offset - header.base_offset, base) for record in records)
    return _packed(header, attributes, base, newest, len(records), compress(header.codec, payload))


def _packed(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, payload: bytes
) -> bytes:
    length = _HEADER.size - LOG_OVERHEAD + len(payload)
    batch = bytearray(
        _HEADER.pack(
            header.base_offset,
            length,
            header.leader_epoch,
            header.magic,
            0,
            attributes,
            header.last_offset_delta,
            base_timestamp,
            max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            count,
        )
    )
    batch += payload
    update_crc(batch)
    return bytes(batch)


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
