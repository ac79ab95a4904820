"""The log of one partition, in memory: whole record batches in segments of growing size.

A segment is allocated once and never resized, so what a fetch hands out is a view into it and no copy. As in
Kafka, a read never crosses from one segment into the next. All replicas share the one log, so what is
appended is committed: the high watermark is the log end offset. Records of a transaction are stable once its
marker is there (KIP-98).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from asyncgroup.broker.errors import AppendError, PartitionError
from asyncgroup.broker.producer_state import AbortedTransaction, ProducerStates
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import Record
from asyncgroup.wire.control import ControlType, control_batch
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import (
    BatchHeader,
    crc_is_valid,
    decode_batch,
    read_batch_header,
    stamp_batch,
)

__all__ = ["DEFAULT_MAX_BATCH_BYTES", "Appended", "PartitionLog"]

DEFAULT_MAX_BATCH_BYTES: Final = 1048588
"""Kafka's default of `max.message.bytes`: the largest batch that is accepted."""

_FIRST_SEGMENT: Final = 1 << 14
_LARGEST_SEGMENT: Final = 1 << 22


class Appended(NamedTuple):
    """Where a batch went; `duplicate` if it had been there before."""

    base_offset: int
    last_offset: int
    duplicate: bool


class _Segment:
    __slots__ = ("data", "stop", "used", "view")

    def __init__(self, capacity: int) -> None:
        self.data = bytearray(capacity)
        self.view = memoryview(self.data).toreadonly()
        self.used = 0
        self.stop = 0  # index of the first batch behind this segment


class _Batch(NamedTuple):
    base_offset: int
    max_timestamp: int
    segment: _Segment
    position: int
    size: int

    def bytes(self) -> memoryview:
        return self.segment.view[self.position : self.position + self.size]


class PartitionLog:
    """An append-only log; offsets count records from 0."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start_offset = 0
        self.end_offset = 0
        self.max_batch_bytes = DEFAULT_MAX_BATCH_BYTES
        self.producers = ProducerStates()
        self.epochs: list[tuple[int, int]] = []
        """(leader epoch, its first offset), ascending: Kafka's leader epoch cache."""
        self._aborted: list[AbortedTransaction] = []  # in order of their markers
        self._batches: list[_Batch] = []
        self._last_offsets: list[int] = []
        self._byte_ends: list[int] = []
        self._segment = _Segment(_FIRST_SEGMENT)

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.start_offset}, {self.end_offset})>"

    @property
    def high_watermark(self) -> int:
        """The offset up to which consumers may read."""
        return self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which `read_committed` consumers may read: no transaction before it is open."""
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else unstable

    @property
    def size(self) -> int:
        """Bytes in the log."""
        return self._byte_ends[-1] if self._byte_ends else 0

    # -- append ----------------------------------------------------------------------------------------------

    def append(self, data: Buffer, leader_epoch: int) -> Appended:
        """Check one record batch, give it offsets and append it.

        Raises AppendError: CORRUPT_MESSAGE (form or CRC), INVALID_RECORD (not exactly one batch of magic 2),
        MESSAGE_TOO_LARGE, or what the idempotence check says. Whether a transactional batch belongs to an open
        transaction is the coordinator's to know, see `transactions`.
        """
        header = self._checked(data)
        if header.producer_id >= 0:
            base_offset = self.producers.check(header)
            if base_offset is not None:
                return Appended(base_offset, base_offset + header.last_offset_delta, duplicate=True)
        base_offset = self.end_offset
        self._store(data, header, leader_epoch)
        if header.producer_id >= 0:
            self.producers.appended(header, base_offset)
        return Appended(base_offset, self.end_offset - 1, duplicate=False)

    def append_marker(
        self,
        control_type: ControlType,
        producer_id: int,
        producer_epoch: int,
        leader_epoch: int,
        *,
        coordinator_epoch: int = 0,
        timestamp: int = -1,
    ) -> Appended:
        """End a producer's transaction here; also one that wrote nothing here, and a fenced producer's.

        Raises AppendError(INVALID_PRODUCER_EPOCH) if the producer has written in a newer epoch.
        """
        self.producers.check_marker(producer_id, producer_epoch)
        data = control_batch(
            control_type,
            producer_id,
            producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=timestamp,
        )
        header = read_batch_header(data)
        assert header is not None
        offset = self.end_offset
        self._store(data, header, leader_epoch)
        committed = control_type is ControlType.COMMIT
        aborted = self.producers.ended(producer_id, producer_epoch, offset, committed=committed)
        if aborted is not None:
            self._aborted.append(aborted)
        return Appended(offset, offset, duplicate=False)

    def _checked(self, data: Buffer) -> BatchHeader:
        try:
            header = read_batch_header(data)
        except CorruptRecordsError as error:
            raise AppendError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        if header is None:
            raise AppendError(ErrorCode.INVALID_RECORD, "a produce request must have a whole record batch")
        if header.magic != 2:
            raise AppendError(ErrorCode.INVALID_RECORD, f"magic {header.magic} is not accepted, only 2")
        if header.size != len(data):
            raise AppendError(
                ErrorCode.INVALID_RECORD, "a produce request must have exactly one record batch"
            )
        if header.size > self.max_batch_bytes:
            raise AppendError(
                ErrorCode.MESSAGE_TOO_LARGE, f"{header.size} bytes are more than {self.max_batch_bytes}"
            )
        if not crc_is_valid(data):
            raise AppendError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not fit its bytes")
        if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
            raise AppendError(
                ErrorCode.INVALID_RECORD, f"{header.record_count} records do not fit the offsets"
            )
        if header.is_control:
            raise AppendError(ErrorCode.INVALID_RECORD, "clients may not write control records")
        if header.producer_id >= 0 and header.base_sequence < 0:
            raise AppendError(ErrorCode.INVALID_RECORD, "a producer id without a sequence number")
        return header

    def _store(self, data: Buffer, header: BatchHeader, leader_epoch: int) -> None:
        segment = self._segment
        if segment.used + header.size > len(segment.data):
            capacity = min(2 * len(segment.data), _LARGEST_SEGMENT)
            segment = self._segment = _Segment(max(capacity, header.size))
        position = segment.used
        segment.data[position : position + header.size] = data
        stamp_batch(segment.data, self.end_offset, leader_epoch, position)
        segment.used += header.size
        if not self.epochs or self.epochs[-1][0] < leader_epoch:
            self.start_epoch(leader_epoch)
        self._byte_ends.append(self.size + header.size)
        self._batches.append(_Batch(self.end_offset, header.max_timestamp, segment, position, header.size))
        self.end_offset += header.last_offset_delta + 1
        self._last_offsets.append(self.end_offset - 1)
        segment.stop = len(self._batches)

    # -- read ------------------------------------------------------------------------------------------------

    def check_offset(self, offset: int) -> None:
        """Raises PartitionError(OFFSET_OUT_OF_RANGE) for an offset before the log's start or behind its end."""
        if not self.start_offset <= offset <= self.end_offset:
            raise PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool = False, end: int | None = None
    ) -> memoryview | bytes:
        """Whole batches from the one that holds `offset`, up to `max_bytes`; empty at the log's end.

        `at_least_one`: the first batch comes even if it is larger (KIP-74). `end`: the log is read as if it ended at
        this offset, where a batch begins.
        """
        first = bisect_left(self._last_offsets, offset)
        last = self._count_before(end)
        if first >= last:
            return b""
        batch = self._batches[first]
        before = self._byte_ends[first] - batch.size
        stop = min(bisect_right(self._byte_ends, before + max_bytes, first), batch.segment.stop, last)
        if stop <= first:
            if not at_least_one:
                return b""
            stop = first + 1
        end = batch.position + self._byte_ends[stop - 1] - before
        return batch.segment.view[batch.position : end]

    def bytes_from(self, offset: int, end: int | None = None) -> int:
        """How many bytes of whole batches there are from the batch that holds `offset` (up to the offset `end`)."""
        first = bisect_left(self._last_offsets, offset)
        last = self._count_before(end)
        if first >= last:
            return 0
        return self._byte_ends[last - 1] - self._byte_ends[first] + self._batches[first].size

    def _count_before(self, end: int | None) -> int:
        return len(self._batches) if end is None else bisect_left(self._last_offsets, end)

    def aborted_in(self, offset: int, data: memoryview | bytes) -> list[AbortedTransaction]:
        """The aborted transactions that touch `data`, which was read from `offset` on (Kafka's `TransactionIndex`)."""
        if not data or not self._aborted:
            return []
        first = bisect_left(self._last_offsets, offset)
        byte_end = self._byte_ends[first] - self._batches[first].size + len(data)
        last_offset = self._last_offsets[bisect_left(self._byte_ends, byte_end)]
        start = bisect_left(self._aborted, offset, key=lambda aborted: aborted.last_offset)
        return [aborted for aborted in self._aborted[start:] if aborted.first_offset <= last_offset]

    def records(self, offset: int = 0) -> Iterator[Record]:
        """Decode all records from `offset` on, those of open and aborted transactions included, markers not."""
        for batch in self._batches[bisect_left(self._last_offsets, offset) :]:
            data = batch.bytes()
            header = read_batch_header(data)
            assert header is not None
            if not header.is_control:
                records = decode_batch(self.topic, self.partition, data, header, check_crc=False)
                yield from (record for record in records if record.offset >= offset)

    def _decode(self, batch: _Batch) -> list[Record]:
        data = batch.bytes()
        header = read_batch_header(data)
        assert header is not None
        return decode_batch(self.topic, self.partition, data, header, check_crc=False)

    def find_timestamp(self, timestamp: int) -> Record | None:
        """The first record with this timestamp (ms) or a later one."""
        for batch in self._batches:
            if batch.max_timestamp >= timestamp:
                for record in self._decode(batch):
                    if record.timestamp >= timestamp:
                        return record
        return None

    def latest_timestamp(self) -> Record | None:
        """The first of the records with the highest timestamp (KIP-734)."""
        newest = max(self._batches, key=lambda batch: batch.max_timestamp, default=None)
        return None if newest is None else max(self._decode(newest), key=lambda record: record.timestamp)

    def truncate(self, offset: int) -> None:
        """Drop the batch that holds `offset` and all behind it; the log ends where that batch began."""
        keep = bisect_left(self._last_offsets, offset)
        if keep == len(self._batches):
            return
        self.end_offset = self._batches[keep].base_offset
        for parts in (self._batches, self._last_offsets, self._byte_ends):
            del parts[keep:]
        if self._batches:
            self._batches[-1].segment.stop = keep
        # what a fetch has handed out are views into the segment: its bytes must stay as they are
        self._segment = _Segment(_FIRST_SEGMENT)
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < self.end_offset]
        self._aborted = [aborted for aborted in self._aborted if aborted.last_offset < self.end_offset]
        self.producers = ProducerStates()
        for batch in self._batches:
            header = read_batch_header(batch.bytes())
            assert header is not None
            if header.is_control:  # which transactions were aborted is known already
                self.producers.ended(
                    header.producer_id, header.producer_epoch, batch.base_offset, committed=True
                )
            elif header.producer_id >= 0:
                self.producers.appended(header, batch.base_offset)

    # -- leader epochs ---------------------------------------------------------------------------------------

    def start_epoch(self, leader_epoch: int) -> None:
        """A leader takes office: its epoch starts at the log's end. An epoch that appended nothing is
        forgotten.
        """
        while self.epochs and self.epochs[-1][1] >= self.end_offset:
            self.epochs.pop()
        self.epochs.append((leader_epoch, self.end_offset))

    def first_epoch(self) -> int:
        """The leader epoch of the log's first offset, -1 if there is none."""
        return next((epoch for epoch, start in reversed(self.epochs) if start <= self.start_offset), -1)

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The last epoch that is not above `leader_epoch`, and where it ends; (-1, -1) if unknown (KIP-320)."""
        if leader_epoch < 0 or not self.epochs or leader_epoch > self.epochs[-1][0]:
            return -1, -1
        if leader_epoch == self.epochs[-1][0]:
            return leader_epoch, self.end_offset
        above = bisect_right(self.epochs, (leader_epoch, 1 << 63))
        floor = self.epochs[above - 1][0] if above else leader_epoch
        return floor, self.epochs[above][1]
