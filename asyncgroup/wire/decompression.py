"""Decompression with a limit, because a thousand compressed bytes may expand to gigabytes.

The decompressed size is known or bounded beforehand: snappy stores it, LZ4 and zstd block headers give a bound
(`compressed_sizes.py`), and gzip is stopped at the limit. At most `limit` bytes are allocated, for any size that
the compressed data claims.

Snappy data has two forms: a single block, or the framing of Java's library (`SnappyOutputStream` of xerial).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from cramjam import DecompressionError, lz4, snappy, zstd

from asyncgroup.errors import CorruptRecordsError, UnsupportedVersionError
from asyncgroup.wire.compressed_sizes import lz4_bound, zstd_bound
from asyncgroup.wire.primitives import Buffer

__all__ = [
    "CODECS",
    "GZIP_WINDOW",
    "MAX_DECOMPRESSED",
    "XERIAL_BLOCK_SIZE",
    "XERIAL_HEADER",
    "decompress",
    "may_exceed",
    "size_hint",
]

CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Compression codecs by Kafka's names for `compression.type`."""

MAX_DECOMPRESSED: Final = 100 * 1024 * 1024
"""Default limit in bytes for the decompressed records of a batch: the default `max_response_size`, as in librdkafka."""

_NAMES: Final = {number: name for name, number in CODECS.items()}
_MAX_BATCH_SIZE: Final = 2**31 - 128
"""Upper bound of any limit: the batch length is an int32, and includes a header."""

GZIP_WINDOW: Final = 31
"""zlib's `wbits` for the gzip format with the largest window."""

_GZIP_MAX_RATIO: Final = 1032
"""Maximum decompressed bytes per byte of gzip data."""

_GZIP_STEP: Final = 1 << 14
"""Bytes passed to zlib at once; zlib copies back what belongs to the next member, so a step should be small."""

_SNAPPY_MAX_RATIO: Final = 22
"""Maximum decompressed bytes per byte of a snappy block: a copy of 64 bytes takes three."""

XERIAL_HEADER: Final = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
"""Header of snappy data in the framing of Java's library: a magic and two version numbers."""

XERIAL_BLOCK_SIZE: Final = struct.Struct(">i")
"""The size field before each block of that framing."""


def decompress(codec: int, data: Buffer, limit: int = MAX_DECOMPRESSED, headroom: int = 0) -> bytearray:
    """Return the decompressed data, after `headroom` zero bytes that the caller can fill.

    Raises CorruptRecordsError if it is larger than `limit` bytes or malformed, UnsupportedVersionError for an unknown
    codec.
    """
    decompress_one = _DECOMPRESSORS.get(codec)
    if decompress_one is None:
        raise UnsupportedVersionError(f"unknown compression codec {codec:#04x}")
    try:
        out = decompress_one(data, min(limit, _MAX_BATCH_SIZE), headroom)
    except (zlib.error, DecompressionError, struct.error) as error:
        raise CorruptRecordsError(f"{_NAMES[codec]}: {error}") from error
    if out is None:
        raise CorruptRecordsError(
            f"{len(data)} bytes of {_NAMES[codec]} data decompress to more than the limit of {limit} bytes"
        )
    return out


def may_exceed(codec: int, data: Buffer, limit: int) -> bool:
    """Whether `data` may decompress to more than `limit` bytes, judged without decompressing it; True if malformed."""
    try:
        return bool(_BOUNDS[codec](data) > limit)
    except (KeyError, CorruptRecordsError, DecompressionError, struct.error):
        return True


def size_hint(codec: int, data: Buffer) -> int:
    """Return the approximate decompressed size of `data`, without decompressing it; meaningless for malformed data.

    For gzip it is the size of the last member; common compressors write only one (RFC 1952). For the other codecs it is
    the size stored in the data, or the upper bound.
    """
    if codec == CODECS["gzip"]:
        return min(int.from_bytes(data[-4:], "little"), len(data) * _GZIP_MAX_RATIO)
    try:
        return int(_BOUNDS[codec](data))
    except (KeyError, CorruptRecordsError, DecompressionError, struct.error):
        return len(data)


def _gzip(data: Buffer, limit: int, headroom: int) -> bytearray | None:
    """Decompress all members, as gzip data may have several; return None if the result exceeds `limit`."""
    out, position = bytearray(headroom), 0
    while position < len(data):
        member = zlib.decompressobj(GZIP_WINDOW)
        while not member.eof:
            step = data[position : position + _GZIP_STEP]
            if not step:
                raise CorruptRecordsError("gzip data is truncated")
            out += member.decompress(step, headroom + limit + 1 - len(out))
            if len(out) > headroom + limit:
                return None
            position += len(step) - len(member.unused_data)
    return out


def _snappy(data: Buffer, limit: int, headroom: int) -> bytearray | None:
    blocks = list(_snappy_blocks(data))
    total = sum(size for _, size in blocks)
    if total > limit:
        return None
    if total > len(data) * _SNAPPY_MAX_RATIO:
        raise CorruptRecordsError(f"snappy: {len(data)} bytes cannot decompress to {total} bytes")
    out = bytearray(headroom + total)
    with memoryview(out) as view:
        position = headroom
        for block, size in blocks:
            snappy.decompress_raw_into(block, view[position : position + size])
            position += size
    return out


def _snappy_blocks(data: Buffer) -> Iterator[tuple[Buffer, int]]:
    """Yield the blocks, each with the decompressed size stored in it."""
    for block in _xerial_blocks(data) if data[: len(XERIAL_HEADER)] == XERIAL_HEADER else (data,):
        yield block, int(snappy.decompress_raw_len(block))


def _xerial_blocks(data: Buffer) -> Iterator[Buffer]:
    position = len(XERIAL_HEADER)
    while position < len(data):
        (size,) = XERIAL_BLOCK_SIZE.unpack_from(data, position)
        position += XERIAL_BLOCK_SIZE.size
        if not 0 <= size <= len(data) - position:
            raise CorruptRecordsError(
                f"a snappy block of {size} bytes, but only {len(data) - position} are left"
            )
        yield data[position : position + size]
        position += size


def _framed(
    bound_of: Callable[[Buffer], int], decompress_into: Callable[[Any, Any], int]
) -> Callable[[Buffer, int, int], bytearray | None]:
    """Return the decompressor of a codec whose frames give an upper bound of their decompressed size."""

    def decompress_one(data: Buffer, limit: int, headroom: int) -> bytearray | None:
        bound = bound_of(data)
        out = bytearray(headroom + min(bound, limit))
        try:
            with memoryview(out) as view, view[headroom:] as target:
                size = decompress_into(data, target)
        except DecompressionError:
            if bound > limit:
                return None
            raise
        del out[headroom + size :]
        return out

    return decompress_one


_DECOMPRESSORS: Final[dict[int, Callable[[Buffer, int, int], bytearray | None]]] = {
    CODECS["gzip"]: _gzip,
    CODECS["snappy"]: _snappy,
    CODECS["lz4"]: _framed(lz4_bound, lz4.decompress_into),
    CODECS["zstd"]: _framed(zstd_bound, zstd.decompress_into),
}

_BOUNDS: Final[dict[int, Callable[[Buffer], int]]] = {
    CODECS["none"]: len,
    CODECS["gzip"]: lambda data: len(data) * _GZIP_MAX_RATIO,
    CODECS["snappy"]: lambda data: sum(size for _, size in _snappy_blocks(data)),
    CODECS["lz4"]: lz4_bound,
    CODECS["zstd"]: zstd_bound,
}
