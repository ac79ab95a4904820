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


def _lz4(data: Buffer, level: int | None) -> bytes:
    # Java's reader does not know blocks that depend on each other (KIP-57)
    compressor: Any = lz4.Compressor(
        level=_LZ4 if level is None else level, content_checksum=False, block_linked=False
    )
    compressor.compress(bytes(data))  # it takes no other buffer
    return bytes(compressor.finish())


def _zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(zstd.compress(data, level=_ZSTD if level is None else level))


_COMPRESSORS: Final = {
    CODECS["gzip"]: _gzip,
    CODECS["snappy"]: _snappy,
    CODECS["lz4"]: _lz4,
    CODECS["zstd"]: _zstd,
}
