"""Which batches are validated on a thread."""

from __future__ import annotations

import os

import pytest

from asyncgroup.broker.log.batch_validator import LARGE_COMPRESSED, LARGE_DECOMPRESSED, should_offload
from asyncgroup.broker.log.compacted_batches import compress
from asyncgroup.wire.decompression import CODECS

COMPRESSING = ["gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", COMPRESSING)
def test_should_offload(codec):
    number = CODECS[codec]
    assert not should_offload(number, compress(number, b"x" * 10_000))
    assert not should_offload(number, compress(number, bytes(LARGE_DECOMPRESSED - (1 << 18))))
    assert should_offload(number, compress(number, bytes(LARGE_DECOMPRESSED + (1 << 18))))
    assert should_offload(number, compress(number, os.urandom(LARGE_COMPRESSED + 1)))
    assert should_offload(number, b"\xff" * (LARGE_COMPRESSED + 1))


def test_uncompressed_data_is_not_offloaded():
    assert not should_offload(CODECS["none"], bytes(10 * LARGE_DECOMPRESSED))
