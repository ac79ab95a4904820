"""The four compressions of Pulsar: LZ4 as a raw block, zlib, zstd as a frame, snappy raw (`CompressionType`).

A whole body is compressed; its size before that stands in the metadata, so that a buffer of it suffices.
"""

from __future__ import annotations

import zlib
from typing import Final

from cramjam import CompressionError, DecompressionError, lz4, snappy, zstd

from asyncgroup.errors import CorruptRecordsError, UnsupportedVersionError

__all__ = ["COMPRESSIONS", "compress_body", "decompress_body"]

COMPRESSIONS: Final = {"none": 0, "lz4": 1, "zlib": 2, "zstd": 3, "snappy": 4}
"""Numbers by the names that a configuration has."""

_NONE, _LZ4, _ZLIB, _ZSTD, _SNAPPY = COMPRESSIONS.values()


def compress_body(kind: int, body: bytes | bytearray) -> bytes | bytearray:
    """Return the compressed body. Raises ValueError for an unknown compression."""
    if kind == _NONE:
        return body
    if kind == _ZLIB:
        return zlib.compress(body)
    try:
        if kind == _LZ4:
            return bytes(lz4.compress_block(body, store_size=False))
        if kind == _ZSTD:
            return bytes(zstd.compress(body))
        if kind == _SNAPPY:
            return bytes(snappy.compress_raw(body))
    except CompressionError as error:  # a body that is too large for the algorithm
        raise CorruptRecordsError(f"a body of {len(body)} bytes cannot be compressed: {error}") from error
    raise ValueError(f"compression {kind} is not known: {COMPRESSIONS}")


def decompress_body(kind: int, body: bytes | bytearray | memoryview, size: int, limit: int) -> bytes:
    """Return the body of `size` bytes.

    Raises CorruptRecordsError if it is malformed, of another size, or larger than `limit`, UnsupportedVersionError for an
    unknown compression.
    """
    if kind == _NONE:
        return bytes(body)
    if not 0 <= size <= limit:
        raise CorruptRecordsError(
            f"a message of {size} bytes uncompressed is larger than the limit of {limit}"
        )
    try:
        found = _decompress(kind, body, size)
    except (DecompressionError, zlib.error, ValueError, OverflowError, MemoryError) as error:
        raise CorruptRecordsError(f"compressed data is malformed: {error}") from error
    if len(found) != size:
        raise CorruptRecordsError(
            f"compressed data has {'more' if len(found) > size else len(found)} bytes uncompressed, "
            f"but its metadata says {size}"
        )
    return found


def _decompress(kind: int, body: bytes | bytearray | memoryview, size: int) -> bytes:
    """Return the uncompressed body, or a part of it if it has more than `size` bytes."""
    if kind == _ZLIB:
        # Java's client only flushes: its streams have no end, and no checksum
        return zlib.decompressobj().decompress(body, size + 1)
    if kind == _LZ4:
        out = bytearray(size)
        # `decompress_block` would fill up a body that is smaller with zeros
        written = lz4.decompress_block_into(body, out, output_len=size)
        return bytes(out if written == size else out[:written])
    if kind == _ZSTD:
        out = bytearray(size)
        written = zstd.decompress_into(body, out)
        return bytes(out if written == size else out[:written])
    if kind == _SNAPPY:
        # the size stands at the beginning: it is compared before anything of it is allocated
        found = snappy.decompress_raw_len(body)
        if found != size:
            raise CorruptRecordsError(
                f"compressed data has {found} bytes uncompressed, but its metadata says {size}"
            )
        return bytes(snappy.decompress_raw(body))
    raise UnsupportedVersionError(f"compression {kind} is not known: {COMPRESSIONS}")
