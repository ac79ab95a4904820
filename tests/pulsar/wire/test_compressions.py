"""Compressed bodies: round trips, wrong sizes, corrupt data, and bombs within the limit of memory."""

from __future__ import annotations

import zlib
from contextlib import suppress

import cramjam
import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import CorruptRecordsError, UnsupportedVersionError
from asyncgroup.pulsar.wire.compression import COMPRESSIONS, compress_body, decompress_body
from tests.memory_use import MEGABYTE, memory_under
from tests.pulsar.wire.strategies import drawn

KINDS = pytest.mark.parametrize("kind", [1, 2, 3, 4], ids=[*COMPRESSIONS][1:])
LIMIT = 1 << 16
BODIES = st.binary(max_size=300) | st.binary(max_size=20).map(lambda part: part * 500)


@given(st.integers(0, 4), BODIES, st.booleans())
@drawn(300)
def test_bodies_are_read_back(kind: int, body: bytes, is_view: bool) -> None:
    compressed = compress_body(kind, bytearray(body))
    found = decompress_body(kind, memoryview(compressed) if is_view else compressed, len(body), LIMIT)
    assert found == body
    assert type(found) is bytes


@given(st.integers(1, 4), BODIES, st.integers(-20, 20).filter(bool))
@drawn(300)
def test_a_size_that_is_not_that_of_the_body(kind: int, body: bytes, difference: int) -> None:
    size = max(0, len(body) + difference)
    if size != len(body):
        with pytest.raises(CorruptRecordsError, match=r"bytes uncompressed, but its metadata says|malformed"):
            decompress_body(kind, compress_body(kind, body), size, LIMIT)


@given(st.integers(1, 4), BODIES, st.data())
@drawn(500)
def test_corrupt_bodies(kind: int, body: bytes, data: st.DataObject) -> None:
    compressed = bytearray(compress_body(kind, body))
    at = data.draw(st.integers(0, len(compressed)))
    until = data.draw(st.integers(at, min(at + 4, len(compressed))))
    compressed[at:until] = data.draw(st.binary(max_size=4))
    with suppress(CorruptRecordsError):
        assert len(decompress_body(kind, compressed, len(body), LIMIT)) == len(body)


@KINDS
@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 30, b"\xf0\xff\xff\xff\x0f", b"no compressed data"])
def test_other_data(kind: int, data: bytes) -> None:
    with pytest.raises(CorruptRecordsError):
        decompress_body(kind, data, 1000, LIMIT)


@KINDS
def test_a_part_of_a_body(kind: int) -> None:
    body = b"".join(b"%d," % number for number in range(300))
    compressed = compress_body(kind, body)
    for size in range(0, len(compressed) - 8, 7):
        with pytest.raises(CorruptRecordsError):
            decompress_body(kind, compressed[:size], len(body), LIMIT)


@KINDS
def test_a_size_above_the_limit_is_refused_before_memory_is_taken(kind: int) -> None:
    compressed = compress_body(kind, b"x" * 1000)
    for size in (1001, LIMIT, 1 << 31, (1 << 32) - 1):
        with (
            memory_under(20_000),
            pytest.raises(CorruptRecordsError, match=f"{size} bytes uncompressed is larger"),
        ):
            decompress_body(kind, compressed, size, 1000)
    with pytest.raises(CorruptRecordsError, match="larger"):
        decompress_body(kind, compressed, -1, 1000)
    assert len(decompress_body(kind, compressed, 1000, 1000)) == 1000


BOMB = 200 * MEGABYTE


@KINDS
def test_a_bomb_takes_no_more_memory_than_its_size_claims(kind: int) -> None:
    if kind == 4:  # snappy has the size at the beginning, and other data for it are malformed
        data = b"\x80\x80\x80\x64" + b"x"
    else:
        data = bytes(compress_body(kind, bytes(BOMB)))
        assert len(data) < BOMB // 100
    with memory_under(4 * MEGABYTE), pytest.raises(CorruptRecordsError):
        decompress_body(kind, data, MEGABYTE, 2 * MEGABYTE)


def test_streams_of_zlib_that_end_and_those_that_are_only_flushed() -> None:
    body = b"Pulsar " * 100
    stream = zlib.compressobj()
    flushed = stream.compress(body) + stream.flush(zlib.Z_SYNC_FLUSH)
    assert decompress_body(2, flushed, len(body), LIMIT) == body
    assert decompress_body(2, zlib.compress(body) + b"more", len(body), LIMIT) == body


def test_frames_of_zstd_that_contain_no_size() -> None:
    body = b"Pulsar " * 100
    compressor = cramjam.zstd.Compressor()
    compressor.compress(body)
    data = bytes(compressor.finish())
    assert decompress_body(3, data, len(body), LIMIT) == body


@pytest.mark.parametrize("kind", [-1, 5, 99])
def test_unknown_compressions(kind: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"compression {kind} is not known"):
        decompress_body(kind, b"x", 1, LIMIT)
    with pytest.raises(ValueError, match=f"compression {kind} is not known"):
        compress_body(kind, b"x")


def test_a_body_that_is_not_compressed() -> None:
    body = bytearray(b"body")
    assert compress_body(0, body) is body
    found = decompress_body(0, memoryview(body), 999, 1)
    assert (found, type(found)) == (b"body", bytes)
