"""Decompression stops at the size limit and does not allocate memory for a size that the data only claims."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from contextlib import suppress

import cramjam
import pytest
from hypothesis import example, given, settings, strategies as st

from asyncgroup.errors import CorruptRecordsError, UnsupportedVersionError
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.decompression import CODECS, decompress, decompress_into, decompress_within
from asyncgroup.wire.records import BatchBuilder, decode_batch
from tests.memory_use import MEGABYTE, memory_under
from tests.profiles import examples
from tests.wire.batches import with_valid_crc

XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
COMPRESSED = ["gzip", "snappy", "lz4", "zstd"]


def xerial(data: bytes, block: int = 32 * 1024) -> bytes:
    out = XERIAL_HEADER
    for start in range(0, len(data), block):
        packed = bytes(cramjam.snappy.compress_raw(data[start : start + block]))
        out += struct.pack(">i", len(packed)) + packed
    return out


def streamed(compressor, data: bytes, flush_each: int) -> bytes:
    """Compress as a stream: without a content size, with a block at each flush."""
    out = b""
    for start in range(0, len(data), flush_each):
        compressor.compress(data[start : start + flush_each])
        out += bytes(compressor.flush())
    return out + bytes(compressor.finish())


WRITERS = {
    "gzip": ("gzip", lambda data: gzip.compress(data, 6)),
    "gzip-members": (
        "gzip",
        lambda data: gzip.compress(data[:7]) + gzip.compress(b"") + gzip.compress(data[7:]),
    ),
    "snappy": ("snappy", lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy-xerial": ("snappy", xerial),
    "snappy-xerial-small": ("snappy", lambda data: xerial(data, 100)),
    "lz4": ("lz4", lambda data: bytes(cramjam.lz4.compress(data))),
    "lz4-linked": ("lz4", lambda data: streamed(cramjam.lz4.Compressor(), data, 1 << 30)),
    "lz4-checked": (
        "lz4",
        lambda data: streamed(cramjam.lz4.Compressor(content_checksum=True, block_linked=False), data, 1000),
    ),
    "lz4-frames": (
        "lz4",
        lambda data: bytes(cramjam.lz4.compress(data[:9])) + bytes(cramjam.lz4.compress(data[9:])),
    ),
    "zstd": ("zstd", lambda data: bytes(cramjam.zstd.compress(data))),
    "zstd-19": ("zstd", lambda data: bytes(cramjam.zstd.compress(data, level=19))),
    "zstd-streamed": ("zstd", lambda data: streamed(cramjam.zstd.Compressor(), data, 1 << 30)),
    "zstd-flushed": ("zstd", lambda data: streamed(cramjam.zstd.Compressor(level=1), data, 3000)),
    "zstd-frames": (
        "zstd",
        lambda data: ZSTD_SKIPPABLE + bytes(cramjam.zstd.compress(data)),
    ),
}
"""Codec and compress function of each kind of compressed data."""

DATA = st.binary(max_size=300) | st.builds(
    lambda part, times, rest: part * times + rest,
    st.binary(max_size=9),
    st.integers(0, 40_000),
    st.binary(max_size=40),
)


ZSTD_SKIPPABLE = b"\x50\x2a\x4d\x18\x03\x00\x00\x00xyz"


def unpacked_size(codec: str, data: bytes, limit: int) -> int:
    return len(decompress(CODECS[codec], data, limit))


def unpacked(codec: str, data: bytes, limit: int = MEGABYTE) -> bytes:
    return bytes(decompress(CODECS[codec], data, limit))


def unpacked_into(codec: str, data: bytes | memoryview, room: int) -> bytes | None:
    out = bytearray(room)
    size = decompress_into(CODECS[codec], data, memoryview(out))
    return None if size is None else bytes(out[:size])


@pytest.mark.parametrize("writer", WRITERS)
@given(data=DATA)
@settings(max_examples=examples(60))
@example(b"")
@example(b"\x00" * 600_000)
def test_data_is_restored_and_the_limit_is_exact(writer, data):
    codec, compress = WRITERS[writer]
    packed = compress(data)
    assert unpacked(codec, packed) == data
    assert unpacked(codec, memoryview(packed)) == data
    assert unpacked(codec, packed, len(data)) == data
    assert (
        unpacked_into(codec, packed, len(data)) == unpacked_into(codec, memoryview(packed), 600_001) == data
    )
    if data:
        assert unpacked_into(codec, packed, len(data) - 1) is None
        with pytest.raises(
            CorruptRecordsError,
            match=f"{len(packed)} bytes of {codec} data decompress to more than the limit of {len(data) - 1} bytes",
        ):
            unpacked(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_headroom_bytes_come_first(codec):
    packed = WRITERS[codec][1](b"data" * 100)
    assert decompress(CODECS[codec], packed, 400, 61) == bytes(61) + b"data" * 100


@pytest.mark.parametrize("writer", [name for name in WRITERS if name.startswith(("lz4", "zstd"))])
@given(data=DATA)
@settings(max_examples=examples(20), deadline=None)
@example(b"")
@example(b"\x00" * 600_000)
@example(b"x" * 65_537)
def test_memory_is_bounded_by_the_data_and_not_by_the_limit(writer, data):
    """At most 64 KiB, 54 times the compressed size, or four times the data, and a copy of what is returned."""
    codec, compress = WRITERS[writer]
    packed = compress(data)
    most = max(1 << 16, 54 * len(packed), 4 * len(data))
    with memory_under(most + min(len(data), most // 2) + 8_000):
        assert unpacked_size(codec, packed, 100 * MEGABYTE) == len(data)


@pytest.mark.parametrize("size", [0, 5, 255, 256, 257, 65_535, 65_791, 65_792, 300_000])
@pytest.mark.parametrize("skippable", [False, True])
def test_zstd_data_with_a_content_size_takes_memory_for_that_size_only(size, *, skippable):
    """All widths of the size in the header (RFC 8878, 3.1.1.1.4), which another frame before it hides."""
    data = os.urandom(size)
    packed = ZSTD_SKIPPABLE * skippable + bytes(cramjam.zstd.compress(data))
    unpacked_size(
        "zstd", ZSTD_SKIPPABLE + bytes(cramjam.zstd.compress(os.urandom(100_000))), MEGABYTE
    )  # a ratio of 1
    most = max((1 << 14) + size // 2, 1.13 * len(packed)) if skippable else max(1 << 14, size)
    with memory_under(most + 8_000):
        assert unpacked_size("zstd", packed, 100 * MEGABYTE) == size


TEXT = b"some data, some more data some data, some more data"

FRAMES = {
    "zstd with content size and checksum": (
        "28b52ffd2433dd000070736f6d6520646174612c206d6f7204003d29c8c460e60c5fc50bcaae7e2f"
    ),
    "zstd with checksum": (
        "28b52ffd0458ed000098736f6d6520646174612c20736f6d65206d6f720310044d4130384318caae7e2f"
    ),
    "lz4 with content size, checksum and block checksums": (
        "04224d187c403300000000000000fa20000000b1736f6d6520646174612c200b00326d6f721000020f000b1a00502064617461"
        "ea8d313600000000baea0ccc"
    ),
}
"""`TEXT` in frames as the command-line tools zstd and lz4 write them."""


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_of_other_writers(kind):
    codec, packed = kind.split()[0], bytes.fromhex(FRAMES[kind])
    skippable = ZSTD_SKIPPABLE  # both formats have the same skippable frames
    for frames, count in ((packed, 1), (packed * 3, 3), (skippable + packed + skippable + packed, 2)):
        assert unpacked(codec, frames) == TEXT * count
        assert unpacked(codec, frames, len(TEXT) * count) == TEXT * count
        assert decompress_within(CODECS[codec], frames, len(TEXT) * count - 1) is None
    wrong = packed[:-1] + bytes([packed[-1] ^ 1])
    with pytest.raises(CorruptRecordsError, match=f"^{codec}: "):
        unpacked(codec, wrong)


def with_content_size(packed: bytes, size: int) -> bytes:
    """Replace the header of a zstd frame of cramjam by one with a content size of eight bytes and a window of 8 MiB."""
    width = (1, 2, 4, 8)[packed[4] >> 6]
    assert packed[4] & 0x23 == 0x20, "one segment, no dictionary"
    return (
        packed[:4] + bytes([0xC0 | packed[4] & 0x04, 13 << 3]) + struct.pack("<Q", size) + packed[5 + width :]
    )


@pytest.mark.parametrize("claimed", [0, 1, 4999, 5001, 70_000, 1 << 32, (1 << 64) - 2])
def test_a_false_content_size_is_an_error_and_takes_little_memory(claimed):
    packed = bytes(cramjam.zstd.compress(b"data " * 1000))
    for right in (5000, (1 << 64) - 1):  # the largest number means that the size is unknown
        assert unpacked("zstd", with_content_size(packed, right)) == b"data " * 1000
    with memory_under(100_000), pytest.raises(CorruptRecordsError):
        unpacked("zstd", with_content_size(packed, claimed), 100 * MEGABYTE)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [0, 1, 100, (1 << 14) + 1, (1 << 16) + 1, 1 << 20, (1 << 20) + 1])
def test_decompress_within_returns_none_above_the_limit_only(codec, size):
    packed = WRITERS[codec][1](b"x" * size)
    for limit in (0, 99, 100, 1 << 14, 1 << 16, 1 << 20):
        out = decompress_within(CODECS[codec], packed, limit)
        assert out == (b"x" * size if size <= limit else None)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_malformed_data_is_not_decompressed_into_larger_and_larger_buffers(codec):
    """It is told from data that does not fit by its error; otherwise a few bytes would allocate up to the limit."""
    whole = WRITERS[codec][1](os.urandom(3000))
    unpacked(codec, whole)  # so that a ratio of 1 is expected
    for damaged in (whole[:-2], whole[:100], b"?" + whole[1:], whole + b"?" * 20, b"", b"?" * 50):
        with memory_under(1 << 16), pytest.raises(CorruptRecordsError, match=f"^{codec}: "):
            decompress(CODECS[codec], damaged, 100 * MEGABYTE)


# --- decompression bombs --------------------------------------------------------------------------------------------------------------


def zstd_of_rle_blocks(blocks: int) -> bytes:
    """Return a frame without a content size, with RLE blocks of 128 KiB in four bytes each: a ratio of 32,768."""
    run = (1 << 17) << 3 | 1 << 1
    body = b"".join((run | (number == blocks - 1)).to_bytes(3, "little") + b"x" for number in range(blocks))
    return b"\x28\xb5\x2f\xfd" + bytes([0x00, 7 << 3]) + body


def lz4_of_frames(blocks: int) -> bytes:
    frame = bytes(cramjam.lz4.compress(b"\x00" * (4 * MEGABYTE * 2)))
    return frame * (blocks // 2)


def snappy_of_copies(size: int) -> bytes:
    return bytes(cramjam.snappy.compress_raw(b"\x00" * size))


BOMBS = {
    "gzip": lambda: gzip_bomb(64 * MEGABYTE),
    "gzip of many members": lambda: gzip.compress(b"\x00" * MEGABYTE) * 64,
    "snappy": lambda: snappy_of_copies(64 * MEGABYTE),
    "snappy with a false size": lambda: b"\xff\xff\xff\xff\x0f" + b"\x00" * 100,
    "snappy in blocks": lambda: xerial(b"\x00" * 64 * MEGABYTE, MEGABYTE),
    "lz4": lambda: lz4_of_frames(16),
    "zstd": lambda: bytes(cramjam.zstd.compress(b"\x00" * 64 * MEGABYTE)),
    "zstd of RLE blocks": lambda: zstd_of_rle_blocks(40_000),
}


def gzip_bomb(size: int) -> bytes:
    gzip_compressor = zlib.compressobj(9, wbits=31)
    chunks = [gzip_compressor.compress(bytes(MEGABYTE)) for _ in range(size // MEGABYTE)]
    return b"".join(chunks) + gzip_compressor.flush()


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_decompression_bomb_takes_little_more_memory_than_the_limit(bomb):
    packed, limit = BOMBS[bomb](), 2 * MEGABYTE
    expected = "decompress to more than the limit of 2097152 bytes"
    # gzip data is decompressed in pieces, each at most as large as the limit
    with memory_under(limit * 2.2 + len(packed)), pytest.raises(CorruptRecordsError, match=expected):
        decompress(CODECS[bomb.split()[0]], packed, limit)
    if bomb.startswith(("lz4", "zstd")):
        with memory_under(limit * 1.02 + len(packed)):
            assert decompress_within(CODECS[bomb.split()[0]], packed, limit) is None


@pytest.mark.parametrize("codec", ["snappy", "lz4", "zstd"])
def test_a_claimed_size_is_not_allocated(codec):
    """Not even if the claimed size is within the limit: the blocks that follow are too short for it."""
    claims = {
        "snappy": b"\xff\xff\xff\xff\x07" + b"\x00" * 10,
        "lz4": b"\x04\x22\x4d\x18\x6c\x70" + b"\x00\x00\x00\x80" + bytes(4) + b"\x00" + b"\x00" * 4,
        "zstd": b"\x28\xb5\x2f\xfd\xe0" + b"\x00\x00\x00\x80" + bytes(4) + b"\x01\x00\x00",
    }
    with memory_under(100_000), pytest.raises(CorruptRecordsError):
        decompress(CODECS[codec], claims[codec], 1 << 31)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_error_gives_partition_offset_sizes_and_limit(codec):
    builder = BatchBuilder(codec, 4 * MEGABYTE)
    builder.append(0, b"k", bytes(2 * MEGABYTE))
    batch = builder.build()
    view = BatchView(batch)
    size = len(batch) - 61
    match = rf"orders-3 at offset 0: {size} bytes of {codec} data decompress to more than the limit of 1000000 bytes"
    with pytest.raises(CorruptRecordsError, match=match):
        decode_batch("orders", 3, view, limit=1_000_000)
    (record,) = decode_batch("orders", 3, view, limit=2 * MEGABYTE + 100)
    assert record.value == bytes(2 * MEGABYTE)


def test_a_decompression_bomb_in_a_message_set():
    value = gzip_bomb(64 * MEGABYTE)
    body = bytes([1, 1]) + struct.pack(">qii", 0, -1, len(value)) + value
    batch = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    view = BatchView(batch)
    with pytest.raises(
        CorruptRecordsError,
        match=r"t-0 at offset 0: .* bytes of gzip data decompress to more than the limit of 1048576",
    ):
        decode_batch("t", 0, view, limit=MEGABYTE)


def test_a_record_count_larger_than_the_data():
    builder = BatchBuilder("zstd")
    builder.append(0, b"k", b"v")
    batch = bytearray(builder.build())
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    batch = with_valid_crc(bytes(batch))
    view = BatchView(batch)
    with pytest.raises(CorruptRecordsError, match="9 bytes cannot contain 2147483647 records"):
        decode_batch("t", 0, view)


# --- malformed data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", WRITERS)
@given(data=st.data())
@settings(max_examples=examples(80))
def test_damaged_data_raises_only_corrupt_records_error(writer, data):
    codec, compress = WRITERS[writer]
    packed = compress(b"some data, some more data " * 30)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(packed)))
        packed = packed[:at] + data.draw(st.binary(max_size=6)) + packed[at + data.draw(st.integers(0, 6)) :]
    with suppress(CorruptRecordsError):
        found = unpacked_into(codec, packed, 100_000)
        with suppress(CorruptRecordsError):  # raised alone for a checksum of an LZ4 frame
            assert found in (None, unpacked(codec, packed, 100_000))


def test_the_checksums_of_an_lz4_frame_are_left_to_the_batch_in_small_batches():
    packed = bytes(cramjam.lz4.compress(b"data" * 100))
    assert unpacked_into("lz4", packed[:-4] + b"sum?", 400) == b"data" * 100
    with pytest.raises(CorruptRecordsError):
        unpacked("lz4", packed[:-4] + b"sum?")


@pytest.mark.parametrize("codec", COMPRESSED)
@given(st.binary(max_size=100))
def test_random_bytes(codec, data):
    with suppress(CorruptRecordsError):
        assert len(unpacked(codec, data, 10_000)) <= 10_000


@pytest.mark.parametrize("writer", WRITERS)
def test_truncated_data(writer):
    codec, compress = WRITERS[writer]
    whole = compress(b"some data, some more data " * 30)
    for size in range(1, len(whole)):
        with suppress(CorruptRecordsError):  # a frame, a member or a block may end at that point
            assert unpacked(codec, whole[:size]) != b"some data, some more data " * 30


def test_an_unknown_codec():
    with pytest.raises(UnsupportedVersionError, match="unknown compression codec 0x05"):
        decompress(5, b"data")
