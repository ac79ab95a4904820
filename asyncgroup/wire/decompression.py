"""Decompression with a limit, because a thousand compressed bytes may expand to gigabytes.

Snappy data stores its decompressed size, and gzip is stopped at the limit. LZ4 and zstd data is decompressed into a
buffer of a guessed size, and if it does not fit, again into one four times as large, up to the limit: the attempts that
fail write at most four thirds of the data. At most `limit` bytes are allocated, and no size that the compressed data only
claims: a buffer is never larger than 64 KiB, 54 times the compressed size or four times what was decompressed. gzip data
may take twice the limit, for the output and its last piece.

Snappy data has two forms: a single block, or the framing of Java's library (`SnappyOutputStream` of xerial).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from cramjam import DecompressionError, lz4, snappy, zstd

from asyncgroup.errors import CorruptRecordsError, UnsupportedVersionError
from asyncgroup.wire.primitives import Buffer

__all__ = [
    "CODECS",
    "GZIP_WINDOW",
    "MAX_DECOMPRESSED",
    "XERIAL_BLOCK_SIZE",
    "XERIAL_HEADER",
    "decompress",
    "decompress_into",
    "decompress_within",
    "too_large",
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

_GZIP_STEP: Final = 1 << 14
"""Bytes passed to zlib at once; zlib copies back what belongs to the next member, so a step should be small."""

_SNAPPY_MAX_RATIO: Final = 22
"""Maximum decompressed bytes per byte of a snappy block: a copy of 64 bytes takes three."""

XERIAL_HEADER: Final = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
"""Header of snappy data in the framing of Java's library: a magic and two version numbers."""

XERIAL_BLOCK_SIZE: Final = struct.Struct(">i")
"""The size field before each block of that framing."""

_SMALLEST_SIZE: Final = 1 << 14
_MARGIN: Final = 1.125
"""LZ4 and zstd data first gets a buffer of 16 KiB, or an eighth more than by the ratio of the data before."""

_LARGEST_CLAIM: Final = 1 << 16
_LARGEST_RATIO: Final = 48
"""The size in a zstd header is believed up to 64 KiB, or this many times the compressed size; so is the ratio before."""

_GROWTH: Final = 4
"""How many times as large each further buffer is."""

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER_SIZE: Final = 18
"""Maximum size of a frame header: magic, flags, window, dictionary id and content size."""


def decompress(codec: int, data: Buffer, limit: int = MAX_DECOMPRESSED, headroom: int = 0) -> bytearray:
    """Return the decompressed data, after `headroom` zero bytes that the caller can fill.

    Raises CorruptRecordsError if it is larger than `limit` bytes or malformed, UnsupportedVersionError for an unknown
    codec.
    """
    out = decompress_within(codec, data, limit, headroom)
    if out is None:
        raise too_large(codec, data, limit)
    return out


def too_large(codec: int, data: Buffer, limit: int) -> CorruptRecordsError:
    """Return the error for data for which `decompress_within` returned None."""
    sizes = f"{len(data)} bytes of {_NAMES[codec]} data decompress to more than the limit of {limit} bytes"
    return CorruptRecordsError(sizes)


def decompress_within(codec: int, data: Buffer, limit: int, headroom: int = 0) -> bytearray | None:
    """Like `decompress`, but return None if the decompressed data is larger than `limit` bytes.

    Malformed data that fills `limit` bytes before the error counts as larger.
    """
    decompress_one = _DECOMPRESSORS.get(codec)
    if decompress_one is None:
        raise UnsupportedVersionError(f"unknown compression codec {codec:#04x}")
    try:
        # no batch can have more, so no buffer is larger
        return decompress_one(data, min(limit, _MAX_BATCH_SIZE), headroom)
    except (zlib.error, DecompressionError, struct.error) as error:
        raise CorruptRecordsError(f"{_NAMES[codec]}: {error}") from error


def _gzip(data: Buffer, limit: int, headroom: int) -> bytearray | None:
    """Decompress all members, as gzip data may have several; return None if the result exceeds `limit`."""
    out, position = bytearray(headroom), 0
    while position < len(data):
        member = zlib.decompressobj(GZIP_WINDOW)
        while not member.eof:
            step = data[position : position + _GZIP_STEP]
            if not step:
                raise CorruptRecordsError("gzip data is truncated")
            # one byte more than allowed shows that there is more, without decompressing it
            out += member.decompress(step, headroom + limit + 1 - len(out))
            if len(out) > headroom + limit:
                return None
            # what zlib has not used begins the next member
            position += len(step) - len(member.unused_data)
    return out


def _snappy(data: Buffer, limit: int, headroom: int) -> bytearray | None:
    blocks = list(_snappy_blocks(data))
    total = sum(size for _, size in blocks)
    # by the sizes in the blocks, before any memory is taken
    if total > limit:
        return None
    # no honest block claims that: the memory would be for nothing
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
        # a size may be negative
        if not 0 <= size <= len(data) - position:
            raise CorruptRecordsError(
                f"a snappy block of {size} bytes, but only {len(data) - position} are left"
            )
        yield data[position : position + size]
        position += size


def decompress_into(codec: int, data: Buffer, out: memoryview) -> int | None:
    """Decompress into a buffer, for many small pieces of data; return the size, None if it is larger than the buffer.

    Raises CorruptRecordsError for malformed data, UnsupportedVersionError for an unknown codec.
    """
    try:
        if (size := _INTO[codec](data, out) if codec in _INTO else None) is not None:
            return size
    except (zlib.error, DecompressionError, struct.error) as error:
        raise CorruptRecordsError(f"{_NAMES[codec]}: {error}") from error
    # for what the fast ways leave: several blocks, other flags
    found = decompress_within(codec, data, len(out))
    if found is None:
        return None
    out[: len(found)] = found
    return len(found)


def _gzip_into(data: Buffer, out: memoryview) -> int | None:
    """Decompress gzip data that consists of one member; None for other data, and if it does not fit."""
    member = zlib.decompressobj(GZIP_WINDOW)
    found = member.decompress(data, len(out) + 1)
    # several members, or no room: the other way tells them apart
    if not member.eof or member.unused_data or len(found) > len(out):
        return None
    out[: len(found)] = found
    return len(found)


def _only_block(data: Buffer) -> Buffer | None:
    """Return the block of snappy data that has only one; else None."""
    if data[: len(XERIAL_HEADER)] != XERIAL_HEADER:
        return data
    begin = len(XERIAL_HEADER) + XERIAL_BLOCK_SIZE.size
    if len(data) < begin:
        return None
    (size,) = XERIAL_BLOCK_SIZE.unpack_from(data, len(XERIAL_HEADER))
    return data[begin:] if begin + size == len(data) else None


_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_HEADER: Final = 7
"""Bytes of a frame header: magic, flags, block size, checksum. Then follows the size of the first block."""
_LZ4_VERSION: Final = 0x40
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_BLOCK_CHECKSUM: Final = 0x10
_LZ4_CHECKSUM: Final = 0x04
"""The flags of a frame: its version, independent blocks, a checksum after each block, and one of the content."""
_LZ4_KNOWN: Final = _LZ4_INDEPENDENT | _LZ4_BLOCK_CHECKSUM | _LZ4_CHECKSUM
_LZ4_STORED: Final = 1 << 31
"""The bit in a block's size that marks data which is not compressed."""
_LZ4_END: Final = bytes(4)


def _lz4_block_into(data: Buffer, out: memoryview) -> int | None:
    """Decompress an LZ4 frame of one block, as all small ones are; None for other frames, and if that fails.

    The library takes ten times as long for a frame as for its block. The checksums are not verified (Java also ignores that
    of the content: `Lz4BlockInputStream`): the CRC of the record batch covers all of it.
    """
    begin = _LZ4_HEADER + 4
    if len(data) < begin + 4 or data[:4] != _LZ4_MAGIC:
        return None
    flags = data[4]
    size = int.from_bytes(data[_LZ4_HEADER:begin], "little")
    is_stored, size = size >= _LZ4_STORED, size & ~_LZ4_STORED
    end = begin + size + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)
    is_whole = end + 4 + (flags & _LZ4_CHECKSUM) == len(data) and data[end : end + 4] == _LZ4_END
    # content size and dictionary have more fields in the header
    if flags & ~_LZ4_KNOWN != _LZ4_VERSION or not is_whole:
        return None
    if is_stored:
        if size > len(out):
            return None
        out[:size] = data[begin : begin + size]
        return size
    try:
        return int(lz4.decompress_block_into(data[begin : begin + size], out, output_len=len(out)))
    except DecompressionError:
        return None


def _snappy_into(data: Buffer, out: memoryview) -> int | None:
    """Decompress snappy data that consists of one block; None for other data, and if it does not fit."""
    block = _only_block(data)
    if block is None:
        return None
    size = int(snappy.decompress_raw_len(block))
    if size > len(out):
        return None
    if size > len(block) * _SNAPPY_MAX_RATIO:
        raise CorruptRecordsError(f"snappy: {len(block)} bytes cannot decompress to {size} bytes")
    return int(snappy.decompress_raw_into(block, out[:size]))


# --- LZ4 and zstd: into a buffer that grows --------------------------------------------------------------------------


class _GrowingBuffer:
    """The decompressor of a codec, a module of cramjam, that only knows buffers of a given size.

    It remembers the ratio of the data before: the batches of a topic compress alike.
    """

    def __init__(self, codec: Any, claimed_size: Callable[[Buffer], int | None]) -> None:
        self._decompress_into: Callable[[Buffer, memoryview], int] = codec.decompress_into
        self._claimed_size = claimed_size
        self._does_not_fit = _error_without_room(codec)
        self._ratio = 4.0

    def __call__(self, data: Buffer, limit: int, headroom: int) -> bytearray | None:
        size = min(self._first_size(data), limit)
        while True:
            out = bytearray(headroom + size)
            try:
                with memoryview(out) as view, view[headroom:] as target:
                    written = self._decompress_into(data, target)
            except DecompressionError as error:
                if str(error) != self._does_not_fit:
                    raise
            else:
                # one batch of zeros must not give the next ones a buffer of megabytes
                self._ratio = min(_LARGEST_RATIO, written / max(1, len(data)))
                if 2 * written < size:
                    # a copy: it may be kept, and the large buffer be used again
                    return out[: headroom + written]
                del out[headroom + written :]
                return out
            # it does not fit into the limit either
            if size == limit:
                return None
            del out  # before the next one is allocated
            size = min(max(size, _SMALLEST_SIZE) * _GROWTH, limit)

    def into(self, data: Buffer, out: memoryview) -> int | None:
        """Decompress into a buffer; return the size, None if it does not fit."""
        try:
            return self._decompress_into(data, out)
        except DecompressionError as error:
            if str(error) != self._does_not_fit:
                raise
            return None

    def _first_size(self, data: Buffer) -> int:
        claimed = self._claimed_size(data)
        if claimed is None:
            return max(_SMALLEST_SIZE, int(len(data) * self._ratio * _MARGIN))
        # a false claim costs this much memory at most
        return min(claimed, max(_LARGEST_CLAIM, len(data) * _LARGEST_RATIO))


def _error_without_room(codec: Any) -> str:
    """Return the text of the error for a buffer that is too small; only by it that error differs from those of malformed data.

    The library is asked for it, so that a version with another text does no harm.
    """
    try:
        codec.decompress_into(bytes(codec.compress(b"x")), bytearray())
    except DecompressionError as error:
        return str(error)
    raise AssertionError(f"{codec.__name__} wrote into an empty buffer")


def _zstd_size(data: Buffer) -> int | None:
    """Return the content size in the header of the first frame, None without one (RFC 8878, 3.1.1.1)."""
    head = bytes(data[:_ZSTD_HEADER_SIZE])
    if len(head) < _ZSTD_HEADER_SIZE or not head.startswith(_ZSTD_MAGIC):
        return None
    flags = head[4]
    is_single = flags >> 5 & 1
    width = (is_single, 2, 4, 8)[flags >> 6]
    if width == 0:
        return None
    at = 6 - is_single + (0, 1, 2, 4)[flags & 3]
    return int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)


_DECOMPRESSORS: Final[dict[int, Callable[[Buffer, int, int], bytearray | None]]] = {
    CODECS["gzip"]: _gzip,
    CODECS["snappy"]: _snappy,
    CODECS["lz4"]: _GrowingBuffer(lz4, lambda _data: None),
    CODECS["zstd"]: _GrowingBuffer(zstd, _zstd_size),
}

_INTO: Final[dict[int, Callable[[Buffer, memoryview], int | None]]] = {
    CODECS["gzip"]: _gzip_into,
    CODECS["snappy"]: _snappy_into,
    CODECS["lz4"]: _lz4_block_into,
    CODECS["zstd"]: _GrowingBuffer(zstd, _zstd_size).into,
}
"""The fast ways of `decompress_into`; for data that they leave, `decompress_within` is asked."""
