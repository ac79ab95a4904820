"""Compression of batches: levels, and what other readers need."""

from __future__ import annotations

import random

import cramjam
import pytest
from hypothesis import given, strategies as st

from asyncgroup.config.producer import COMPRESSION_LEVELS
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.compression import compress
from asyncgroup.wire.decompression import CODECS, decompress
from asyncgroup.wire.records import BatchBuilder, decode_batch

TEXT = b"".join(b'{"number": %d, "name": "name %d"}' % (number, number % 50) for number in range(3000))
COMPRESSING = sorted(CODECS.keys() - {"none"})


@pytest.mark.parametrize("codec", COMPRESSING)
@given(data=st.binary(max_size=2000).map(lambda data: data * 40))
def test_what_is_compressed_can_be_decompressed(codec: str, data: bytes) -> None:
    assert decompress(CODECS[codec], compress(CODECS[codec], data)) == data


@pytest.mark.parametrize("codec", sorted(COMPRESSION_LEVELS))
def test_higher_levels_compress_more(codec: str) -> None:
    levels = COMPRESSION_LEVELS[codec]
    lowest = levels.start if codec != "zstd" else -50
    small, large = (compress(CODECS[codec], TEXT, level) for level in (levels.stop - 1, lowest))
    assert len(small) < len(large) < len(TEXT)
    assert decompress(CODECS[codec], small) == decompress(CODECS[codec], large) == TEXT


def test_lz4_blocks_are_independent_and_without_a_checksum_of_the_content() -> None:
    """Java's reader refuses blocks that depend on each other (KIP-57)."""
    flags = compress(CODECS["lz4"], TEXT)[4]
    assert flags & 0b0010_0000
    assert not flags & 0b0000_0100


@pytest.mark.parametrize(
    ("size", "block_size"),
    [
        (0, 0x40),
        (1 << 16, 0x40),
        ((1 << 16) + 1, 0x50),
        (300_000, 0x60),
        ((1 << 20) + 1, 0x70),
        (5 << 20, 0x70),
    ],
)
@pytest.mark.parametrize("data", [TEXT, random.Random(1).randbytes(100_000)], ids=["text", "random"])
def test_lz4_frames_of_every_block_size(size: int, block_size: int, data: bytes) -> None:
    data = (data * (size // len(data) + 1))[:size]
    frame = compress(CODECS["lz4"], data)
    assert frame[5] == block_size
    assert decompress(CODECS["lz4"], frame) == data
    assert bytes(cramjam.lz4.decompress(frame)) == data


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_compressed_batch_keeps_its_header(codec: str) -> None:
    builder = BatchBuilder(codec)
    builder.append(1000, b"key", b"." * 500, [("name", b"value")])
    batch = BatchView(builder.build(7, 2, 30))
    assert batch.codec == CODECS[codec]
    assert batch.crc_is_valid()
    assert batch.size < 200
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, 30)
    (record,) = decode_batch("t", 0, batch)
    assert (record.key, record.value, list(record.headers)) == (b"key", b"." * 500, [("name", b"value")])
    assert record.timestamp == 1000
