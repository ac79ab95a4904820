"""Compress the records of a batch in the formats that Kafka's libraries read; the inverse is `decompression.py`.

Snappy data is framed as by Java's library (`SnappyOutputStream` of xerial), LZ4 data has independent blocks (KIP-57).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from asyncgroup.errors import UnsupportedVersionError
from asyncgroup.wire.decompression import CODECS, GZIP_WINDOW, XERIAL_BLOCK_SIZE, XERIAL_HEADER

__all__ = ["compress"]

_XERIAL_BLOCK_BYTES: Final = 32 * 1024
"""Uncompressed bytes per block."""


def compress(codec: int, data: bytes) -> bytes:
    """Compress `data` with the codec of this number in `CODECS`; raises UnsupportedVersionError for an unknown number."""
    compress_one = _COMPRESSORS.get(codec)
    if compress_one is None:
        raise UnsupportedVersionError(f"unknown compression codec {codec:#04x}")
    return compress_one(data)


def _gzip(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=GZIP_WINDOW)
    return compressor.compress(data) + compressor.flush()


def _snappy(data: bytes) -> bytes:
    out = [XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        out += [XERIAL_BLOCK_SIZE.pack(len(block)), block]
    return b"".join(out)


def _lz4(data: bytes) -> bytes:
    compressor = cramjam.lz4.Compressor(level=9, content_checksum=False, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def _zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=3))


_COMPRESSORS: Final[dict[int, Callable[[bytes], bytes]]] = {
    CODECS["none"]: bytes,
    CODECS["gzip"]: _gzip,
    CODECS["snappy"]: _snappy,
    CODECS["lz4"]: _lz4,
    CODECS["zstd"]: _zstd,
}
