"""Unsigned varints, UUIDs and other primitives used by the compiled encoding and decoding functions.

Kafka's unsigned varints are those of protobuf: seven bits per byte, least significant group first (KIP-482).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any, Final, TypeAlias
from uuid import UUID

from asyncgroup.errors import DecodeError

__all__ = ["Buffer", "packer", "read_uuid", "read_uvarint", "skip_tags", "unpacker", "uvarint"]

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Types that can be decoded. `bytes` is read in place, the others may be copied first: see `codec.decode_from`."""


def _encode_uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: Final = [_encode_uvarint(value) for value in range(1024)]  # small values are by far the most frequent


def uvarint(value: int) -> bytes:
    """Encode a number from 0 to 2**64 - 1."""
    return _SMALL[value] if value < 1024 else _encode_uvarint(value)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a number; return it and the position after it. Raises DecodeError for more than 32 bits."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise DecodeError("a varint is longer than 5 bytes")
    if value > 0xFFFFFFFF:
        raise DecodeError(f"a varint is larger than 32 bits: {value}")
    return value, position


def skip_tags(buffer: Buffer, position: int) -> int:
    """Return the position after a section of unknown tagged fields (KIP-482).

    The position may be beyond the end of the buffer. Raises IndexError if the section is truncated.
    """
    if not buffer[position]:  # no tagged fields, the usual case
        return position + 1
    count, position = read_uvarint(buffer, position)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
    return position


@lru_cache(1024)
def packer(letter: str, count: int) -> Callable[..., bytes]:
    """Return the function that packs `count` numbers of one format letter."""
    return Struct(f">{count}{letter}").pack


@lru_cache(1024)
def unpacker(letter: str, count: int) -> Callable[[Buffer, int], tuple[Any, ...]]:
    """Return the function that reads `count` numbers of one format letter from a buffer at a position."""
    return Struct(f">{count}{letter}").unpack_from


@lru_cache(4096)
def read_uuid(data: bytes) -> UUID:
    """Return the UUID of 16 bytes; cached, because topic ids repeat and creating a UUID takes a microsecond."""
    return UUID(bytes=data)
