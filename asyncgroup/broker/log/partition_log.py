"""The log of one partition: append and read record batches (Kafka's `UnifiedLog`).

Batches are kept in `segments`, in memory or in files. Retention deletes whole segments, compaction
(`segment_cleaner`) rewrites them. A read does not cross the end of a segment's chunk, as in Kafka it does not cross the
end of a segment. All replicas share this one log, so an appended batch is replicated at once: the high watermark is the
log end offset, unless a test holds the followers back. Records of a transaction are stable once its marker is appended
(KIP-98).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from asyncgroup.broker.errors import PartitionError
from asyncgroup.broker.log.batch_index import StoredBatch
from asyncgroup.broker.log.batch_validator import ValidBatch
from asyncgroup.broker.log.control_batches import control_batch
from asyncgroup.broker.log.leader_epochs import LeaderEpochs
from asyncgroup.broker.log.producer_state import AbortedTransaction, ProducerStateManager
from asyncgroup.broker.log.segment_cleaner import LogToClean, SegmentCleaner
from asyncgroup.broker.log.segments import LogSegments, Segment
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.records import ControlType, read_control_type

__all__ = ["HIGH_WATERMARK", "LogAppendInfo", "PartitionLog", "RecoveredBatch"]

HIGH_WATERMARK: Final = -1
"""As offset in DeleteRecords: delete up to the high watermark (`DeleteRecordsRequest.HIGH_WATERMARK`)."""

PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000
"""Kafka's default of `producer.id.expiration.ms`."""


class LogAppendInfo(NamedTuple):
    """The result of an append."""

    base_offset: int
    last_offset: int
    duplicate: bool
    """The batch was in the log already (an idempotent producer's retry); the offsets are those of the first append."""
    timestamp: int
    """The largest timestamp of the batch, in ms."""


class RecoveredBatch(NamedTuple):
    """A batch found in the segment files; `control_type` is that of a transaction marker, None for other batches."""

    stored: StoredBatch
    header: BatchView
    """The batch without its records."""
    control_type: ControlType | None


class PartitionLog:
    """The append-only log of a partition; the first record has offset 0."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start_offset = 0
        self.end_offset = 0
        self.follower_end_offset: int | None = None
        """Log end offset of followers that a test holds back (`hold_followers`); None: they have all records."""
        self.producers = ProducerStateManager()
        self.segments = LogSegments(f"{topic}-{partition}")
        self._cleaner = SegmentCleaner(self.segments)
        self._epochs = LeaderEpochs()
        self._aborted: list[AbortedTransaction] = []  # in order of their markers

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.start_offset}, {self.end_offset})>"

    @property
    def size(self) -> int:
        """Size of all batches in bytes."""
        return self.segments.batch_index.size

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

    # -- append ----------------------------------------------------------------------------------------------

    def append(self, batch: ValidBatch, leader_epoch: int, *, by_coordinator: bool = False) -> LogAppendInfo:
        """Append a batch at the log end offset. Only its producer's epoch and sequence numbers are checked here.

        `by_coordinator`: the batch was written by a group coordinator on behalf of a producer, so its sequence
        numbers are not checked (Kafka's `AppendOrigin.COORDINATOR`).

        Raise AppendError: the errors of `ProducerStateManager.check_append`; KAFKA_STORAGE_ERROR if the write failed.
        Whether a transactional batch belongs to an open transaction was verified by the transaction coordinator before,
        see `handlers.produce`.
        """
        if batch.producer_id >= 0 and by_coordinator:
            self.producers.check_marker(batch.producer_id, batch.producer_epoch)
        elif batch.producer_id >= 0:
            known = self.producers.check_append(batch)
            if known is not None:
                return LogAppendInfo(known.base_offset, known.last_offset, True, known.timestamp)
        base_offset = self.end_offset
        self._store(batch, leader_epoch)
        if batch.producer_id >= 0:  # after the write: if that fails, the sequence stays
            self.producers.update(batch, base_offset)
        return LogAppendInfo(base_offset, self.end_offset - 1, False, batch.max_timestamp)

    def append_marker(
        self,
        control_type: ControlType,
        producer_id: int,
        producer_epoch: int,
        leader_epoch: int,
        *,
        coordinator_epoch: int = 0,
        timestamp: int = -1,
        append_time: bool = False,
        bumps_epoch: bool = False,
    ) -> LogAppendInfo:
        """Append the marker that ends a producer's transaction.

        The transaction need not have written to this partition. `timestamp` is the broker's time (ms).
        `append_time`: the topic uses LogAppendTime, and the marker is flagged so. `bumps_epoch`: see
        `ProducerStateManager.check_marker`.

        Raise AppendError: INVALID_PRODUCER_EPOCH if the producer has written in a newer epoch, KAFKA_STORAGE_ERROR.
        """
        self.producers.check_marker(producer_id, producer_epoch, bumps_epoch=bumps_epoch)
        data = control_batch(
            control_type,
            producer_id,
            producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=timestamp,
            append_time=append_time,
        )
        batch = BatchView(data)
        offset = self.end_offset
        self._store(batch, leader_epoch)
        self._transaction_ended(batch, offset, control_type)
        return LogAppendInfo(offset, offset, False, timestamp)

    def _store(self, batch: BatchView, leader_epoch: int) -> None:
        base_offset = self.end_offset
        self.segments.append(batch, base_offset, leader_epoch)
        self._note_epoch(leader_epoch, base_offset)
        self.end_offset = base_offset + batch.last_offset_delta + 1

    def _note_epoch(self, leader_epoch: int, base_offset: int) -> None:
        """Begin an epoch at its first batch, unless it has begun already."""
        if not (epochs := self._epochs.entries) or epochs[-1][0] < leader_epoch:
            self._epochs.start(leader_epoch, base_offset)

    def _update_producers(self, batch: BatchView, control_type: ControlType | None) -> None:
        """Update the producer state from a batch found in the log."""
        if batch.producer_id < 0:
            return
        if not batch.is_control:
            self.producers.update(batch, batch.base_offset)
        else:
            self._transaction_ended(batch, batch.base_offset, control_type)

    def _transaction_ended(self, batch: BatchView, offset: int, control_type: ControlType | None) -> None:
        aborted = self.producers.end_transaction(
            batch.producer_id,
            batch.producer_epoch,
            offset,
            committed=control_type is not ControlType.ABORT,
            timestamp=batch.max_timestamp,
        )
        if aborted is not None:
            self._aborted.append(aborted)

    # -- restore ---------------------------------------------------------------------------------------------

    def restore(
        self,
        segments: Iterable[Segment],
        found: Iterable[RecoveredBatch],
        *,
        start_offset: int,
        epochs: Iterable[tuple[int, int]],
    ) -> None:
        """Take over the segments found on disk and their batches, in offset order.

        `epochs` are (leader epoch, its start offset).
        """
        self.start_offset = start_offset
        self.segments.restore(segments)
        self._epochs = LeaderEpochs(epochs)
        end_offset = max((segment.base_offset for segment in self.segments), default=0)
        for stored, header, control_type in found:
            end_offset = max(end_offset, header.next_offset)
            # what is before the log start is not read, but its producers are known
            if header.next_offset > start_offset:
                self.segments.batch_index.add(stored, header.last_offset)
            self._update_producers(header, control_type)
            self._note_epoch(header.leader_epoch, header.base_offset)
        self.producers.accept_any_sequence()
        self.end_offset = max(end_offset, start_offset)
        self._epochs.truncate_from_end(self.end_offset)
        if start_offset > 0:
            self._epochs.truncate_from_start(start_offset)
        self._aborted = [one for one in self._aborted if one.last_offset >= start_offset]

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
        with self.segments.storage_errors():
            self._advance_start(before_offset)
        return self.start_offset

    def delete_old_segments(self, now_ms: int, retention_ms: int, retention_bytes: int) -> int:
        """Delete old segments: those before the log start, and those beyond the retention time or size.

        A segment's age is that of its newest record. -1 means no limit. Return the number of deleted segments.
        Whole segments are deleted from the front; the active one only if all others are, and none above the high
        watermark (Kafka's `deleteOldSegments`). Raise KafkaStorageError.
        """
        self.producers.expire(now_ms, PRODUCER_ID_EXPIRATION_MS)
        with self.segments.storage_errors():
            deleted = self.delete_segments_before_start()
            excess = sum(segment.size for segment in self.segments) - retention_bytes

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
        following = self.segments[1:]  # each begins where the one before it ends
        count = sum(segment.base_offset <= self.start_offset for segment in following)
        with self.segments.storage_errors():
            self.segments.drop_front(count, self.end_offset, self._advance_start)
        return count

    def _delete_while(self, is_old: Callable[[Segment], bool]) -> int:
        """Delete segments from the front up to the first that is empty, above the high watermark, or not old."""
        count, ends = 0, [*(one.base_offset for one in self.segments[1:]), self.end_offset]
        for segment, end in zip(self.segments, ends, strict=False):
            if not segment.size or end > self.high_watermark or not is_old(segment):
                break
            count += 1
        self.segments.drop_front(count, self.end_offset, self._advance_start)
        return count

    def _advance_start(self, offset: int) -> None:
        if offset <= self.start_offset:
            return
        self.segments.store.save_start_offset(offset)  # first, as it may fail
        self.start_offset = offset
        index = self.segments.batch_index
        index.drop_front(index.find(offset))
        self._epochs.truncate_from_start(offset)
        self._aborted = [aborted for aborted in self._aborted if aborted.last_offset >= offset]

    # -- segments, compaction, truncation --------------------------------------------------------------------

    def roll(self) -> None:
        """Begin a new segment unless the active one is empty, so that the old one can be deleted or compacted.

        Raise KafkaStorageError.
        """
        self.segments.roll(self.end_offset)

    def compact(self, now_ms: int, delete_retention_ms: int) -> None:
        """Begin a new segment and clean all stable records before it. Raise KafkaStorageError."""
        self.roll()
        end = self._cleaner.end_of_cleanable(self.last_stable_offset, now_ms, 0)
        self.clean(now_ms, end, delete_retention_ms)

    def clean(self, now_ms: int, end_offset: int, delete_retention_ms: int) -> None:
        """Keep only the last record of each key before `end_offset`, the base offset of a segment; see `compaction`.

        Offsets do not change. Tombstones are kept for `delete_retention_ms` after the first pass that reads them.
        Raise KafkaStorageError.
        """
        self.producers.expire(now_ms, PRODUCER_ID_EXPIRATION_MS)
        self._cleaner.clean(
            end_offset,
            self._aborted,
            self.producers.last_records(),
            now_ms=now_ms,
            delete_retention_ms=delete_retention_ms,
        )

    def to_clean(self, now_ms: int, min_lag_ms: int) -> LogToClean:
        """Return the cleanable part of the log, without segments that have records younger than `min_lag_ms`."""
        return self._cleaner.to_clean(self.start_offset, self.last_stable_offset, now_ms, min_lag_ms)

    def truncate(self, offset: int) -> None:
        """Drop the batch that holds `offset` and all after it.

        The log then ends where that batch began, but not before the log start offset. Raise KafkaStorageError.
        """
        first = self.segments.truncate(offset)
        if first is None:
            return
        self.end_offset = max(first.base_offset, self.start_offset)
        self._cleaner.truncated(self.end_offset)
        self._epochs.truncate_from_end(self.end_offset)
        self._rebuild_producers()

    def _rebuild_producers(self) -> None:
        """Recompute the producer states and aborted transactions from the batches."""
        self.producers = ProducerStateManager()
        self._aborted = []
        for stored in self.segments.batch_index.batches:
            batch = stored.read()
            kind = read_control_type(batch, check_crc=False) if batch.is_control else None
            self._update_producers(batch, kind)
        self.producers.accept_any_sequence()

    # -- read ------------------------------------------------------------------------------------------------

    def check_offset(self, offset: int) -> None:
        """Raise PartitionError(OFFSET_OUT_OF_RANGE) unless `offset` is from the log start to the log end offset."""
        if not self.start_offset <= offset <= self.end_offset:
            raise PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool = False, end: int | None = None
    ) -> memoryview | bytes:
        """Return whole batches from the one that holds `offset`, at most `max_bytes`; empty at the end of the log.

        If `offset` is in a gap left by compaction, reading begins with the next batch. `at_least_one`: return the
        first batch even if it is larger than `max_bytes` (KIP-74). `end`: read only batches before this offset, at
        which a batch begins.
        """
        index = self.segments.batch_index
        first, last = index.find(offset), index.count_before(end)
        if first >= last:
            return b""
        batch = index.batches[first]
        chunk, position = batch.chunk, batch.position
        stop = min(index.end_within(first, min(max_bytes, chunk.used - position)), last)
        if stop <= first:
            if not at_least_one:
                return b""
            stop = first + 1
        return chunk.read(position, index.size_between(first, stop))

    def bytes_from(self, offset: int, end: int | None = None) -> int:
        """Return the size in bytes of the batches from the one that holds `offset`, up to the offset `end`."""
        index = self.segments.batch_index
        return index.size_between(index.find(offset), index.count_before(end))

    def aborted_transactions(self, offset: int, data: memoryview | bytes) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap `data`, read from `offset` (Kafka's `TransactionIndex`)."""
        if not data or not self._aborted:
            return []
        index = self.segments.batch_index
        last_offset = index.last_offsets[index.find_byte(index.find(offset), len(data))]
        start = bisect_left(self._aborted, offset, key=lambda aborted: aborted.last_offset)
        return [aborted for aborted in self._aborted[start:] if aborted.first_offset <= last_offset]

    # -- leader epochs ---------------------------------------------------------------------------------------

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """(leader epoch, its first offset), ascending: Kafka's leader epoch cache."""
        return self._epochs.entries

    def start_epoch(self, leader_epoch: int) -> None:
        """Begin a new leader's epoch at the log end offset; remove earlier epochs that appended nothing."""
        self._epochs.start(leader_epoch, self.end_offset)

    def first_epoch(self) -> int:
        """Return the leader epoch of the log start offset, -1 if there is none."""
        return self._epochs.first(self.start_offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `leader_epoch` and its end offset, (-1, -1) if unknown (KIP-320)."""
        return self._epochs.end_offset_for(leader_epoch, self.end_offset)
