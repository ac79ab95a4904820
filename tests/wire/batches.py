"""Modified record batches with a valid CRC."""

from __future__ import annotations

import struct
import zlib

from aiokafka.record.util import calc_crc32c

from asyncgroup.model import Record
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.records import decode_batch

CRC, ATTRIBUTES, MAX_TIMESTAMP, COUNT = 17, 21, 35, 57
LEGACY_CRC, LEGACY_MAGIC, LEGACY_ATTRIBUTES, LEGACY_TIMESTAMP = 12, 16, 17, 18


def records_of(data: bytes) -> list[Record]:
    """Return all records of the batches in `data`."""
    return [record for batch in iter_batches(data) for record in decode_batch("t", 3, batch)]


def with_valid_crc(batch: bytes) -> bytes:
    """Return the batch with length and CRC recomputed."""
    changed = bytearray(batch)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    if changed[LEGACY_MAGIC] < 2:
        struct.pack_into(">I", changed, LEGACY_CRC, zlib.crc32(changed[LEGACY_MAGIC:]))
    else:
        struct.pack_into(">I", changed, CRC, calc_crc32c(bytes(changed[ATTRIBUTES:])))
    return bytes(changed)


def with_number(batch: bytes, form: str, position: int, number: int) -> bytes:
    """Return the batch with one number of its header replaced."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, position, number)
    return with_valid_crc(changed)


def with_attributes(batch: bytes, attributes: int) -> bytes:
    """Return the batch of magic 2 with these attributes and its own codec."""
    (before,) = struct.unpack_from(">h", batch, ATTRIBUTES)
    return with_number(batch, ">h", ATTRIBUTES, before & 7 | attributes)


def log_append(batch: bytes, timestamp: int) -> bytes:
    """Return the batch of magic 2 as stored by a broker with `message.timestamp.type=LogAppendTime`."""
    return with_number(with_attributes(batch, 8), ">q", MAX_TIMESTAMP, timestamp)
