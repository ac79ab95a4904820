"""RecordBuffer keeps only whole batches: an incomplete batch at the end of a response takes no memory."""

from __future__ import annotations

import pytest

from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import TopicPartition
from asyncgroup.wire.records import BatchBuilder
from tests.consumer.support import pop

TP = TopicPartition("orders", 0)
LOOK = 17
"""Bytes of an incomplete batch that are kept, to check that a batch begins there."""


def batch(size: int) -> bytes:
    builder = BatchBuilder(size_limit=1 << 20)
    builder.append(0, None, bytes(size))
    return builder.build()


def held(data: bytes, *, zero_copy: bool) -> tuple[RecordBuffer, int]:
    """Return a buffer with `data`, and the size of the memory object that its first batch is in."""
    buffer = RecordBuffer(TP, 0, check_crcs=True)
    buffer.add(memoryview(data), zero_copy=zero_copy)
    return buffer, len(buffer.queue.batches[0].data.obj)


@pytest.mark.parametrize("zero_copy", [True, False])
def test_a_large_incomplete_batch_is_not_kept(zero_copy: bool) -> None:
    whole = batch(10_000)
    buffer, memory = held(whole + whole[:9_000], zero_copy=zero_copy)
    assert buffer.bytes == len(whole)
    assert memory == len(whole) + LOOK


def test_with_zero_copy_a_few_useless_bytes_are_kept() -> None:
    whole = batch(10_000)
    tail = whole[:1_000]
    assert held(whole + tail, zero_copy=True)[1] == len(whole + tail)
    assert held(whole + tail, zero_copy=False)[1] == len(whole) + LOOK
    assert held(whole, zero_copy=True)[1] == held(whole, zero_copy=False)[1] == len(whole)


@pytest.mark.parametrize("zero_copy", [True, False])
@pytest.mark.parametrize("kept", [18, 5_000, None])
def test_trailing_bytes_without_a_batch_still_raise(zero_copy: bool, kept: int | None) -> None:
    good = batch(100)
    bad = bytearray(batch(10_000))
    bad[16] = 9  # no such magic
    buffer = RecordBuffer(TP, 0, check_crcs=True)
    buffer.add(memoryview(good + bytes(bad[:kept])), zero_copy=zero_copy)
    assert buffer.advance()
    assert pop(buffer) is not None
    with pytest.raises(CorruptRecordsError, match="magic 9"):
        buffer.advance()


@pytest.mark.parametrize("cut", [0, 5, 16, 17, 100])
def test_an_incomplete_batch_alone_is_ignored(cut: int) -> None:
    buffer = RecordBuffer(TP, 0, check_crcs=True)
    buffer.add(memoryview(batch(1000)[:cut]), zero_copy=False)
    assert not buffer
    assert not buffer.advance()
