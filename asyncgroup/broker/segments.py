"""Segments of a partition's log, as Kafka's `LogSegment`: what retention deletes whole and compaction rewrites.

Where their bytes lie is behind two small protocols: in memory here, in files in `storage/`. A segment in memory is made
of chunks, each allocated once and never resized, so what a fetch hands out is a view into it and no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchHeader, assign_offsets, read_batch_header

__all__ = ["Batch", "Chunk", "MemoryStore", "Segment", "SegmentStore", "note_timestamp", "write_again"]

_FIRST_CHUNK: Final = 1 << 14
_LARGEST_CHUNK: Final = 1 << 22


class Chunk(Protocol):
    """A run of bytes that a read does not cross."""

    @property
    def used(self) -> int:
        """Where the batches end."""

    def read(self, position: int, size: int) -> memoryview | bytes:
        """`size` bytes from `position` on; they stay as they are whatever happens to the log."""


class Batch(NamedTuple):
    """Where a batch lies, and what has to be known of it without looking."""

    base_offset: int
    max_timestamp: int
    chunk: Chunk
    position: int
    size: int

    def bytes(self) -> memoryview | bytes:
        """The batch."""
        return self.chunk.read(self.position, self.size)

    def header(self) -> BatchHeader:
        """The batch's header."""
        header = read_batch_header(self.bytes())
        assert header is not None
        return header


class Segment(Protocol):
    """A piece of a log from `base_offset` on, `size` bytes of batches; timestamps are ms, -1 if there are none.

    `max_timestamp` is the highest of all its batches, `first_timestamp` that of the first (`segment.ms` counts from it).
    """

    base_offset: int
    size: int
    max_timestamp: int
    first_timestamp: int

    def append(self, data: Buffer, base_offset: int, leader_epoch: int) -> tuple[Chunk, int]:
        """Add a batch, stamped with offset and epoch; where it lies. OSError leaves the segment as it was."""

    def cut(self, batch: Batch) -> None:
        """Drop this batch and all behind it. `size` and timestamps are the caller's to set."""


class SegmentStore(Protocol):
    """Where the segments of one partition are kept. Everything raises OSError where a disk does not do as told."""

    def create(self, base_offset: int) -> Segment:
        """A new segment without batches."""

    def remove(self, segments: Sequence[Segment]) -> None:
        """Forget segments, in this order."""

    def rewrite(
        self, old: Sequence[Segment], batches: Iterable[tuple[BatchHeader, Buffer]]
    ) -> tuple[Segment, list[tuple[Batch, int]]]:
        """Put one segment with these batches in the place of neighbours, in one step that a crash does not halve;
        the segment, and where each batch lies now with its last offset.
        """

    def start_moved(self, start_offset: int) -> None:
        """The log begins here from now on; called before anything is forgotten."""


def note_timestamp(segment: Segment, max_timestamp: int) -> None:
    """A batch came: let the segment's timestamps know."""
    segment.max_timestamp = max(segment.max_timestamp, max_timestamp)
    if segment.first_timestamp < 0:
        segment.first_timestamp = max_timestamp


class MemoryChunk:
    """Bytes that were allocated at once."""

    __slots__ = ("data", "used", "view")

    def __init__(self, capacity: int) -> None:
        self.data = bytearray(capacity)
        self.view = memoryview(self.data).toreadonly()
        self.used = 0

    def read(self, position: int, size: int) -> memoryview:
        """A view, no copy."""
        return self.view[position : position + size]


class MemorySegment:
    """A segment in chunks of growing size."""

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

    def cut(self, batch: Batch) -> None:
        """See `Segment`. What a fetch has handed out are views, so the next batch goes to another chunk."""
        assert isinstance(batch.chunk, MemoryChunk)
        batch.chunk.used = batch.position
        self._chunk = None


class MemoryStore:
    """Segments of one partition in memory."""

    def __init__(self) -> None:
        self._capacity = _FIRST_CHUNK // 2

    def _grow(self, least: int) -> MemoryChunk:
        self._capacity = min(2 * self._capacity, _LARGEST_CHUNK)
        return MemoryChunk(max(self._capacity, least))

    def create(self, base_offset: int) -> MemorySegment:
        """See `SegmentStore`."""
        return MemorySegment(base_offset, self._grow)

    def remove(self, segments: Sequence[Segment]) -> None:
        """Nothing to do: whoever holds a view keeps its chunk."""

    def rewrite(
        self, old: Sequence[Segment], batches: Iterable[tuple[BatchHeader, Buffer]]
    ) -> tuple[MemorySegment, list[tuple[Batch, int]]]:
        """See `SegmentStore`."""
        kept = list(batches)
        most = sum(header.size for header, _ in kept)
        segment = MemorySegment(
            old[0].base_offset, lambda least: MemoryChunk(max(min(most, _LARGEST_CHUNK), least))
        )
        return segment, [write_again(segment, header, data) for header, data in kept]

    def start_moved(self, start_offset: int) -> None:
        """Nothing to do."""


def write_again(segment: Segment, header: BatchHeader, data: Buffer) -> tuple[Batch, int]:
    """Append a batch that has its offset already; where it lies, and its last offset."""
    chunk, position = segment.append(data, header.base_offset, header.leader_epoch)
    note_timestamp(segment, header.max_timestamp)
    batch = Batch(header.base_offset, header.max_timestamp, chunk, position, len(data))
    return batch, header.last_offset
