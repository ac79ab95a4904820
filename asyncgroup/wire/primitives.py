"""Variable-length integers and the other small pieces that the compiled codecs are made of.

Kafka's unsigned varints are protobuf's: seven bits a byte, lowest first (KIP-482).
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
"""What can be decoded. `bytes` is read in place; the others are copied first, but see `codec.decode_from`."""


def _encode_uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: Final = [_encode_uvarint(value) for value in range(1024)]


def uvarint(value: int) -> bytes:
    """Encode a number of 0 … 2**32-1."""
    return _SMALL[value] if value < 1024 else _encode_uvarint(value)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a number; returns it and the position behind it. Raises DecodeError beyond 32 bits."""
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
    """The position behind a section of tagged fields of which none is known (KIP-482).

    It may lie behind the buffer's end; IndexError says that the section itself is cut short.
    """
    if not buffer[position]:  # as nearly always
        return position + 1
    count, position = read_uvarint(buffer, position)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
    return position


@lru_cache(1024)
def packer(letter: str, count: int) -> Callable[..., bytes]:
    """The function that packs `count` numbers of one format letter."""
    return Struct(f">{count}{letter}").pack


@lru_cache(1024)
def unpacker(letter: str, count: int) -> Callable[[Buffer, int], tuple[Any, ...]]:
    """The function that reads `count` numbers of one format letter from a buffer at a position."""
    return Struct(f">{count}{letter}").unpack_from


@lru_cache(4096)
def read_uuid(data: bytes) -> UUID:
    """The UUID of 16 bytes; topic ids come again and again, and making a UUID takes a microsecond."""
    return UUID(bytes=data)
