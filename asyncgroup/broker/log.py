"""The log of one partition: whole record batches in segments, in memory or in files.

A segment is what retention deletes as a whole and what compaction rewrites; a read never crosses from one chunk of a
segment into the next, as in Kafka not from one segment into the next. All replicas share the one log, so what is
appended is committed: the high watermark is the log end offset. Records of a transaction are stable once its marker is
there (KIP-98). What makes the log shorter is in `segmented_log`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from asyncgroup.broker.batch_checks import checked_header
from asyncgroup.broker.errors import PartitionError, StorageError
from asyncgroup.broker.leader_epochs import LeaderEpochs
from asyncgroup.broker.producer_state import AbortedTransaction
from asyncgroup.broker.segmented_log import SegmentedLog
from asyncgroup.broker.segments import Batch, Segment, note_timestamp
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import Record
from asyncgroup.wire.control import ControlType, control_batch
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchHeader, read_batch, read_batch_header

__all__ = ["DEFAULT_MAX_BATCH_BYTES", "Appended", "FoundBatch", "PartitionLog"]

DEFAULT_MAX_BATCH_BYTES: Final = 1048588
"""Kafka's default of `max.message.bytes`: the largest batch that is accepted."""


class Appended(NamedTuple):
    """Where a batch went; `duplicate` if it had been there before. `timestamp` is its highest, in ms."""

    base_offset: int
    last_offset: int
    duplicate: bool
    timestamp: int


class FoundBatch(NamedTuple):
    """A batch that was there when the log was opened; `control_type` of a control batch that is a marker."""

    batch: Batch
    header: BatchHeader
    control_type: ControlType | None


class PartitionLog(SegmentedLog):
    """An append-only log; offsets count records from 0."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(topic, partition)
        self.max_batch_bytes = DEFAULT_MAX_BATCH_BYTES

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.start_offset}, {self.end_offset})>"

    @property
    def size(self) -> int:
        """Bytes in the log."""
        return self._index.size

    # -- append ----------------------------------------------------------------------------------------------

    def append(self, data: Buffer, leader_epoch: int, *, by_coordinator: bool = False) -> Appended:
        """Check one record batch, give it offsets and append it.

        `by_coordinator`: the batch is not a client's but a group coordinator's, in a producer's name; its sequence
        numbers mean nothing (Kafka's `AppendOrigin.COORDINATOR`).

        Raises AppendError: what `checked_header` and the idempotence check say; KAFKA_STORAGE_ERROR if the disk did not
        take it. Whether a transactional batch belongs to an open transaction is the coordinator's to know, see
        `transactions`.
        """
        header = checked_header(data, self.max_batch_bytes)
        if header.producer_id >= 0 and by_coordinator:
            self.producers.check_marker(header.producer_id, header.producer_epoch)
        elif header.producer_id >= 0:
            known = self.producers.check(header)
            if known is not None:
                return Appended(known.base_offset, known.last_offset, True, known.timestamp)
        base_offset = self.end_offset
        self._store(data, header, leader_epoch)
        if header.producer_id >= 0:
            self.producers.appended(header, base_offset)
        return Appended(base_offset, self.end_offset - 1, False, header.max_timestamp)

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
        bumps: bool = False,
    ) -> Appended:
        """End a producer's transaction here; also one that wrote nothing here, and a fenced producer's.

        `append_time`: the topic keeps the broker's time, which `timestamp` is in any case, and the marker says so.
        `bumps`: see `ProducerStates.check_marker`.

        Raises AppendError: INVALID_PRODUCER_EPOCH if the producer has written in a newer epoch, KAFKA_STORAGE_ERROR.
        """
        self.producers.check_marker(producer_id, producer_epoch, bumps=bumps)
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
        self._ended(header, offset, control_type)
        return Appended(offset, offset, False, timestamp)

    def _store(self, data: Buffer, header: BatchHeader, leader_epoch: int) -> None:
        base_offset, timestamp = self.end_offset, header.max_timestamp
        try:
            segment = self._segment_for(header)
            chunk, position = segment.append(data, base_offset, leader_epoch)
        except OSError as error:
            raise StorageError(f"{self.topic}-{self.partition}: {error}") from error
        note_timestamp(segment, timestamp)
        self._epochs.appended(leader_epoch, base_offset)
        self.end_offset = base_offset + header.last_offset_delta + 1
        self._index.add(Batch(base_offset, timestamp, chunk, position, header.size), self.end_offset - 1)

    # -- opening ---------------------------------------------------------------------------------------------

    def restore(
        self,
        segments: Iterable[Segment],
        found: Iterable[FoundBatch],
        *,
        start_offset: int,
        epochs: Iterable[tuple[int, int]],
    ) -> None:
        """Take over what a store kept: its segments, and their batches in order."""
        self.start_offset = start_offset
        self._segments = list(segments)
        self._epochs = LeaderEpochs(epochs)
        end_offset = max((segment.base_offset for segment in self._segments), default=0)
        for batch, header, control_type in found:
            end_offset = max(end_offset, header.next_offset)
            if header.next_offset > start_offset:
                self._index.add(batch, header.last_offset)
            self._remember(header, control_type)
            self._epochs.appended(header.leader_epoch, header.base_offset)
        self.producers.doubt_sequences()
        self.end_offset = max(end_offset, start_offset)
        self._epochs.cut_end(self.end_offset)
        if start_offset > 0:
            self._epochs.cut_front(start_offset)
        self._aborted = [one for one in self._aborted if one.last_offset >= start_offset]

    # -- read ------------------------------------------------------------------------------------------------

    def check_offset(self, offset: int) -> None:
        """Raises PartitionError(OFFSET_OUT_OF_RANGE) for an offset before the log's start or behind its end."""
        if not self.start_offset <= offset <= self.end_offset:
            raise PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool = False, end: int | None = None
    ) -> memoryview | bytes:
        """Whole batches from the one that holds `offset`, up to `max_bytes`; empty at the log's end.

        Where compaction left a gap, the next batch is read. `at_least_one`: the first batch comes even if it is larger
        (KIP-74). `end`: the log is read as if it ended at this offset, where a batch begins.
        """
        index = self._index
        first, last = index.holding(offset), index.before(end)
        if first >= last:
            return b""
        batch = index.batches[first]
        chunk, position = batch.chunk, batch.position
        stop = min(index.fitting(first, min(max_bytes, chunk.used - position)), last)
        if stop <= first:
            if not at_least_one:
                return b""
            stop = first + 1
        return chunk.read(position, index.bytes_of(first, stop))

    def bytes_from(self, offset: int, end: int | None = None) -> int:
        """How many bytes of whole batches there are from the batch that holds `offset` (up to the offset `end`)."""
        return self._index.bytes_of(self._index.holding(offset), self._index.before(end))

    def aborted_in(self, offset: int, data: memoryview | bytes) -> list[AbortedTransaction]:
        """The aborted transactions that touch `data`, which was read from `offset` on (Kafka's `TransactionIndex`)."""
        if not data or not self._aborted:
            return []
        index = self._index
        last_offset = index.last_offsets[index.at_byte(index.holding(offset), len(data))]
        start = bisect_left(self._aborted, offset, key=lambda aborted: aborted.last_offset)
        return [aborted for aborted in self._aborted[start:] if aborted.first_offset <= last_offset]

    # -- decoded ---------------------------------------------------------------------------------------------

    def records(self, offset: int = 0) -> Iterator[Record]:
        """Decode all records from `offset` on, those of open and aborted transactions included, markers not."""
        first = max(offset, self.start_offset)
        for batch in self._batches[self._index.holding(first) :]:
            yield from (record for record in self._decode(batch) if record.offset >= first)

    def _decode(self, batch: Batch, *, markers: bool = False) -> Iterable[Record]:
        """The records of a batch, made one after another: a compressed one may have millions."""
        data = batch.bytes()
        header = read_batch_header(data)
        assert header is not None
        if not header.record_count or (header.is_control and not markers):
            return ()
        return read_batch(self.topic, self.partition, data, header)

    def find_timestamp(self, timestamp: int) -> Record | None:
        """The first record with this timestamp (ms) or a later one; a marker is a record here, as in Kafka."""
        number = self._index.timestamps.first_at_least(timestamp)
        while number is not None:
            for record in self._decode(self._batches[number], markers=True):
                if record.timestamp >= timestamp and record.offset >= self.start_offset:
                    return record
            # Compaction left the batch empty, or the log starts behind that record.
            number = self._index.timestamps.first_at_least(timestamp, number + 1)
        return None

    def latest_timestamp(self) -> Record | None:
        """The first of the records, markers included, with the highest timestamp (KIP-734)."""
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
        """A leader takes office: its epoch starts at the log's end. An epoch that appended nothing is
        forgotten.
        """
        self._epochs.start(leader_epoch, self.end_offset)

    def first_epoch(self) -> int:
        """The leader epoch of the log's first offset, -1 if there is none."""
        return self._epochs.first(self.start_offset)

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The last epoch that is not above `leader_epoch`, and where it ends; (-1, -1) if unknown (KIP-320)."""
        return self._epochs.end_of(leader_epoch, self.end_offset)
