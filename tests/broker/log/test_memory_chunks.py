"""The memory of deleted records goes back to the system."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from asyncgroup.broker.log import memory_chunks
from asyncgroup.broker.log.memory_chunks import MemoryChunk
from asyncgroup.broker.log.partition_log import PartitionLog
from tests.broker.batches import append, batch
from tests.memory_use import MEGABYTE

STATM = Path("/proc/self/statm")


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from /proc")
def test_deleted_records_are_given_back_to_the_system(log: PartitionLog) -> None:
    """With small objects above each buffer, and after the heap's threshold for mappings has been raised, which glibc does."""
    del [bytearray(16 * MEGABYTE)][0]
    data = batch(b"x" * 200_000)
    log.segments.segment_bytes = MEGABYTE
    pins, before = [], resident()
    for _ in range(80):
        append(log, data, 0)
        pins.append(bytes(5000))
    full = resident()
    assert full - before > 12 * MEGABYTE
    assert log.delete_old_segments(0, -1, 2 * MEGABYTE) > 10
    assert resident() - before < 6 * MEGABYTE
    assert len(pins) == 80


def test_a_read_keeps_the_memory_of_deleted_records(log: PartitionLog) -> None:
    append(log, batch(b"x" * 100_000), 0)
    read = log.read(0, 1 << 20)
    log.roll()
    log.delete_records(1)
    assert log.delete_segments_before_start() == 1
    assert bytes(read).count(b"x" * 1000) == 100


def test_without_mappings_records_are_in_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have a limited number of mappings."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(memory_chunks.mmap, "mmap", refuse)
    chunk = MemoryChunk(1 << 20)
    chunk.data[5:8] = b"abc"
    assert bytes(chunk.read(5, 3)) == b"abc"
