"""Compression of record batches, with levels (KIP-390). The defaults are Java's: fast LZ4, zstd 3, gzip 6."""

from __future__ import annotations

import zlib
from typing import Any, Final

from cramjam import lz4, snappy, zstd

from asyncgroup.wire.decompression import CODECS, GZIP_WINDOW, XERIAL_BLOCK_SIZE, XERIAL_HEADER
from asyncgroup.wire.primitives import Buffer

__all__ = ["compress"]

_GZIP: Final = zlib.Z_DEFAULT_COMPRESSION
_LZ4: Final = 1
"""The fast algorithm, as Java's `fastCompressor`; from level 3 on the library searches for shorter output."""
_ZSTD: Final = 3

_XERIAL_BLOCK: Final = 32 * 1024
"""Bytes of a block in the framing of snappy's Java library."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Return the compressed data; `codec` is one of `CODECS` but not `none`, `level` one that it has."""
    return _COMPRESSORS[codec](data, level)


def _gzip(data: Buffer, level: int | None) -> bytes:
    compressor = zlib.compressobj(_GZIP if level is None else level, wbits=GZIP_WINDOW)
    return compressor.compress(data) + compressor.flush()


def _snappy(data: Buffer, _level: int | None) -> bytes:
    pieces = [XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        pieces += [XERIAL_BLOCK_SIZE.pack(len(block)), block]
    return b"".join(pieces)


_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_FLAGS: Final = b"\x60"
"""Version 1, blocks that do not depend on each other, no checksums: a record batch has one."""
_LZ4_SIZES: Final = (
    (64 << 10, b"\x40\x82"),
    (256 << 10, b"\x50\xfb"),
    (1 << 20, b"\x60\x51"),
    (4 << 20, b"\x70\x73"),
)
"""The largest blocks in bytes; the frame header's byte for each, and the checksum of that header."""
_LZ4_STORED: Final = 1 << 31
"""The bit in a block's size that marks data which is not compressed."""


def _lz4(data: Buffer, level: int | None) -> bytes:
    if level is None or level <= _LZ4:
        return _lz4_fast(memoryview(data))
    # Java's reader does not know blocks that depend on each other (KIP-57)
    compressor: Any = lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # it takes no other buffer
    return bytes(compressor.finish())


def _lz4_fast(data: memoryview) -> bytes:
    """Compress in blocks as large as possible: the library's own frames have blocks of 64 KiB, each with a new table.

    Independent blocks compress better and faster if they are larger. `Lz4BlockInputStream` reads all four sizes.
    """
    largest, size_and_checksum = next(
        (entry for entry in _LZ4_SIZES if len(data) <= entry[0]), _LZ4_SIZES[-1]
    )
    pieces: list[Buffer] = [_LZ4_MAGIC, _LZ4_FLAGS, size_and_checksum]
    for start in range(0, len(data), largest):
        plain = data[start : start + largest]
        block: Any = lz4.compress_block(plain, store_size=False)
        if len(block) < len(plain):
            pieces += [len(block).to_bytes(4, "little"), memoryview(block)]
        else:
            pieces += [(len(plain) | _LZ4_STORED).to_bytes(4, "little"), plain]
    pieces.append(bytes(4))  # the end mark
    return b"".join(pieces)


def _zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(zstd.compress(data, level=_ZSTD if level is None else level))


_COMPRESSORS: Final = {
    CODECS["gzip"]: _gzip,
    CODECS["snappy"]: _snappy,
    CODECS["lz4"]: _lz4,
    CODECS["zstd"]: _zstd,
}
