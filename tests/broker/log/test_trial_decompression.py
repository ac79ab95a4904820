"""Which batches are validated on a thread."""

from __future__ import annotations

import os

import pytest

from asyncgroup.broker.log.batch_validator import LARGE_COMPRESSED, LARGE_DECOMPRESSED, trial_decompression
from asyncgroup.broker.log.compacted_batches import compress
from asyncgroup.wire.decompression import CODECS

COMPRESSING = ["gzip", "snappy", "lz4", "zstd"]


def takes_long(number: int, data: bytes) -> bool:
    return trial_decompression(number, data).takes_long


@pytest.mark.parametrize("codec", COMPRESSING)
def test_large_and_malformed_data_takes_long(codec):
    number = CODECS[codec]
    assert not takes_long(number, compress(number, b"x" * 10_000))
    assert not takes_long(number, compress(number, bytes(LARGE_DECOMPRESSED - (1 << 18))))
    assert takes_long(number, compress(number, bytes(LARGE_DECOMPRESSED + (1 << 18))))
    assert takes_long(number, compress(number, os.urandom(LARGE_COMPRESSED + 1)))
    assert takes_long(number, b"\xff" * (LARGE_COMPRESSED + 1))


def test_uncompressed_data_is_not_offloaded():
    assert not takes_long(CODECS["none"], bytes(10 * LARGE_DECOMPRESSED))


@pytest.mark.parametrize("codec", COMPRESSING)
def test_the_size_is_kept_if_it_was_found(codec):
    number = CODECS[codec]
    assert trial_decompression(number, compress(number, b"x" * 10_000)).size == 10_000
    assert trial_decompression(number, compress(number, bytes(LARGE_DECOMPRESSED))).size == LARGE_DECOMPRESSED
    assert trial_decompression(number, compress(number, bytes(LARGE_DECOMPRESSED + 1))).size is None
    assert trial_decompression(number, b"\xff" * 100).size is None
