"""Segments of a partition's log (Kafka's `LogSegment`): the unit of retention and compaction.

Two protocols, `Segment` and `SegmentStore`, hide where the bytes are: in memory here, in files in `storage/`. A
segment in memory consists of chunks that are allocated once and never resized, so a fetch returns a view of it
without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from asyncgroup.wire.batch_view import BatchView, assign_offsets, batch_at
from asyncgroup.wire.primitives import Buffer

__all__ = [
    "MemoryStore",
    "Segment",
    "SegmentChunk",
    "SegmentStore",
    "StoredBatch",
    "append_stamped",
    "update_timestamps",
]

_FIRST_CHUNK: Final = 1 << 14
_LARGEST_CHUNK: Final = 1 << 22


class SegmentChunk(Protocol):
    """A contiguous range of bytes; one read does not go beyond its end."""

    @property
    def used(self) -> int:
        """The position after the last batch."""

    def read(self, position: int, size: int) -> memoryview | bytes:
        """Return `size` bytes from `position` on; later changes of the log do not affect them."""


class StoredBatch(NamedTuple):
    """The location of a batch, and the header fields that the index needs."""

    base_offset: int
    max_timestamp: int
    chunk: SegmentChunk
    position: int
    size: int

    def bytes(self) -> memoryview | bytes:
        """Read the bytes of the batch."""
        return self.chunk.read(self.position, self.size)

    def read(self) -> BatchView:
        """Read the batch."""
        batch = batch_at(self.bytes())
        assert batch is not None
        return batch


class Segment(Protocol):
    """A part of a log, from `base_offset` to the base offset of the next segment."""

    base_offset: int
    size: int
    """Bytes of all batches."""
    max_timestamp: int
    """The largest timestamp of all batches in ms, -1 without batches."""
    first_timestamp: int
    """The largest timestamp of the first batch in ms, from which `segment.ms` counts; -1 without batches."""

    def append(self, data: Buffer, base_offset: int, leader_epoch: int) -> tuple[SegmentChunk, int]:
        """Append a batch with this base offset and leader epoch written into it; return its chunk and position.

        After an OSError the segment is unchanged.
        """

    def truncate(self, batch: StoredBatch) -> None:
        """Drop this batch and all after it. The caller updates `size` and the timestamps."""


class SegmentStore(Protocol):
    """Storage of one partition's segments. All methods raise OSError if the disk fails."""

    def create(self, base_offset: int) -> Segment:
        """Create an empty segment."""

    def remove(self, segments: Sequence[Segment]) -> None:
        """Delete segments, in this order."""

    def rewrite(
        self, old: Sequence[Segment], batches: Iterable[BatchView]
    ) -> tuple[Segment, list[tuple[StoredBatch, int]]]:
        """Replace adjacent segments by one with these batches, atomically with respect to crashes.

        Return the segment, and the new location and last offset of each batch.
        """

    def save_start_offset(self, start_offset: int) -> None:
        """Save the new log start offset; called before segments are deleted."""


def update_timestamps(segment: Segment, max_timestamp: int) -> None:
    """Update the segment's timestamps for an appended batch."""
    segment.max_timestamp = max(segment.max_timestamp, max_timestamp)
    if segment.first_timestamp < 0:
        segment.first_timestamp = max_timestamp


class MemoryChunk:
    """A fixed-size buffer."""

    __slots__ = ("data", "used", "view")

    def __init__(self, capacity: int) -> None:
        self.data = bytearray(capacity)
        self.view = memoryview(self.data).toreadonly()
        self.used = 0

    def read(self, position: int, size: int) -> memoryview:
        """Return a view, without a copy."""
        return self.view[position : position + size]


class MemorySegment:
    """A segment in memory, in chunks of growing size; `growing` allocates a chunk of at least the given size."""

    __slots__ = ("_chunk", "_growing", "base_offset", "first_timestamp", "max_timestamp", "size")

    def __init__(self, base_offset: int, growing: Callable[[int], MemoryChunk]) -> None:
        self.base_offset = base_offset
        self.size = 0
        self.max_timestamp = self.first_timestamp = -1
        self._growing = growing
        self._chunk: MemoryChunk | None = None

    def __repr__(self) -> str:
        return f"<MemorySegment from {self.base_offset}, {self.size} bytes>"

    def append(self, data: Buffer, base_offset: int, leader_epoch: int) -> tuple[MemoryChunk, int]:
        """See `Segment`."""
        chunk, size = self._chunk, len(data)
        if chunk is None or chunk.used + size > len(chunk.data):
            chunk = self._chunk = self._growing(size)
        position = chunk.used
        chunk.data[position : position + size] = data
        assign_offsets(chunk.data, base_offset, leader_epoch, position)
        chunk.used += size
        self.size += size
        return chunk, position

    def truncate(self, batch: StoredBatch) -> None:
        """See `Segment`. The next batch goes to a new chunk, because fetches may hold views of the dropped bytes."""
        assert isinstance(batch.chunk, MemoryChunk)
        batch.chunk.used = batch.position
        self._chunk = None


class MemoryStore:
    """`SegmentStore` in memory."""

    def __init__(self) -> None:
        self._capacity = _FIRST_CHUNK // 2

    def _grow(self, least: int) -> MemoryChunk:
        self._capacity = min(2 * self._capacity, _LARGEST_CHUNK)
        return MemoryChunk(max(self._capacity, least))

    def create(self, base_offset: int) -> MemorySegment:
        """See `SegmentStore`."""
        return MemorySegment(base_offset, self._grow)

    def remove(self, segments: Sequence[Segment]) -> None:
        """Nothing to do: a chunk is freed with the last view of it."""

    def rewrite(
        self, old: Sequence[Segment], batches: Iterable[BatchView]
    ) -> tuple[MemorySegment, list[tuple[StoredBatch, int]]]:
        """See `SegmentStore`."""
        kept = list(batches)
        most = sum(batch.size for batch in kept)
        segment = MemorySegment(
            old[0].base_offset, lambda least: MemoryChunk(max(min(most, _LARGEST_CHUNK), least))
        )
        return segment, [append_stamped(segment, batch) for batch in kept]

    def save_start_offset(self, start_offset: int) -> None:
        """Nothing to do."""


def append_stamped(segment: Segment, batch: BatchView) -> tuple[StoredBatch, int]:
    """Append a batch with the offset and leader epoch that it already has; return its location and last offset."""
    chunk, position = segment.append(batch.data, batch.base_offset, batch.leader_epoch)
    update_timestamps(segment, batch.max_timestamp)
    stored = StoredBatch(batch.base_offset, batch.max_timestamp, chunk, position, batch.size)
    return stored, batch.last_offset
