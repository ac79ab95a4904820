"""The segments of a log and their deletion, compaction and truncation (Kafka's `UnifiedLog`).

DeleteRecords and retention remove records from the front, compaction from within, truncation from the end. Each
writes to the store first: after a disk error the log is unchanged, or has old segments that the next attempt
removes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final, NamedTuple

from asyncgroup.broker.errors import KafkaStorageError, PartitionError
from asyncgroup.broker.log.batch_index import BatchIndex
from asyncgroup.broker.log.compaction import Cleaner, OffsetMap
from asyncgroup.broker.log.leader_epochs import LeaderEpochs
from asyncgroup.broker.log.producer_state import AbortedTransaction, ProducerStateManager
from asyncgroup.broker.log.segments import MemoryStore, Segment, SegmentStore, StoredBatch, update_timestamps
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.control import ControlType, read_control_type
from asyncgroup.wire.records import BatchHeader

__all__ = ["HIGH_WATERMARK", "LogToClean", "SegmentedLog"]

HIGH_WATERMARK: Final = -1
"""As offset in DeleteRecords: delete up to the high watermark (`DeleteRecordsRequest.HIGH_WATERMARK`)."""

PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000
"""Kafka's default of `producer.id.expiration.ms`."""

DEFAULT_SEGMENT_BYTES: Final = 1 << 30
DEFAULT_SEGMENT_MS: Final = 604_800_000
"""Kafka's defaults of `segment.bytes` and `segment.ms`."""


class LogToClean(NamedTuple):
    """The cleanable part of a log (Kafka's `LogToClean`)."""

    end_offset: int
    """Where cleaning ends."""
    clean_bytes: int
    """Bytes before `end_offset` that were cleaned before."""
    dirty_bytes: int
    """Bytes before `end_offset` that were never cleaned."""
    earliest_dirty: float
    """Smallest first timestamp (ms) of the dirty segments, without the active one; infinity if there are none."""

    @property
    def ratio(self) -> float:
        """The share of dirty bytes, from 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class SegmentedLog:
    """The base of `PartitionLog`: segments, the index of their batches, producer states; `store` keeps the segments.

    A new segment begins after `segment_bytes`, or after `segment_ms` by the records' timestamps (Kafka's configs).
    """

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start_offset = 0
        self.end_offset = 0
        self.follower_end_offset: int | None = None
        """Log end offset of followers that a test holds back (`hold_followers`); None: they have all records."""
        self.segment_bytes = DEFAULT_SEGMENT_BYTES
        self.segment_ms = DEFAULT_SEGMENT_MS
        self.producers = ProducerStateManager()
        self.store: SegmentStore = MemoryStore()
        self._epochs = LeaderEpochs()
        self._aborted: list[AbortedTransaction] = []  # in order of their markers
        self._segments: list[Segment] = []  # the last one is the active one
        self._index = BatchIndex()
        self._clean_offset = 0  # up to here the log has been cleaned

    @property
    def high_watermark(self) -> int:
        """The offset up to which consumers may read: all replicas have the records before it."""
        followers = self.follower_end_offset
        return self.end_offset if followers is None else min(followers, self.end_offset)

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which `read_committed` consumers may read: no transaction is open before it."""
        unstable = self.producers.first_unstable_offset
        stable = self.high_watermark
        return stable if unstable is None else min(stable, max(unstable, self.start_offset))

    @property
    def _batches(self) -> list[StoredBatch]:
        return self._index.batches

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise KafkaStorageError(f"{self.topic}-{self.partition}: {error}") from error

    def _update_producers(self, header: BatchHeader, control_type: ControlType | None) -> None:
        """Update the producer state from a batch found in the log."""
        if header.producer_id < 0:
            return
        if not header.is_control:
            self.producers.update(header, header.base_offset)
        else:
            self._transaction_ended(header, header.base_offset, control_type)

    def _transaction_ended(self, header: BatchHeader, offset: int, control_type: ControlType | None) -> None:
        aborted = self.producers.end_transaction(
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
        """Begin a new segment unless the active one is empty, so that the old one can be deleted or compacted."""
        if self._segments and self._segments[-1].size:
            with self._storage_errors():
                self._new_segment()

    def _new_segment(self) -> Segment:
        segment = self.store.create(self.end_offset)
        self._segments.append(segment)
        return segment

    def _segment_for(self, header: BatchHeader) -> Segment:
        """Return the segment to append the batch to: the active one, or a new one (`LogSegment.shouldRoll`)."""
        if not self._segments:
            return self._new_segment()
        active = self._segments[-1]
        if not active.size:
            return active
        age = header.max_timestamp - active.first_timestamp if active.first_timestamp >= 0 else 0
        full = active.size + header.size > self.segment_bytes or age > self.segment_ms
        return self._new_segment() if full else active

    # -- deletion from the front -----------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Move the log start offset up to `before_offset`, and return it (KIP-107).

        `before_offset` may be HIGH_WATERMARK; the start never moves back. Raise PartitionError(OFFSET_OUT_OF_RANGE)
        for an offset above the high watermark, KafkaStorageError.
        """
        if before_offset == HIGH_WATERMARK:
            before_offset = self.high_watermark
        if not 0 <= before_offset <= self.high_watermark:
            raise PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)
        with self._storage_errors():
            self._advance_start(before_offset)
        return self.start_offset

    def delete_old_segments(self, now_ms: int, retention_ms: int, retention_bytes: int) -> int:
        """Delete old segments: those before the log start, and those beyond the retention time or size.

        A segment's age is that of its newest record. -1 means no limit. Return the number of deleted segments.
        Whole segments are deleted from the front; the active one only if all others are, and none above the high
        watermark (Kafka's `deleteOldSegments`). Raise KafkaStorageError.
        """
        self.producers.expire(now_ms, PRODUCER_ID_EXPIRATION_MS)
        with self._storage_errors():
            deleted = self.delete_segments_before_start()
            excess = sum(segment.size for segment in self._segments) - retention_bytes

            def is_excess(segment: Segment) -> bool:
                # a segment is deleted only if at least `retention_bytes` remain without it
                nonlocal excess
                excess -= segment.size
                return excess >= 0

            if retention_bytes >= 0 and excess >= 0:
                deleted += self._delete_while(is_excess)
            if retention_ms >= 0:
                deleted += self._delete_while(lambda segment: now_ms - segment.max_timestamp > retention_ms)
        return deleted

    def delete_segments_before_start(self) -> int:
        """Delete the segments that end before the log start offset, in compacted logs too; return how many."""
        following = self._segments[1:]
        count = sum(segment.base_offset <= self.start_offset for segment in following)
        with self._storage_errors():
            self._delete_front(count)
        return count

    def _delete_while(self, is_old: Callable[[Segment], bool]) -> int:
        """Delete segments from the front up to the first that is empty, above the high watermark, or not old."""
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
            self._new_segment()  # its base offset keeps the log end offset
        # The start is saved first: files that cannot be deleted are then before it and deleted the next time.
        self._advance_start(self._segments[count].base_offset)
        old, self._segments = self._segments[:count], self._segments[count:]
        self.store.remove(old)

    def _advance_start(self, offset: int) -> None:
        if offset <= self.start_offset:
            return
        self.store.save_start_offset(offset)
        self.start_offset = offset
        self._index.drop_front(self._index.find(offset))
        self._epochs.truncate_from_start(offset)
        self._aborted = [aborted for aborted in self._aborted if aborted.last_offset >= offset]

    # -- compaction ------------------------------------------------------------------------------------------

    def compact(self, now_ms: int, delete_retention_ms: int) -> None:
        """Begin a new segment and clean all stable records before it. Raise KafkaStorageError."""
        self.roll()
        self.clean(now_ms, self._end_of_cleanable(now_ms, 0), delete_retention_ms)

    def clean(self, now_ms: int, end_offset: int, delete_retention_ms: int) -> None:
        """Keep only the last record of each key before `end_offset`, the base offset of a segment; see `compaction`.

        Offsets do not change. Tombstones are kept for `delete_retention_ms` after the first pass that reads them.
        Raise KafkaStorageError.
        """
        self.producers.expire(now_ms, PRODUCER_ID_EXPIRATION_MS)
        count = sum(segment.base_offset < end_offset for segment in self._segments)
        if not count:
            return
        cleaner = Cleaner(
            OffsetMap(self._batches[: self._index.count_before(end_offset)], self._aborted),
            self._aborted,
            self.producers.last_records(),
            upper_bound=end_offset,
            now_ms=now_ms,
            delete_retention_ms=delete_retention_ms,
        )
        stop, cleaned = 0, list[tuple[StoredBatch, int]]()
        try:
            with self._storage_errors():
                for group in self._groups(count):
                    stop = self._clean(group, cleaner, cleaned)
        finally:  # after an error too, for the groups already rewritten; once, because it copies the index
            self._index.replace(0, stop, cleaned)
        self._clean_offset = end_offset

    def to_clean(self, now_ms: int, min_lag_ms: int) -> LogToClean:
        """Return the cleanable part of the log, without segments that have records younger than `min_lag_ms`."""
        end = self._end_of_cleanable(now_ms, min_lag_ms)
        index, dirty_offset = self._index, max(self._clean_offset, self.start_offset)
        first, stop = index.find(dirty_offset), index.count_before(end)
        dirty_timestamps = [
            one.first_timestamp
            for one, following in pairwise(self._segments)
            if following.base_offset > dirty_offset
        ]
        earliest = min((timestamp for timestamp in dirty_timestamps if timestamp > 0), default=math.inf)
        return LogToClean(
            end, index.size_between(0, min(first, stop)), index.size_between(first, stop), earliest
        )

    def _end_of_cleanable(self, now_ms: int, min_lag_ms: int) -> int:
        """Return the base offset of the first segment that cannot be cleaned (`LogCleanerManager.cleanableOffsets`)."""
        stable, end = self.last_stable_offset, self._segments[0].base_offset if self._segments else 0
        for segment, following in pairwise(self._segments):
            dirty = segment.base_offset >= self._clean_offset
            too_young = dirty and min_lag_ms > 0 and segment.max_timestamp > now_ms - min_lag_ms
            if following.base_offset > stable or too_young:
                break
            end = following.base_offset
        return end

    def _groups(self, count: int) -> list[list[Segment]]:
        """Group adjacent segments to rewrite as one, so that cleaned segments do not get tiny.

        Kafka's `groupSegmentsBySize`.
        """
        groups: list[list[Segment]] = []
        for segment in self._segments[:count]:
            if groups and sum(one.size for one in groups[-1]) + segment.size <= self.segment_bytes:
                groups[-1].append(segment)
            else:
                groups.append([segment])
        return groups

    def _clean(self, group: list[Segment], cleaner: Cleaner, cleaned: list[tuple[StoredBatch, int]]) -> int:
        """Rewrite a group as one segment and add its remaining batches to `cleaned`.

        Return the number of the first batch after the group, in the index before the cleaning.
        """
        place = self._segments.index(group[0])
        end = self._segments[
            place + len(group)
        ].base_offset  # there is always a following one: the active segment
        first, stop = self._index.count_before(group[0].base_offset), self._index.count_before(end)
        # lazily, so that one batch at a time is in memory; the index is updated by the caller
        left = (kept for batch in self._batches[first:stop] if (kept := cleaner.clean(batch)) is not None)
        segment, written = self.store.rewrite(group, left)
        self._segments[place : place + len(group)] = [segment] if written else []
        cleaned += written
        self._aborted = cleaner.aborted + [one for one in self._aborted if one.last_offset >= end]
        if not written:
            self.store.remove([segment])
        return stop

    # -- truncation ------------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Drop the batch that holds `offset` and all after it.

        The log then ends where that batch began, but not before the log start offset. Raise KafkaStorageError.
        """
        keep = self._index.find(offset)
        if keep == len(self._batches):
            return
        first = self._batches[keep]
        count = sum(segment.base_offset <= first.base_offset for segment in self._segments)
        segment, later = self._segments[count - 1], self._segments[count:]
        stop = self._index.count_before(later[0].base_offset if later else None)
        with self._storage_errors():
            # from the last segment backwards, so that a crash leaves no gap
            self.store.remove(later[::-1])
            del self._segments[count:]
            segment.truncate(first)
        segment.size -= self._index.size_between(keep, stop)
        self._index.truncate(keep)
        self.end_offset = max(first.base_offset, self.start_offset)
        self._clean_offset = min(self._clean_offset, self.end_offset)
        self._epochs.truncate_from_end(self.end_offset)
        self._recompute_timestamps(segment)
        self._rebuild_producers(self._batches)

    def _recompute_timestamps(self, segment: Segment) -> None:
        """Recompute a segment's largest timestamp after truncation."""
        segment.max_timestamp = segment.first_timestamp = -1
        for batch in self._batches[self._index.count_before(segment.base_offset) :]:
            update_timestamps(segment, batch.max_timestamp)

    def _rebuild_producers(self, batches: Iterable[StoredBatch]) -> None:
        """Recompute the producer states and aborted transactions from the batches."""
        self.producers = ProducerStateManager()
        self._aborted = []
        for batch in batches:
            header = batch.header()
            kind = read_control_type(batch.bytes(), header, check_crc=False) if header.is_control else None
            self._update_producers(header, kind)
        self.producers.accept_any_sequence()
