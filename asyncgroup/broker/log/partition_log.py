"""The log of one partition: append and read record batches (Kafka's `UnifiedLog`).

Batches are kept in segments, in memory or in files. Retention deletes whole segments, compaction rewrites them. A read
does not cross the end of a segment's chunk, as in Kafka it does not cross the end of a segment. All replicas share this
one log, so an appended batch is replicated at once: the high watermark is the log end offset, unless a test holds the
followers back. Records of a transaction are stable once its marker is appended (KIP-98). Deletion, compaction and
truncation are in `segmented_log`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from asyncgroup.broker.errors import KafkaStorageError, PartitionError
from asyncgroup.broker.log.batch_validator import ValidBatch
from asyncgroup.broker.log.leader_epochs import LeaderEpochs
from asyncgroup.broker.log.producer_state import AbortedTransaction
from asyncgroup.broker.log.segmented_log import SegmentedLog
from asyncgroup.broker.log.segments import Segment, StoredBatch, update_timestamps
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import Record
from asyncgroup.wire.control import ControlType, control_batch
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchHeader, read_batch, read_batch_header

__all__ = ["LogAppendInfo", "PartitionLog", "RecoveredBatch"]


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

    batch: StoredBatch
    header: BatchHeader
    control_type: ControlType | None


class PartitionLog(SegmentedLog):
    """The append-only log of a partition; the first record has offset 0."""

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.start_offset}, {self.end_offset})>"

    @property
    def size(self) -> int:
        """Size of all batches in bytes."""
        return self._index.size

    # -- append ----------------------------------------------------------------------------------------------

    def append(self, batch: ValidBatch, leader_epoch: int, *, by_coordinator: bool = False) -> LogAppendInfo:
        """Append a batch at the log end offset. Only its producer's epoch and sequence numbers are checked here.

        `by_coordinator`: the batch was written by a group coordinator on behalf of a producer, so its sequence
        numbers are not checked (Kafka's `AppendOrigin.COORDINATOR`).

        Raise AppendError: the errors of `ProducerStateManager.check_append`; KAFKA_STORAGE_ERROR if the write failed.
        Whether a transactional batch belongs to an open transaction was verified by the transaction coordinator before,
        see `produce_checks.check_transaction`.
        """
        data, header = batch
        if header.producer_id >= 0 and by_coordinator:
            self.producers.check_marker(header.producer_id, header.producer_epoch)
        elif header.producer_id >= 0:
            known = self.producers.check_append(header)
            if known is not None:
                return LogAppendInfo(known.base_offset, known.last_offset, True, known.timestamp)
        base_offset = self.end_offset
        self._store(data, header, leader_epoch)
        if header.producer_id >= 0:
            self.producers.update(header, base_offset)
        return LogAppendInfo(base_offset, self.end_offset - 1, False, header.max_timestamp)

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
        header = read_batch_header(data)
        assert header is not None
        offset = self.end_offset
        self._store(data, header, leader_epoch)
        self._transaction_ended(header, offset, control_type)
        return LogAppendInfo(offset, offset, False, timestamp)

    def _store(self, data: Buffer, header: BatchHeader, leader_epoch: int) -> None:
        base_offset, timestamp = self.end_offset, header.max_timestamp
        try:
            segment = self._segment_for(header)
            chunk, position = segment.append(data, base_offset, leader_epoch)
        except OSError as error:
            raise KafkaStorageError(f"{self.topic}-{self.partition}: {error}") from error
        update_timestamps(segment, timestamp)
        self._epochs.assign(leader_epoch, base_offset)
        self.end_offset = base_offset + header.last_offset_delta + 1
        self._index.add(
            StoredBatch(base_offset, timestamp, chunk, position, header.size), self.end_offset - 1
        )

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
        self._segments = list(segments)
        self._epochs = LeaderEpochs(epochs)
        end_offset = max((segment.base_offset for segment in self._segments), default=0)
        for batch, header, control_type in found:
            end_offset = max(end_offset, header.next_offset)
            if header.next_offset > start_offset:
                self._index.add(batch, header.last_offset)
            self._update_producers(header, control_type)
            self._epochs.assign(header.leader_epoch, header.base_offset)
        self.producers.accept_any_sequence()
        self.end_offset = max(end_offset, start_offset)
        self._epochs.truncate_from_end(self.end_offset)
        if start_offset > 0:
            self._epochs.truncate_from_start(start_offset)
        self._aborted = [one for one in self._aborted if one.last_offset >= start_offset]

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
        index = self._index
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
        return self._index.size_between(self._index.find(offset), self._index.count_before(end))

    def aborted_transactions(self, offset: int, data: memoryview | bytes) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap `data`, read from `offset` (Kafka's `TransactionIndex`)."""
        if not data or not self._aborted:
            return []
        index = self._index
        last_offset = index.last_offsets[index.find_byte(index.find(offset), len(data))]
        start = bisect_left(self._aborted, offset, key=lambda aborted: aborted.last_offset)
        return [aborted for aborted in self._aborted[start:] if aborted.first_offset <= last_offset]

    # -- decoded ---------------------------------------------------------------------------------------------

    def records(self, offset: int = 0) -> Iterator[Record]:
        """Decode all records from `offset` on, including those of open and aborted transactions, without markers."""
        first = max(offset, self.start_offset)
        for batch in self._batches[self._index.find(first) :]:
            yield from (record for record in self._decode(batch) if record.offset >= first)

    def _decode(self, batch: StoredBatch, *, markers: bool = False) -> Iterable[Record]:
        """Decode a batch lazily: a compressed one may hold millions of records."""
        data = batch.bytes()
        header = read_batch_header(data)
        assert header is not None
        if not header.record_count or (header.is_control and not markers):
            return ()
        return read_batch(self.topic, self.partition, data, header)

    def find_timestamp(self, timestamp: int) -> Record | None:
        """Return the first record with this timestamp (ms) or a later one; markers count as records, as in Kafka."""
        number = self._index.timestamps.first_at_least(timestamp)
        while number is not None:
            for record in self._decode(self._batches[number], markers=True):
                if record.timestamp >= timestamp and record.offset >= self.start_offset:
                    return record
            # Compaction emptied the batch, or that record is before the log start offset: try the next batch.
            number = self._index.timestamps.first_at_least(timestamp, number + 1)
        return None

    def latest_timestamp(self) -> Record | None:
        """Return the first record, markers included, with the largest timestamp (KIP-734)."""
        newest: Record | None = None
        for number in self._index.timestamps.latest_first():
            batch = self._batches[number]
            if newest is not None and batch.max_timestamp <= newest.timestamp:
                break
            for record in self._decode(batch, markers=True):
                later = newest is None or record.timestamp > newest.timestamp
                if later and record.offset >= self.start_offset:
                    newest = record
        return newest

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
