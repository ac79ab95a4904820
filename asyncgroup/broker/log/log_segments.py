"""The segments of one log, with the index of their batches (Kafka's `LogSegments` and `LocalLog`).

Every change is written to the store first: after a disk error the segments are unchanged, or old ones are left that the
next attempt removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, overload

from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.log.batch_index import BatchIndex
from asyncgroup.broker.log.segments import MemoryStore, Segment, SegmentStore, StoredBatch, update_timestamps
from asyncgroup.wire.batch_view import BatchView

__all__ = ["LogSegments"]

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
