"""Read message sets of magic 0 and 1, the record format of logs written before Kafka 0.11.

A message has an offset, a size, a CRC-32 and, covered by it, magic, attributes, timestamp (magic 1), key and value
(`LegacyRecord.java`). The value of a compressed message is another message set; the outer offset is that of the **last**
inner message. Inner messages have final offsets in magic 0, and offsets relative to the first one in magic 1 (KIP-31); their timestamp type
is that of the outer message, also if their attributes have another one.

Each outer message is a BatchView, and `read_messages` gives its records the shape of those of magic 2, so that nothing
else needs to know this format. This is not left to aiokafka's compiled reader because that trusts the sizes in the data and
can read beyond its buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from asyncgroup.errors import CorruptRecordsError, UnsupportedVersionError
from asyncgroup.model import Header
from asyncgroup.wire.batch_view import (
    CODEC_MASK,
    LOG_OVERHEAD,
    MAGIC_AT,
    MESSAGE_HEADER,
    MIN_LENGTH,
    BatchView,
)
from asyncgroup.wire.decompression import CODECS, decompress
from asyncgroup.wire.primitives import Buffer

__all__ = ["LegacyMessage", "read_messages"]

_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")


class LegacyMessage(NamedTuple):
    """One message, with the fields of a record of magic 2; `timestamp` is in ms, -1 for none."""

    offset: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def read_messages(batch: BatchView, limit: int, check_crc: bool) -> tuple[list[LegacyMessage], int]:
    """Return the messages in a batch of magic 0 or 1, with final offsets and timestamps, and their uncompressed size.

    With `check_crc` the CRCs of compressed messages are checked too; that of the batch itself has been. Raises as
    `decompress`, and CorruptRecordsError.
    """
    (outer,) = _messages(batch.data, check_crc=False)
    if not batch.codec:
        return [outer], batch.size
    if batch.codec == CODECS["zstd"]:
        raise UnsupportedVersionError(f"compression codec {batch.codec} is not supported in magic 0 and 1")
    if outer.value is None:
        raise CorruptRecordsError("a compressed message has no value")
    data = bytes(decompress(batch.codec, outer.value, limit))
    inner = list(_messages(data, check_crc))
    if any(message.attributes & CODEC_MASK for message in inner):
        raise CorruptRecordsError("a compressed message contains another compressed message")
    # In a producer's set the outer offset is 0; in a log it is never below the last inner offset.
    shift = max(0, outer.offset - inner[-1].offset) if batch.magic == 1 and inner else 0
    time = outer.timestamp if batch.timestamp_type else None
    return [
        message._replace(offset=message.offset + shift, timestamp=message.timestamp if time is None else time)
        for message in inner
    ], len(data)


def _messages(data: Buffer, check_crc: bool) -> Iterator[LegacyMessage]:
    position = 0
    while position < len(data):
        if len(data) - position < MESSAGE_HEADER.size:
            raise CorruptRecordsError("a message is truncated")
        offset, size, crc, magic, attributes = MESSAGE_HEADER.unpack_from(data, position)
        end = position + LOG_OVERHEAD + size
        if magic > 1 or size < MIN_LENGTH[magic] or end > len(data):
            raise CorruptRecordsError(
                f"the message at offset {offset} has an invalid magic {magic} or size {size}, "
                f"or does not fit the {len(data) - position} bytes left"
            )
        if check_crc and crc32(data[position + MAGIC_AT : end]) != crc:
            raise CorruptRecordsError(f"the CRC of the message at offset {offset} does not match its bytes")
        position += MESSAGE_HEADER.size
        timestamp = -1
        if magic == 1:
            (timestamp,) = _INT64.unpack_from(data, position)
            position += _INT64.size
        key, position = _nullable(data, position, end)
        value, position = _nullable(data, position, end)
        if position != end:
            raise CorruptRecordsError(f"the message at offset {offset} is longer than its key and value")
        yield LegacyMessage(offset, attributes, timestamp, key, value)


def _nullable(data: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    (length,) = _INT32.unpack_from(data, position)
    position += _INT32.size
    if length == -1:
        return None, position
    if not 0 <= length <= end - position:
        raise CorruptRecordsError(f"a key or value of {length} bytes, but {end - position} are left")
    return bytes(data[position : position + length]), position + length
