"""The segments of a log, what is known of their batches, and what makes a log shorter (Kafka's `UnifiedLog`).

Deleting records and retention take from the front, compaction from within, truncation from the end. Each asks the store
first, so that a disk that fails leaves the log as it was, or with old segments that go with the next try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final, NamedTuple

from asyncgroup.broker.batch_index import BatchIndex
from asyncgroup.broker.compaction import Cleaner, Keys
from asyncgroup.broker.errors import PartitionError, StorageError
from asyncgroup.broker.leader_epochs import LeaderEpochs
from asyncgroup.broker.producer_state import AbortedTransaction, ProducerStates
from asyncgroup.broker.segments import Batch, MemoryStore, Segment, SegmentStore, note_timestamp
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.control import ControlType, read_control_type
from asyncgroup.wire.records import BatchHeader

__all__ = ["HIGH_WATERMARK", "SegmentedLog", "ToClean"]

HIGH_WATERMARK: Final = -1
"""In place of an offset in DeleteRecords: all that there is (`DeleteRecordsRequest.HIGH_WATERMARK`)."""

PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000
"""Kafka's default of `producer.id.expiration.ms`."""

DEFAULT_SEGMENT_BYTES: Final = 1 << 30
DEFAULT_SEGMENT_MS: Final = 604_800_000
"""Kafka's defaults of `segment.bytes` and `segment.ms`."""


class ToClean(NamedTuple):
    """What a cleaner would do: clean up to `end_offset`. Of the bytes before it `clean_bytes` were cleaned before and
    `dirty_bytes` were not. `earliest_dirty` is the timestamp (ms) of the first dirty segment, the active one left out;
    infinity without dirty segments.
    """

    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    earliest_dirty: float

    @property
    def ratio(self) -> float:
        """Which part is dirty, from 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class SegmentedLog:
    """What a `PartitionLog` consists of; `store` keeps the segments.

    `segment_bytes` and `segment_ms` say when another segment begins (Kafka's settings; ms by the records' timestamps).
    """

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start_offset = 0
        self.end_offset = 0
        self.held_at: int | None = None
        """Where the followers stand, if they are held back (`EmbeddedCluster.hold_followers`); None: they have all."""
        self.segment_bytes = DEFAULT_SEGMENT_BYTES
        self.segment_ms = DEFAULT_SEGMENT_MS
        self.producers = ProducerStates()
        self.store: SegmentStore = MemoryStore()
        self._epochs = LeaderEpochs()
        self._aborted: list[AbortedTransaction] = []  # in order of their markers
        self._segments: list[Segment] = []  # the last one is the active one
        self._index = BatchIndex()
        self._clean_offset = 0

    @property
    def high_watermark(self) -> int:
        """The offset up to which consumers may read."""
        return self.end_offset if self.held_at is None else min(self.held_at, self.end_offset)

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which `read_committed` consumers may read: no transaction before it is open."""
        unstable = self.producers.first_unstable_offset
        stable = self.high_watermark
        return stable if unstable is None else min(stable, max(unstable, self.start_offset))

    @property
    def _batches(self) -> list[Batch]:
        return self._index.batches

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"{self.topic}-{self.partition}: {error}") from error

    def _remember(self, header: BatchHeader, control_type: ControlType | None) -> None:
        """What a batch in the log says of its producer."""
        if header.producer_id < 0:
            return
        if not header.is_control:
            self.producers.appended(header, header.base_offset)
        else:
            self._ended(header, header.base_offset, control_type)

    def _ended(self, header: BatchHeader, offset: int, control_type: ControlType | None) -> None:
        aborted = self.producers.ended(
            header.producer_id,
            header.producer_epoch,
            offset,
            committed=control_type is not ControlType.ABORT,
            timestamp=header.max_timestamp,
        )
        if aborted is not None:
            self._aborted.append(aborted)

    # -- segments --------------------------------------------------------------------------------------------

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments, the active one last."""
        return self._segments

    def roll(self) -> None:
        """Let a new segment begin, unless the active one is empty; retention and compaction may have the old one."""
        if self._segments and self._segments[-1].size:
            with self._storing():
                self._new_segment()

    def _new_segment(self) -> Segment:
        segment = self.store.create(self.end_offset)
        self._segments.append(segment)
        return segment

    def _segment_for(self, header: BatchHeader) -> Segment:
        """The active segment, a new one if the batch has no place in the old one (`LogSegment.shouldRoll`)."""
        if not self._segments:
            return self._new_segment()
        active = self._segments[-1]
        if not active.size:
            return active
        age = header.max_timestamp - active.first_timestamp if active.first_timestamp >= 0 else 0
        full = active.size + header.size > self.segment_bytes or age > self.segment_ms
        return self._new_segment() if full else active

    # -- from the front --------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Let the log start at `before_offset` (HIGH_WATERMARK: at its end); the offset where it starts now (KIP-107).

        Raises PartitionError(OFFSET_OUT_OF_RANGE) for an offset that is not in the log yet, StorageError.
        """
        if before_offset == HIGH_WATERMARK:
            before_offset = self.high_watermark
        if not 0 <= before_offset <= self.high_watermark:
            raise PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)
        with self._storing():
            self._move_start(before_offset)
        return self.start_offset

    def retain(self, now_ms: int, retention_ms: int, retention_bytes: int) -> int:
        """Delete segments from the front: those before the log's start, those too many for `retention_bytes`, and those
        all of whose records are older than `retention_ms` (-1: no limit); how many went.

        Segments go whole, the active one only if everything goes, none that followers still lack
        (`deleteRetentionMsBreachedSegments` and its like).
        Raises StorageError.
        """
        self.producers.expire(now_ms, PRODUCER_ID_EXPIRATION_MS)
        with self._storing():
            gone = self.delete_dead_segments()
            too_many = sum(segment.size for segment in self._segments) - retention_bytes

            def is_too_much(segment: Segment) -> bool:
                nonlocal too_many
                too_many -= segment.size
                return too_many >= 0

            if retention_bytes >= 0 and too_many >= 0:
                gone += self._delete_while(is_too_much)
            if retention_ms >= 0:
                gone += self._delete_while(lambda segment: now_ms - segment.max_timestamp > retention_ms)
        return gone

    def delete_dead_segments(self) -> int:
        """Delete the segments that lie whole before the log's start; how many. Also compacted logs do that."""
        following = self._segments[1:]
        count = sum(segment.base_offset <= self.start_offset for segment in following)
        with self._storing():
            self._delete_front(count)
        return count

    def _delete_while(self, is_old: Callable[[Segment], bool]) -> int:
        count, ends = 0, [*(one.base_offset for one in self._segments[1:]), self.end_offset]
        for segment, end in zip(self._segments, ends, strict=False):
            if not segment.size or end > self.high_watermark or not is_old(segment):
                break
            count += 1
        self._delete_front(count)
        return count

    def _delete_front(self, count: int) -> None:
        if not count:
            return
        if count == len(self._segments):
            self._new_segment()  # it says where the log goes on
        self._move_start(self._segments[count].base_offset)
        old, self._segments = self._segments[:count], self._segments[count:]
        self.store.remove(old)

    def _move_start(self, offset: int) -> None:
        if offset <= self.start_offset:
            return
        self.store.start_moved(offset)
        self.start_offset = offset
        self._index.drop_front(self._index.holding(offset))
        self._epochs.cut_front(offset)
        self._aborted = [aborted for aborted in self._aborted if aborted.last_offset >= offset]

    # -- inside ----------------------------------------------------------------------------------------------

    def compact(self, now_ms: int, delete_retention_ms: int) -> None:
        """Begin a new segment and clean all before it that is stable. Raises StorageError."""
        self.roll()
        self.clean(now_ms, self._end_of_cleanable(now_ms, 0), delete_retention_ms)

    def clean(self, now_ms: int, end_offset: int, delete_retention_ms: int) -> None:
        """Keep the last record of each key before `end_offset`, where a segment begins; see `compaction` for what else
        goes and stays. Offsets stay as they are. Tombstones stay for `delete_retention_ms` after the first pass that
        meets them. Raises StorageError.
        """
        self.producers.expire(now_ms, PRODUCER_ID_EXPIRATION_MS)
        count = sum(segment.base_offset < end_offset for segment in self._segments)
        if not count:
            return
        cleaner = Cleaner(
            Keys(self._batches[: self._index.before(end_offset)], self._aborted),
            self._aborted,
            self.producers.last_records(),
            upper_bound=end_offset,
            now_ms=now_ms,
            delete_retention_ms=delete_retention_ms,
        )
        stop, cleaned = 0, list[tuple[Batch, int]]()
        try:
            with self._storing():
                for group in self._groups(count):
                    stop = self._clean(group, cleaner, cleaned)
        finally:  # the index once for all that was rewritten: it is copied
            self._index.replace(0, stop, cleaned)
        self._clean_offset = end_offset

    def to_clean(self, now_ms: int, min_lag_ms: int) -> ToClean:
        """What there is to clean, segments left out that have records younger than `min_lag_ms` (`LogToClean`)."""
        end = self._end_of_cleanable(now_ms, min_lag_ms)
        index, dirty = self._index, max(self._clean_offset, self.start_offset)
        first, stop = index.holding(dirty), index.before(end)
        began = [
            one.first_timestamp
            for one, following in pairwise(self._segments)
            if following.base_offset > dirty
        ]
        earliest = min((timestamp for timestamp in began if timestamp > 0), default=math.inf)
        return ToClean(end, index.bytes_of(0, min(first, stop)), index.bytes_of(first, stop), earliest)

    def _end_of_cleanable(self, now_ms: int, min_lag_ms: int) -> int:
        """Where the first segment begins that can't be cleaned (`LogCleanerManager.cleanableOffsets`)."""
        stable, end = self.last_stable_offset, self._segments[0].base_offset if self._segments else 0
        for segment, following in pairwise(self._segments):
            dirty = segment.base_offset >= self._clean_offset
            too_young = dirty and min_lag_ms > 0 and segment.max_timestamp > now_ms - min_lag_ms
            if following.base_offset > stable or too_young:
                break
            end = following.base_offset
        return end

    def _groups(self, count: int) -> list[list[Segment]]:
        """Neighbours that become one segment, so that segments don't shrink to nothing (`groupSegmentsBySize`)."""
        groups: list[list[Segment]] = []
        for segment in self._segments[:count]:
            if groups and sum(one.size for one in groups[-1]) + segment.size <= self.segment_bytes:
                groups[-1].append(segment)
            else:
                groups.append([segment])
        return groups

    def _clean(self, group: list[Segment], cleaner: Cleaner, cleaned: list[tuple[Batch, int]]) -> int:
        """Rewrite some neighbours as one segment, add what is left of them to `cleaned`; the number of the batch behind
        them, by the index as it was.
        """
        place = self._segments.index(group[0])
        end = self._segments[place + len(group)].base_offset
        first, stop = self._index.before(group[0].base_offset), self._index.before(end)
        left = (kept for batch in self._batches[first:stop] if (kept := cleaner.clean(batch)) is not None)
        segment, written = self.store.rewrite(group, left)
        self._segments[place : place + len(group)] = [segment] if written else []
        cleaned += written
        self._aborted = cleaner.aborted + [one for one in self._aborted if one.last_offset >= end]
        if not written:
            self.store.remove([segment])
        return stop

    # -- from the end ----------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Drop the batch that holds `offset` and all behind it; the log ends where that batch began, but not before its
        own start.
        """
        keep = self._index.holding(offset)
        if keep == len(self._batches):
            return
        first = self._batches[keep]
        count = sum(segment.base_offset <= first.base_offset for segment in self._segments)
        segment, later = self._segments[count - 1], self._segments[count:]
        stop = self._index.before(later[0].base_offset if later else None)
        with self._storing():
            self.store.remove(later[::-1])
            del self._segments[count:]
            segment.cut(first)
        segment.size -= self._index.bytes_of(keep, stop)
        self._index.drop_behind(keep)
        self.end_offset = max(first.base_offset, self.start_offset)
        self._clean_offset = min(self._clean_offset, self.end_offset)
        self._epochs.cut_end(self.end_offset)
        self._measure(segment)
        self._forget_and_remember(self._batches)

    def _measure(self, segment: Segment) -> None:
        """Recompute a segment's largest timestamp after truncation."""
        segment.max_timestamp = segment.first_timestamp = -1
        for batch in self._batches[self._index.before(segment.base_offset) :]:
            note_timestamp(segment, batch.max_timestamp)

    def _forget_and_remember(self, batches: Iterable[Batch]) -> None:
        """Recompute the producer states and aborted transactions from the batches."""
        self.producers, self._aborted = ProducerStates(), []
        for batch in batches:
            header = batch.header()
            kind = read_control_type(batch.bytes(), header, check_crc=False) if header.is_control else None
            self._remember(header, kind)
        self.producers.doubt_sequences()
