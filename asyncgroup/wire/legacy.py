"""Read message sets of magic 0 and 1, the record format of logs written before Kafka 0.11.

A message has an offset, a size, a CRC-32 and, covered by it, magic, attributes, timestamp (magic 1), key and value
(`LegacyRecord.java`). The value of a compressed message is another message set; the outer offset is that of the **last**
inner message. Inner messages have final offsets in magic 0, and offsets relative to the first one in magic 1 (KIP-31).

This is not left to aiokafka's compiled reader because that trusts the sizes in the data and can read beyond its buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from asyncgroup.errors import CorruptRecordsError

__all__ = ["MIN_SIZE", "Decompress", "LegacyMessage", "read_message_set"]

Decompress: TypeAlias = Callable[[int, bytes], bytes]
"""From a codec's number and compressed bytes to the decompressed bytes."""

MIN_SIZE: Final = {0: 14, 1: 22}
"""Smallest valid value of the size field, which follows the offset, by magic."""

_HEAD = struct.Struct(">qiIBB")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_CODEC, _LOG_APPEND_TIME = 0x07, 0x08


class LegacyMessage(NamedTuple):
    """One message; `timestamp` is in ms, -1 for none."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def timestamp_type(self) -> int:
        """0 for CreateTime, 1 for LogAppendTime."""
        return 1 if self.magic == 1 and self.attributes & _LOG_APPEND_TIME else 0


def read_message_set(
    data: bytes, decompress: Decompress, *, check_crc: bool = True
) -> Iterator[LegacyMessage]:
    """Yield the messages of a set, compressed ones decompressed, with their final offsets and timestamps.

    Raises CorruptRecordsError, and what `decompress` raises.
    """
    for message in _messages(data, check_crc):
        if not message.attributes & _CODEC:
            yield message
            continue
        if message.value is None:
            raise CorruptRecordsError("a compressed message has no value")
        inner = list(_messages(decompress(message.attributes & _CODEC, message.value), check_crc))
        if any(part.attributes & _CODEC for part in inner):
            raise CorruptRecordsError("a compressed message contains another compressed message")
        yield from _decompressed(message, inner)


def _decompressed(wrapper: LegacyMessage, inner: list[LegacyMessage]) -> Iterator[LegacyMessage]:
    # In a producer's set the wrapper's offset is 0; in a log it is never below the last inner offset.
    shift = wrapper.offset - inner[-1].offset if wrapper.magic == 1 and inner else 0
    for part in inner:
        offset = part.offset + max(shift, 0)
        if wrapper.timestamp_type:
            yield part._replace(
                offset=offset, timestamp=wrapper.timestamp, magic=1, attributes=_LOG_APPEND_TIME
            )
        else:
            yield part._replace(offset=offset)


def _messages(data: bytes, check_crc: bool) -> Iterator[LegacyMessage]:
    position = 0
    while position < len(data):
        if len(data) - position < _HEAD.size:
            raise CorruptRecordsError("a message is truncated")
        offset, size, crc, magic, attributes = _HEAD.unpack_from(data, position)
        end = position + _INT64.size + _INT32.size + size
        if magic not in MIN_SIZE or size < MIN_SIZE[magic] or end > len(data):
            raise CorruptRecordsError(
                f"the message at offset {offset} has an invalid magic {magic} or size {size}, "
                f"or does not fit the {len(data) - position} bytes left"
            )
        if check_crc and crc32(data[position + 16 : end]) != crc:
            raise CorruptRecordsError(f"the CRC of the message at offset {offset} does not match its bytes")
        position += _HEAD.size
        timestamp = -1
        if magic == 1:
            (timestamp,) = _INT64.unpack_from(data, position)
            position += _INT64.size
        key, position = _nullable(data, position, end)
        value, position = _nullable(data, position, end)
        if position != end:
            raise CorruptRecordsError(f"the message at offset {offset} is longer than its key and value")
        yield LegacyMessage(offset, magic, attributes, timestamp, key, value)


def _nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    (length,) = _INT32.unpack_from(data, position)
    position += _INT32.size
    if length == -1:
        return None, position
    if not 0 <= length <= end - position:
        raise CorruptRecordsError(f"a key or value of {length} bytes, but {end - position} are left")
    return data[position : position + length], position + length
