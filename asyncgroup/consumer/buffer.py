"""The buffer of fetched record batches of one partition, decoded one at a time, and the partition's position. Pure state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from asyncgroup.columns import RecordColumns
from asyncgroup.consumer.batch_queue import BatchQueue
from asyncgroup.consumer.decoding import (
    LARGE_BYTES,
    MAX_EXPANSION,
    AbortedTransactions,
    LazyRecords,
    ListedTransaction,
    read_columns,
)
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import Record, TopicPartition, add_records
from asyncgroup.wire.batch_run import RUN_BYTES, BatchRun, find_batches
from asyncgroup.wire.batch_view import PREFIX_BYTES, BatchView, batch_at
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import MAX_DECOMPRESSED, check_batch

__all__ = ["OnSkip", "RecordBuffer"]

_ANY_NUMBER: Final = 1 << 62

OnSkip: TypeAlias = Callable[[CorruptRecordsError], None]
"""Called with the error of a batch that was skipped (`on_corrupt_batch="skip"`)."""


class RecordBuffer:
    """A queue of undecoded record batches, preceded by the remaining records of the decoded front batch.

    Small batches are in runs, each of which is decoded as a whole; one that cannot be is replaced by its batches.

    A caller that pops from `decoded` itself, as the iterator does for speed, has to call `release` after the last record.
    A corrupt batch stays in the buffer and raises at every read until a seek past it. With `on_skip` it is skipped and
    reported instead, if its end is known: if the end in its header matches its record count or the next batch, and lies
    within the log. A batch whose end is not known is never skipped: a guessed offset might leave out good records, or lead
    into the same batch again and again. Bytes that do not form batches at all are not kept: `framing_error` is raised
    once, after the records before them, and they are fetched again. A compressed batch with more than `limit` decompressed
    bytes counts as corrupt.
    """

    __slots__ = (
        "_begun",
        "_check_crcs",
        "_floor",
        "_limit",
        "_on_skip",
        "_queue",
        "_size",
        "_tp",
        "batch_bytes",
        "batches_read",
        "bytes",
        "bytes_delivered",
        "decode_eagerly",
        "decoded",
        "fetch_offset",
        "fetched_epoch",
        "framing_error",
        "high_watermark",
        "records_end",
    )

    def __init__(
        self,
        tp: TopicPartition,
        offset: int,
        check_crcs: bool,
        on_skip: OnSkip | None = None,
        epoch: int = -1,
        limit: int = MAX_DECOMPRESSED,
    ) -> None:
        self._tp = tp
        self._check_crcs = check_crcs
        self._on_skip = on_skip
        self._limit = limit
        self.batches_read = 0
        """Changes whenever a batch is begun or dropped; part of `progress`."""
        self.decode_eagerly = False
        """Whether `pop_records` decodes every batch, so that a corrupt one raises here and stays in the buffer."""
        self.high_watermark = -1
        """As of the last fetch; no batch reaches beyond it."""
        self.batch_bytes = 0
        """Wire bytes of the batch added last: an estimate for the next ones."""
        self._queue = BatchQueue(tp, check_crcs, limit)
        self.decoded: list[Record] = []
        """The remaining records of the front batch in reverse order: `pop()` returns the next one."""
        self._begun = (
            0  # records that were delivered, and those in `decoded`: nothing is counted for each record
        )
        self.bytes_delivered = 0
        """Wire bytes of the batches that were delivered to their last record, or skipped."""
        self.seek(offset, epoch)

    def __repr__(self) -> str:
        return f"<RecordBuffer {self._tp}: {self.records} records, {self.bytes} bytes, at {self.position}>"

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Drop everything and continue at `offset`; `epoch` is the leader epoch of the record before it, -1 if unknown."""
        self._queue.clear()
        self.framing_error: CorruptRecordsError | None = None
        self.fetched_epoch = epoch
        """The leader epoch of the record before `fetch_offset`, -1 if unknown (KIP-320)."""
        self._begin([])
        self._size = 0  # wire bytes of the batch or run that `decoded` came from
        self.bytes = 0
        """Wire bytes in the buffer; a batch counts in full until its last record is delivered."""
        self.fetch_offset = offset
        """The next offset to fetch."""
        self.records_end = offset
        """The offset after the last batch kept; from there to `fetch_offset` are only markers and aborted records."""
        self._floor = offset  # records below this offset are not delivered
        self.batches_read += 1

    def close(self) -> None:
        """Drop everything: nothing more is read."""
        self.seek(self.position)

    def forget_from(self, offset: int) -> None:
        """Forget what was kept of records at `offset` and later, which the log no longer has; here nothing is kept."""

    def skip_to(self, offset: int) -> None:
        """Fetch from a later offset next; buffered records are kept."""
        self.fetch_offset = offset
        self.fetched_epoch = -1

    def __bool__(self) -> bool:
        return bool(self.decoded or self._queue or self.framing_error)

    @property
    def records(self) -> int:
        """Buffered records; for undecoded batches an estimate by their headers, which is above the real number after compaction."""
        return len(self.decoded) + self._queue.records

    @property
    def records_delivered(self) -> int:
        """Records that were delivered so far; those that are delivered again after a seek count again."""
        return self._begun - len(self.decoded)

    @property
    def position(self) -> int:
        """The offset of the next record to deliver; compaction gaps and transaction markers are skipped."""
        if self.decoded:
            return self.decoded[-1].offset
        if not self._queue:
            return self.fetch_offset
        return max(self._floor, self._queue.front.base_offset)

    @property
    def decoded_bytes(self) -> int:
        """Wire bytes of the batch or run that `decoded` came from; 0 once its last record was delivered."""
        return self._size

    @property
    def progress(self) -> tuple[int, int]:
        """A value that changes whenever a record is delivered; a timer compares it, so that no records are counted."""
        return self.batches_read, len(self.decoded)

    def add(self, data: Buffer, *, zero_copy: bool, aborted: Iterable[ListedTransaction] = ()) -> None:
        """Add the record batches of one response, except control batches (transaction markers) and the batches of the
        `aborted` transactions that the response lists.

        With `zero_copy` (a response with records of this partition only) `data` is not copied if the batches use most of
        its memory; otherwise it is, so that a slow partition does not keep the whole response in memory. If some bytes do
        not form batches, `framing_error` is set and the batches before them are added.
        """
        finding, filter_ = (
            AbortedTransactions(aborted, self._check_crcs) if aborted else None for _ in range(2)
        )
        found, end = find_batches(data, check_crcs=self._check_crcs, aborted=finding)
        view = _kept(memoryview(data), end, zero_copy=zero_copy)
        try:
            for one in found:
                if isinstance(one, BatchRun):
                    one.buffer = view
                    self._add_run(one)
                elif (batch := batch_at(view, one)) is not None:
                    self._add_batch(batch, filter_)
            batch_at(view, end)  # raises for bytes that are no batch
        except CorruptRecordsError as error:
            self.framing_error = CorruptRecordsError(f"partition {self._tp}: {error}")

    def _add_run(self, run: BatchRun) -> None:
        if run.base_offset < self.fetch_offset:  # the fetch began in the middle of it
            for batch in run.views():
                self._add_batch(batch, None)
        else:
            self._queue.append(run)
            self.bytes += run.size
            self.records_end = run.next_offset
        start, end = run.spans[-1]
        self.batch_bytes = end - start
        if run.end_offset > self.fetch_offset:  # it is already set if the fetch began in the middle
            self.fetch_offset = run.end_offset
            self.fetched_epoch = run.leader_epoch

    def _add_batch(self, batch: BatchView, aborted: AbortedTransactions | None) -> None:
        self.batch_bytes, end = batch.size, batch.next_offset
        if batch.last_offset_delta < 0 or batch.record_count < 0:
            # otherwise it would count as fetched before, and be fetched again and again
            raise CorruptRecordsError(f"batch at offset {batch.base_offset}: impossible counts")
        hidden = aborted is not None and aborted.advance_to(batch)
        if end <= self.fetch_offset:
            return
        # with a wrong checksum a data batch may look like a marker; it is kept, so that reading it raises
        hidden = hidden or (batch.is_control and (not self._check_crcs or batch.crc_is_valid()))
        if not hidden:
            self._queue.append(batch)
            self.bytes += batch.size
            self.records_end = max(self.records_end, end)
        self.fetch_offset = end
        self.fetched_epoch = batch.leader_epoch  # -1 in magic 0 and 1

    def release(self) -> None:
        """Stop counting the front batch's bytes: its last record was delivered."""
        self.bytes -= self._size
        self.bytes_delivered += self._size
        self._size = 0

    def _begin(self, records: list[Record]) -> None:
        """Replace `decoded`; what was left in it does not count as delivered."""
        self._begun += len(records) - len(self.decoded)
        self.decoded = records

    # --- large batches ------------------------------------------------------------------------------------------

    @property
    def large_front(self) -> BatchView | None:
        """The next batch to decode if it is large and no thread has decoded it yet, else None."""
        return None if self.decoded else self._queue.large_front

    def decode_call(self, batch: BatchView) -> Callable[[], list[Record]]:
        """Return a function that decodes a batch; it may run in any thread, its result is for `set_decoded`."""
        return self._queue.decode_call(batch)

    def set_decoded(self, batch: BatchView, outcome: list[Record] | BaseException) -> None:
        """Store a batch's records, or the error of decoding it, until `advance`; ignored if it is not the front batch."""
        self._queue.set_decoded(batch, outcome)

    # --- decoding -----------------------------------------------------------------------------------------------

    def advance(self, most: int = RUN_BYTES) -> bool:
        """Decode the next batch or run, to be called when the front batch is used up; return False if there is none.

        Of a run only the first batches of together `most` wire bytes are decoded, but at least one.

        The batch may turn out to have no record to deliver. Raises CorruptRecordsError or UnsupportedVersionError; the
        batch then stays in the buffer, unless it may be skipped.
        """
        if not self._queue:
            self._raise_broken()
            return False
        self._queue.front_within(_ANY_NUMBER, most)
        try:
            records = self._queue.decode()
        except CorruptRecordsError as error:
            self._skip(error)
            return True
        if records is None:
            return True
        batch = self._queue.pop()
        self._size = batch.size
        self.batches_read += 1
        end = max(batch.next_offset, records[-1].offset + 1 if records else 0)
        # a fetch from the middle of a batch returns the whole batch: skip the records before the fetch offset
        if records and records[0].offset < self._floor:
            records = [record for record in records if record.offset >= self._floor]
        self._floor = max(self._floor, end)
        records.reverse()
        self._begin(records)
        if not records:
            self.release()
        return True

    def read_columns(self, columns: RecordColumns, end: int) -> bool:
        """Append the front batch's records before the offset `end` to columns; return False if there are none left.

        For Spark's range reader: the counterpart of `advance`, without creating Record objects. Records from `end` on stay in
        the buffer. Raises as `advance`; a batch may also turn out to have no record to deliver.
        """
        if self.decoded or not self._queue:
            return self._read_decoded(columns, end)
        if self._read_run_columns(columns, end):
            return True
        batch = self._queue.front_batch()
        floor, batch_end = self._floor, batch.next_offset
        if max(floor, batch.base_offset) >= end:
            return False
        try:
            check_batch(*self._tp, batch, self._check_crcs)
            limit, check_crc = self._limit, self._check_crcs
            read_columns(*self._tp, batch, columns, start=floor, end=end, limit=limit, check_crc=check_crc)
        except CorruptRecordsError as error:
            self._skip(error)
            return True
        if batch_end <= end:
            self._drop_front()
        if batch_end > floor:
            self._floor = min(batch_end, end)
        return True

    def _read_run_columns(self, columns: RecordColumns, end: int) -> bool:
        """Append the records of the run in front; False if it is none, or has to be read batch by batch."""
        run = self._queue.front
        if not isinstance(run, BatchRun) or run.base_offset < self._floor or run.next_offset > end:
            return False
        plain = self._queue.plain()
        if isinstance(plain, BatchView):
            return False
        try:
            read_columns(*self._tp, plain, columns)
        except CorruptRecordsError:
            self._queue.take_apart()
            return False
        self._drop_front()
        self._floor = plain.next_offset
        return True

    def _read_decoded(self, columns: RecordColumns, end: int) -> bool:
        """Append records that are decoded already: the rest of a begun batch."""
        ours = [record for record in reversed(self.decoded) if record.offset < end]
        if self.decoded and not ours:
            return False
        if not self.decoded and not self._queue and self.fetch_offset < end:
            self._raise_broken()
        add_records(ours, columns)
        del self.decoded[len(self.decoded) - len(ours) :]
        if not self.decoded:
            self.release()
        return bool(ours or self._queue)

    def copy_batches(self) -> None:
        """Copy the buffered batches out of the responses that they came in, so that those can be freed.

        For Spark's workers, which keep what was fetched beyond a range for the next task.
        """
        self._queue.copy_batches()

    def _raise_broken(self) -> None:
        if self.framing_error is not None:
            error, self.framing_error = self.framing_error, None
            raise error

    def _skip(self, error: CorruptRecordsError) -> None:
        """Skip the front batch and report it; raise `error` instead without `on_skip`, or if the batch's end is unknown."""
        batch = self._queue.front_batch()
        if self._on_skip is None or not self._has_known_end(batch):
            raise error
        self._drop_front()
        first = max(self._floor, batch.base_offset) if batch.is_base_offset_certain else self._floor
        self._floor = max(self._floor, batch.next_offset)
        text = f"partition {self._tp}: offsets {first} to {batch.last_offset} are skipped"
        self._on_skip(CorruptRecordsError(f"{text}: {error}"))

    def _has_known_end(self, batch: BatchView) -> bool:
        if batch.next_offset > self.high_watermark:
            return False
        following = self._queue.following
        if following is not None and following.base_offset >= batch.next_offset:
            return True
        return batch.is_dense

    def _drop_front(self) -> None:
        """Remove the front batch or run as a whole: it was skipped, or is delivered undecoded."""
        size = self._queue.pop().size
        self.bytes -= size
        self.bytes_delivered += size
        self.batches_read += 1

    def pop_records(self, max_records: int, max_bytes: int) -> LazyRecords:
        """Remove and return up to `max_records` records of up to `max_bytes` wire bytes; at least one if any is buffered.

        Bytes are counted by whole record batches: a batch that would exceed the limit stays for the next call, and so do
        further ones once the records taken have `MAX_EXPANSION * max_bytes` and at least `LARGE_BYTES` decompressed bytes. A
        large batch that no thread has decoded stays too, so the caller makes sure that `large_front` is None. Raises as
        `advance`, unless there are records before the corrupt batch: then they are returned, and the next call raises.
        """
        taken = LazyRecords(self._tp)
        used, decompressed, most_decompressed = self._size, 0, max(LARGE_BYTES, MAX_EXPANSION * max_bytes)
        while (room := max_records - len(taken)) > 0:
            if self.decoded:
                self._take_decoded(room, taken)
                continue
            if self._refill():
                continue
            if not self._queue or decompressed >= most_decompressed:
                break
            front = self._queue.front_within(room, max_bytes - used)
            if (taken and used + front.size > max_bytes) or self.large_front is not None:
                break  # a large batch is decoded by a thread before the next call
            plain, size, read = self._queue.plain(), self._queue.front.size, self.batches_read
            try:
                self._next_within(room, taken, plain)
            except Exception:
                if taken:
                    break  # deliver the good records first; the next call raises
                raise
            if self.batches_read != read:  # else a run was taken apart
                used += size
                decompressed += plain.size
        if not taken and not self._queue:
            self._raise_broken()
        return taken

    def _next_within(self, room: int, taken: LazyRecords, plain: BatchView | BatchRun) -> None:
        """Deliver the front batch undecoded if it has a record for every offset, all of them wanted; else decode it."""
        front = self._queue.front
        # corruption may show only in decoding; after the batch has left the buffer it cannot be skipped any more
        must_decode = self.decode_eagerly or self._on_skip is not None or self._queue.is_front_decoded
        is_wanted = front.base_offset >= self._floor and front.record_count <= room
        if must_decode or not is_wanted or not (isinstance(front, BatchRun) or front.is_dense):
            self.advance()
            return
        if isinstance(front, BatchView):
            check_batch(*self._tp, front, self._check_crcs)
        if isinstance(plain, BatchView) and plain.codec:
            self.advance()  # malformed, or above the limit: this call raises the error, instead of the reader's
            return
        taken.add_batch(plain)
        self._begun += plain.record_count
        self._drop_front()
        self._floor = front.next_offset

    def _refill(self) -> bool:
        """Fill `decoded` with records that were decoded before; False if there are none, as always here."""
        return False

    def _take_decoded(self, room: int, taken: LazyRecords) -> None:
        part = self.decoded[-room:]
        del self.decoded[-room:]
        part.reverse()
        taken.add_records(part)
        if not self.decoded:
            self.release()


def _kept(data: memoryview, end: int, *, zero_copy: bool) -> memoryview:
    """Return a partition's bytes up to `end`, the complete batches; copied unless they make up most of the response's memory.

    A broker cuts the last batch off at the requested size (KIP-74). This incomplete batch is useless, but would stay in
    memory, uncounted, as long as the batches before it: where batches are large, almost as much again as those.
    """
    kept = data[: end + PREFIX_BYTES]  # enough of the rest to check that a batch begins there
    return kept if zero_copy and len(data) - end <= end // 8 else memoryview(bytes(kept))
