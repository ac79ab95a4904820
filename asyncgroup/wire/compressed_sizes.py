"""How much an LZ4 or zstd frame can hold, read off its block headers without decompressing anything.

Sources: "LZ4 Frame Format Description" 1.6 and RFC 8878 (zstd). Data may have several frames, and skippable ones.
A bound is never below the true size of well-formed data, and above it by less than one block for what usual writers
make. Malformed data gives any number, or CorruptRecordsError where it ends too early.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from asyncgroup.errors import CorruptRecordsError
from asyncgroup.wire.primitives import Buffer

__all__ = ["lz4_bound", "zstd_bound"]

_Frame: TypeAlias = Callable[[Buffer, int], tuple[int, int]]

_LZ4_MAGIC: Final = 0x184D2204
_ZSTD_MAGIC: Final = 0xFD2FB528
_SKIPPABLE: Final = 0x184D2A5
"""The magics of skippable frames without their last hexadecimal digit."""

_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")

_LZ4_MAX_RATIO: Final = 255
"""No byte of an LZ4 block stands for more."""

_LZ4_UNCOMPRESSED: Final = 1 << 31
"""Set in the size of an LZ4 block that is not compressed."""

_ZSTD_MAX_BLOCK_SIZE: Final = 1 << 17
_RLE, _COMPRESSED = 1, 2


def lz4_bound(data: Buffer) -> int:
    """The most bytes that LZ4 frames can hold."""
    return _walk(data, _LZ4_MAGIC, _lz4_frame)


def zstd_bound(data: Buffer) -> int:
    """The most bytes that zstd frames can hold."""
    return _walk(data, _ZSTD_MAGIC, _zstd_frame)


def _walk(data: Buffer, magic: int, frame: _Frame) -> int:
    """The sum over all frames. What is no frame ends it: the library will say so."""
    total = position = 0
    try:
        while position < len(data):
            (found,) = _UINT32.unpack_from(data, position)
            if found >> 4 == _SKIPPABLE:
                position += 8 + _UINT32.unpack_from(data, position + 4)[0]
            elif found == magic:
                held, position = frame(data, position + 4)
                total += held
            else:
                break
    except (struct.error, IndexError) as error:
        raise CorruptRecordsError("compressed data is cut short") from error
    return total


def _lz4_frame(data: Buffer, position: int) -> tuple[int, int]:
    """What a frame holds at the most, and where it ends; `position` is behind its magic."""
    flags, largest = data[position], 1 << (8 + 2 * (data[position + 1] >> 4 & 7))
    block_checksum = 4 if flags & 0x10 else 0
    position += 3 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    total = 0
    while True:
        (size,) = _UINT32.unpack_from(data, position)
        position += 4
        if size == 0:
            return total, position + (4 if flags & 0x04 else 0)
        plain, size = size & _LZ4_UNCOMPRESSED, size & ~_LZ4_UNCOMPRESSED
        total += size if plain else min(largest, size * _LZ4_MAX_RATIO)
        position += size + block_checksum


def _zstd_frame(data: Buffer, position: int) -> tuple[int, int]:
    """As `_lz4_frame`; the frame may also say how much it holds."""
    flags = data[position]
    single = flags & 0x20
    window = None if single else data[position + 1]
    position += 1 + (not single) + (0, 1, 2, 4)[flags & 3]
    said, position = _zstd_content_size(data, position, flags >> 6, single)
    largest = _ZSTD_MAX_BLOCK_SIZE
    if window is not None:
        base = 1 << (10 + (window >> 3))
        largest = min(largest, base + base // 8 * (window & 7))
    total, last = 0, 0
    while not last:
        header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        total += largest if kind == _COMPRESSED else size
        position += 3 + (1 if kind == _RLE else size)
    return total if said is None else min(total, said), position + (4 if flags & 0x04 else 0)


def _zstd_content_size(data: Buffer, position: int, kind: int, single: int) -> tuple[int | None, int]:
    if kind == 0:
        return (data[position], position + 1) if single else (None, position)
    if kind == 1:
        return (data[position] | data[position + 1] << 8) + 256, position + 2
    form = _UINT32 if kind == 2 else _UINT64
    return form.unpack_from(data, position)[0], position + form.size
