"""Decompression that ends at a limit: a thousand bytes may stand for gigabytes.

For each codec the size of what comes out is known, or bounded, before a byte of it is made: snappy says it, LZ4 and
zstd frames are walked block by block (`compressed_sizes.py`), gzip is stopped on its way. So memory is taken for what
there is, `limit` at the most, and never for what compressed bytes claim.

Snappy comes in two forms: as one block, or as Java's library frames blocks (`SnappyOutputStream` of xerial).
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
"""Bytes; what a batch may hold where nobody says otherwise, as much as a whole response (librdkafka sets the same)."""

_NAMES: Final = {number: name for name, number in CODECS.items()}
_MAX_BATCH_SIZE: Final = 2**31 - 128
"""More cannot be the size of a batch."""

GZIP_WINDOW: Final = 31
"""zlib's `wbits` for the gzip format with the largest window."""

_GZIP_MAX_RATIO: Final = 1032
"""No byte of gzip data stands for more."""

_GZIP_STEP: Final = 1 << 14
"""Bytes given to zlib at once; what belongs to the next member is copied back, so a step should be small."""

_SNAPPY_MAX_RATIO: Final = 22
"""No byte of a snappy block stands for more: a copy of 64 bytes takes three."""

XERIAL_HEADER: Final = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
"""What snappy data of Java's library begin with: a magic and two versions."""

XERIAL_BLOCK_SIZE: Final = struct.Struct(">i")
"""What stands before each of their blocks."""


def decompress(codec: int, data: Buffer, limit: int = MAX_DECOMPRESSED, headroom: int = 0) -> bytearray:
    """What `data` stands for, behind `headroom` bytes that the caller will fill.

    Raises CorruptRecordsError if that is more than `limit` bytes, naming codec, sizes and limit, and for malformed
    data; UnsupportedVersionError for an unknown codec.
    """
    decompress_one = _DECOMPRESSORS.get(codec)
    if decompress_one is None:
        raise UnsupportedVersionError(f"Unknown compression codec {codec:#04x}")
    try:
        out = decompress_one(data, min(limit, _MAX_BATCH_SIZE), headroom)
    except (zlib.error, DecompressionError, struct.error) as error:
        raise CorruptRecordsError(f"{_NAMES[codec]}: {error}") from error
    if out is None:
        raise CorruptRecordsError(
            f"{len(data)} bytes of {_NAMES[codec]} hold more than the {limit} bytes that are allowed decompressed"
        )
    return out


def may_exceed(codec: int, data: Buffer, limit: int) -> bool:
    """Whether `data` could stand for more than `limit` bytes, as far as that shows without decompressing it.

    True for malformed data, whose size nobody knows.
    """
    try:
        return bool(_BOUNDS[codec](data) > limit)
    except (KeyError, CorruptRecordsError, DecompressionError, struct.error):
        return True


def size_hint(codec: int, data: Buffer) -> int:
    """How many bytes `data` seems to hold, without decompressing it; what malformed data give means nothing.

    The others say so or are bounded; gzip says it of its last member, which is all that usual writers make (RFC 1952).
    """
    if codec == CODECS["gzip"]:
        return min(int.from_bytes(data[-4:], "little"), len(data) * _GZIP_MAX_RATIO)
    try:
        return int(_BOUNDS[codec](data))
    except (KeyError, CorruptRecordsError, DecompressionError, struct.error):
        return len(data)


def _gzip(data: Buffer, limit: int, headroom: int) -> bytearray | None:
    """Member after member, as gzip files may have several; None if there is more than `limit`."""
    out, position = bytearray(headroom), 0
    while position < len(data):
        member = zlib.decompressobj(GZIP_WINDOW)
        while not member.eof:
            step = data[position : position + _GZIP_STEP]
            if not step:
                raise CorruptRecordsError("gzip data is cut short")
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
        raise CorruptRecordsError(f"snappy: {len(data)} bytes cannot hold {total}")
    out = bytearray(headroom + total)
    with memoryview(out) as view:
        position = headroom
        for block, size in blocks:
            snappy.decompress_raw_into(block, view[position : position + size])
            position += size
    return out


def _snappy_blocks(data: Buffer) -> Iterator[tuple[Buffer, int]]:
    """The blocks and how much each says it holds."""
    for block in _xerial_blocks(data) if data[: len(XERIAL_HEADER)] == XERIAL_HEADER else (data,):
        yield block, int(snappy.decompress_raw_len(block))


def _xerial_blocks(data: Buffer) -> Iterator[Buffer]:
    position = len(XERIAL_HEADER)
    while position < len(data):
        (size,) = XERIAL_BLOCK_SIZE.unpack_from(data, position)
        position += XERIAL_BLOCK_SIZE.size
        if not 0 <= size <= len(data) - position:
            raise CorruptRecordsError(f"a snappy block of {size} bytes where {len(data) - position} are left")
        yield data[position : position + size]
        position += size


def _framed(
    bound_of: Callable[[Buffer], int], decompress_into: Callable[[Any, Any], int]
) -> Callable[[Buffer, int, int], bytearray | None]:
    """The decompressor of a codec whose frames say how much they hold at the most."""

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
