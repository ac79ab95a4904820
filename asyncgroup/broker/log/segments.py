"""The segments of a partition's log (Kafka's `LogSegments`), the unit of retention and compaction, and their store.

Two protocols, `Segment` and `SegmentStore`, hide where the bytes are: in memory here, in files in `file_segments`. A
segment in memory consists of chunks that are allocated once and never resized, so a fetch returns a view of it
without a copy. Every change is written to the store first: after a disk error the segments are unchanged, or old ones
are left that the next attempt removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, overload

from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.log.batch_index import BatchIndex, SegmentChunk, StoredBatch
from asyncgroup.broker.log.memory_chunks import LARGEST_CHUNK, MemoryChunk
from asyncgroup.wire.batch_view import BatchView, assign_offsets
from asyncgroup.wire.primitives import Buffer

__all__ = ["LogSegments", "MemoryStore", "Segment", "SegmentStore", "append_stamped", "update_timestamps"]

_FIRST_CHUNK: Final = 1 << 14


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
        self._capacity = min(2 * self._capacity, LARGEST_CHUNK)
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
            old[0].base_offset, lambda least: MemoryChunk(max(min(most, LARGEST_CHUNK), least))
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


DEFAULT_SEGMENT_BYTES: Final = 1 << 30
DEFAULT_SEGMENT_MS: Final = 604_800_000
"""Kafka's defaults of `segment.bytes` and `segment.ms`."""


class LogSegments(Sequence[Segment]):
    """The segments of the log `name`, the active one last; `store` keeps them.

    A new segment begins after `segment_bytes`, or after `segment_ms` by the records' timestamps (Kafka's configs).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.segment_bytes = DEFAULT_SEGMENT_BYTES
        self.segment_ms = DEFAULT_SEGMENT_MS
        self.store: SegmentStore = MemoryStore()
        self.batch_index = BatchIndex()
        self._segments: list[Segment] = []

    def __repr__(self) -> str:
        return f"<LogSegments of {self.name}: {len(self._segments)}>"

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...

    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._segments[index]

    @contextmanager
    def storage_errors(self) -> Iterator[None]:
        """Context manager: raise KafkaStorageError for an OSError."""
        try:
            yield
        except OSError as error:
            raise KafkaStorageError(f"{self.name}: {error}") from error

    def restore(self, segments: Iterable[Segment]) -> None:
        """Take over the segments found on disk; the caller fills the index."""
        self._segments = list(segments)

    # -- at the end ------------------------------------------------------------------------------------------

    def append(self, batch: BatchView, base_offset: int, leader_epoch: int) -> None:
        """Append a batch at `base_offset`, the log end offset. Raise KafkaStorageError."""
        with self.storage_errors():
            segment = self._segment_for(batch, base_offset)
            chunk, position = segment.append(batch.data, base_offset, leader_epoch)
        update_timestamps(segment, batch.max_timestamp)
        self.batch_index.add(
            StoredBatch(base_offset, batch.max_timestamp, chunk, position, batch.size),
            base_offset + batch.last_offset_delta,
        )

    def _segment_for(self, batch: BatchView, end_offset: int) -> Segment:
        """Return the segment to append the batch to: the active one, or a new one (`LogSegment.shouldRoll`)."""
        if not self._segments:
            return self._new_segment(end_offset)
        active = self._segments[-1]
        if not active.size:
            return active
        age = batch.max_timestamp - active.first_timestamp if active.first_timestamp >= 0 else 0
        full = active.size + batch.size > self.segment_bytes or age > self.segment_ms
        return self._new_segment(end_offset) if full else active

    def roll(self, end_offset: int) -> None:
        """Begin a new segment at `end_offset` unless the active one is empty. Raise KafkaStorageError."""
        if self._segments and self._segments[-1].size:
            with self.storage_errors():
                self._new_segment(end_offset)

    def _new_segment(self, end_offset: int) -> Segment:
        segment = self.store.create(end_offset)
        self._segments.append(segment)
        return segment

    def truncate(self, offset: int) -> StoredBatch | None:
        """Drop the batch that holds `offset` and all after it; return it, None if nothing is dropped.

        Raise KafkaStorageError.
        """
        index = self.batch_index
        keep = index.find(offset)
        if keep == len(index.batches):
            return None
        first = index.batches[keep]
        count = sum(segment.base_offset <= first.base_offset for segment in self._segments)
        segment, later = self._segments[count - 1], self._segments[count:]
        stop = index.count_before(later[0].base_offset if later else None)
        with self.storage_errors():
            # from the last segment backwards, so that a crash leaves no gap
            self.store.remove(later[::-1])
            del self._segments[count:]
            segment.truncate(first)
        segment.size -= index.size_between(keep, stop)
        index.truncate(keep)
        segment.max_timestamp = segment.first_timestamp = -1
        for batch in index.batches[index.count_before(segment.base_offset) :]:
            update_timestamps(segment, batch.max_timestamp)
        return first

    # -- at the front ----------------------------------------------------------------------------------------

    def drop_front(self, count: int, end_offset: int, advance_start: Callable[[int], None]) -> None:
        """Delete the first `count` segments; `advance_start` moves the log start offset. Raise OSError."""
        if not count:
            return
        if count == len(self._segments):
            self._new_segment(end_offset)  # its base offset keeps the log end offset
        # The start is saved first: files that cannot be deleted are then before it and deleted the next time.
        advance_start(self._segments[count].base_offset)
        old, self._segments = self._segments[:count], self._segments[count:]
        self.store.remove(old)

    # -- within ----------------------------------------------------------------------------------------------

    def groups(self, count: int) -> list[list[Segment]]:
        """Group the first `count` segments, adjacent ones to rewrite as one, so that cleaned segments do not get tiny.

        Kafka's `groupSegmentsBySize`.
        """
        groups: list[list[Segment]] = []
        for segment in self._segments[:count]:
            if groups and sum(one.size for one in groups[-1]) + segment.size <= self.segment_bytes:
                groups[-1].append(segment)
            else:
                groups.append([segment])
        return groups

    def rewrite(
        self, group: list[Segment], batches: Iterable[BatchView]
    ) -> tuple[Segment, list[tuple[StoredBatch, int]]]:
        """Replace a group by one segment with these batches; return it, and their new places and last offsets.

        A segment without batches is not taken over; the caller removes it from the store. The caller also updates the
        index, once for all groups. Raise OSError.
        """
        place = self._segments.index(group[0])
        segment, written = self.store.rewrite(group, batches)
        self._segments[place : place + len(group)] = [segment] if written else []
        return segment, written

    def following(self, group: list[Segment]) -> Segment:
        """Return the segment after a group; there always is one, the active segment."""
        return self._segments[self._segments.index(group[0]) + len(group)]
