"""The buffer of fetched record batches of one partition, decoded one at a time, and the partition's position. Pure state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.batch_queue import LARGE_BYTES, MAX_EXPANSION, BatchQueue
from asyncgroup.consumer.chunk_filter import ChunkFilter, Reader
from asyncgroup.consumer.decoding import (
    AbortedTransactions,
    LazyRecords,
    ListedTransaction,
)
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.hooks import Hooks
from asyncgroup.model import Record, TopicPartition
from asyncgroup.wire.batch_run import RUN_BYTES, BatchRun, complete_part, find_batches
from asyncgroup.wire.batch_view import BatchView, batch_at, complete_size
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import MAX_DECOMPRESSED, check_batch

__all__ = ["OnSkip", "RecordBuffer", "make_buffer"]

OnSkip: TypeAlias = Callable[[CorruptRecordsError], None]
"""Called with the error of a batch that was skipped (`on_corrupt_batch="skip"`)."""


class RecordBuffer:
    """A queue of undecoded record batches, preceded by the remaining records of the decoded front batch.

    A caller that pops from `decoded` itself, as the iterator does for speed, has to call `release` after the last record. A
    corrupt batch stays in the buffer and raises at every read until a seek past it. With `on_skip` it is skipped and reported
    instead, if its end is known: if the end in its header matches its record count or the next batch, and lies within the log.
    A batch whose end is not known is never skipped: a guessed offset might leave out good records, or lead into the same batch
    again and again. Bytes that do not form batches at all are not kept: `framing_error` is raised once, after the records
    before them, and they are fetched again. A compressed batch with more than `limit` decompressed bytes counts as corrupt.
    """

    __slots__ = (
        "_batches",
        "_begun",
        "_check_crcs",
        "_on_skip",
        "_rest",
        "_rest_size",
        "_tp",
        "batch_bytes",
        "batches_read",
        "bytes",
        "bytes_delivered",
        "chunks",
        "decode_eagerly",
        "decoded",
        "decoded_bytes",
        "fetch_offset",
        "fetched_epoch",
        "floor",
        "framing_error",
        "high_watermark",
        "queue",
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
        self.batches_read = 0
        """Changes whenever a batch is begun or dropped; part of `progress`."""
        self.decode_eagerly = False
        """Whether `pop_records` decodes every batch, so that a corrupt one raises here and stays in the buffer."""
        self.high_watermark = -1
        """As of the last fetch; no batch reaches beyond it."""
        self.batch_bytes = 0
        """Wire bytes of the batch added last: an estimate for the next ones."""
        self.queue = BatchQueue(tp, check_crcs, limit)
        self._batches = self.queue.batches
        self.chunks: ChunkFilter | None = None
        """Puts the chunks of large values together; None if they are delivered as they are."""
        self.decoded: list[Record] = []
        """The remaining records of the front batch in reverse order: `pop()` returns the next one."""
        self._begun = 0  # records delivered, and those in `decoded`: nothing is counted for each record
        self.bytes_delivered = 0
        """Wire bytes of the batches that were delivered to their last record, or skipped."""
        self.seek(offset, epoch)

    def __repr__(self) -> str:
        return f"<RecordBuffer {self._tp}: {self.records} records, {self.bytes} bytes, at {self.position}>"

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Drop everything and continue at `offset`; `epoch` is the leader epoch of the record before it, -1 if unknown."""
        if self.chunks is not None:
            self.chunks.on_seek(offset)
        self.queue.clear()
        self._rest: list[Record] = []  # of the begun batch, after those in `decoded`, in reverse order
        self._rest_size = 0  # wire bytes of the batch that `_rest` came from
        self.framing_error: CorruptRecordsError | None = None
        self.fetched_epoch = epoch
        """The leader epoch of the record before `fetch_offset`, -1 if unknown (KIP-320)."""
        self._begin([])
        self.decoded_bytes = 0
        """Wire bytes of the batch or run that `decoded` came from; 0 once its last record was delivered."""
        self.bytes = 0
        """Wire bytes in the buffer; a batch counts in full until its last record is delivered."""
        self.fetch_offset = offset
        """The next offset to fetch."""
        self.records_end = offset
        """The offset after the last batch kept; from there to `fetch_offset` are only markers and aborted records."""
        self.floor = offset
        """Records below this offset are not delivered."""
        self.batches_read += 1

    def close(self) -> None:
        """Drop everything: nothing more is read."""
        self.seek(self.position)
        if self.chunks is not None:
            self.chunks.close()

    def forget_from(self, offset: int) -> None:
        """Forget the chunks of values that began at `offset` or later, which the log no longer has."""
        if self.chunks is not None:
            self.chunks.forget_from(offset)

    def skip_to(self, offset: int) -> None:
        """Fetch from a later offset next; buffered records are kept."""
        self.fetch_offset = offset
        self.fetched_epoch = -1

    def __bool__(self) -> bool:
        return bool(self.decoded or self._rest or self._batches or self.framing_error)

    @property
    def records(self) -> int:
        """Buffered records; for undecoded batches an estimate by their headers, which is above the real number after compaction."""
        return len(self.decoded) + len(self._rest) + self.queue.records

    @property
    def records_delivered(self) -> int:
        """Records that were delivered so far; those that are delivered again after a seek count again."""
        return self._begun - len(self.decoded)

    @property
    def position(self) -> int:
        """The offset of the next record to deliver, without gaps and transaction markers; of chunks that of the last one."""
        if self.decoded or self._rest:
            return (self.decoded or self._rest)[-1].offset
        if not self._batches:
            return self.fetch_offset
        return max(self.floor, self._batches[0].base_offset)

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
        hiding = AbortedTransactions(aborted, self._check_crcs) if aborted else None
        found: list[BatchRun | int] = [0]
        if (end := complete_size(data, 0)) == len(data):  # one batch: no run, and nothing after it
            view = memoryview(data if zero_copy else bytes(data))
        else:
            finding = AbortedTransactions(aborted, self._check_crcs) if aborted else None
            found, end = find_batches(data, check_crcs=self._check_crcs, aborted=finding)
            view = complete_part(memoryview(data), end, zero_copy=zero_copy)
        try:
            for one in found:
                if isinstance(one, BatchRun):
                    one.buffer = view
                    self._add_run(one)
                elif (batch := batch_at(view, one)) is not None:
                    self._add_batch(batch, hiding)
            if end < len(view):
                batch_at(view, end)  # raises if the bytes are not a batch
        except CorruptRecordsError as error:
            self.framing_error = CorruptRecordsError(f"partition {self._tp}: {error}")

    def _add_run(self, run: BatchRun) -> None:
        if run.base_offset < self.fetch_offset:  # the fetch began in the middle of it
            for batch in run.views():
                self._add_batch(batch, None)
        else:
            self.queue.append(run)
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
            self.queue.append(batch)
            self.bytes += batch.size
            self.records_end = max(self.records_end, end)
        self.fetch_offset = end
        self.fetched_epoch = batch.leader_epoch  # -1 in magic 0 and 1

    def release(self) -> None:
        """Stop counting the front batch's bytes: its last record was delivered."""
        self.bytes -= self.decoded_bytes
        self.bytes_delivered += self.decoded_bytes
        self.decoded_bytes = 0
        if self.chunks is not None:
            self.chunks.confirm()

    def _begin(self, records: list[Record]) -> None:
        """Replace `decoded`; what was left in it does not count as delivered."""
        self._begun += len(records) - len(self.decoded)
        self.decoded = records

    @property
    def large_front(self) -> BatchView | None:
        """The next batch to decode if it is large and no thread has decoded it yet, else None."""
        return None if self.decoded or self._rest else self.queue.large_front

    # --- decoding -----------------------------------------------------------------------------------------------

    def advance(self, most: int = RUN_BYTES) -> bool:
        """Decode the next batch or run, to be called when the front batch is used up; return False if there is none.

        Of a run only the first batches of together `most` wire bytes are decoded, but at least one.

        The batch may turn out to have no record to deliver. Raises CorruptRecordsError or UnsupportedVersionError; the
        batch then stays in the buffer, unless it may be skipped.
        """
        if self._rest:
            self._go_on()
            return True
        if not self._batches:
            self.raise_broken()
            return False
        try:
            records = self.queue.decode(most)
        except CorruptRecordsError as error:
            self.skip(error)
            return True
        if records is None:
            return True
        batch = self.queue.pop()
        self.decoded_bytes = batch.size
        self.batches_read += 1
        end = max(batch.next_offset, records[-1].offset + 1 if records else 0)
        # a fetch from the middle of a batch returns the whole batch: skip the records before the fetch offset
        if records and records[0].offset < self.floor:
            records = [record for record in records if record.offset >= self.floor]
        self.floor = max(self.floor, end)
        records.reverse()
        if self.chunks is not None and self.chunks.holds(records):
            self._rest, self._rest_size, self.decoded_bytes = records, self.decoded_bytes, 0
            self._go_on()
            return True
        self._begin(records)
        if not records:
            self.release()
            if self.chunks is not None:
                self.chunks.report_dropped()
        return True

    def _go_on(self) -> None:
        """Move the next records of the begun batch to `decoded`: a whole value, or all up to the next chunk."""
        assert self.chunks is not None
        records = self.chunks.next_records(self._rest)
        self._begin(records)
        self.batches_read += 1
        if not self._rest:
            # the bytes of a batch count until its last records are delivered, which have its size
            self.decoded_bytes, self._rest_size = self._rest_size, 0
            if not records:
                self.release()
                self.chunks.report_dropped()

    def raise_broken(self) -> None:
        """Raise `framing_error` once, if there is one; to be called when nothing is left before it."""
        if self.framing_error is not None:
            error, self.framing_error = self.framing_error, None
            raise error

    def skip(self, error: CorruptRecordsError) -> None:
        """Skip the front batch and report it; raise `error` instead without `on_skip`, or if the batch's end is unknown."""
        batch = self.queue.front_batch()
        if self._on_skip is None or not self.queue.is_end_known(batch, self.high_watermark):
            raise error
        self.drop_front()
        first = max(self.floor, batch.base_offset) if batch.is_base_offset_certain else self.floor
        self.floor = max(self.floor, batch.next_offset)
        text = f"partition {self._tp}: offsets {first} to {batch.last_offset} are skipped"
        self._on_skip(CorruptRecordsError(f"{text}: {error}"))
        if self.chunks is not None:
            self.chunks.report_dropped()

    def drop_front(self) -> None:
        """Remove the front batch or run as a whole: it was skipped, or is delivered undecoded."""
        size = self.queue.pop().size
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
        first_held = None if self.chunks is None else self.chunks.first_offset
        used, decompressed = self.decoded_bytes, 0
        most_decompressed = max(LARGE_BYTES, MAX_EXPANSION * max_bytes)
        while (room := max_records - len(taken)) > 0:
            if self.decoded:
                self._take_decoded(room, taken)
                continue
            if self._rest:
                self._go_on()
                continue
            if not self._batches or decompressed >= most_decompressed:
                break
            front = self.queue.front_within(max_bytes - used, room)
            if (taken and used + front.size > max_bytes) or self.large_front is not None:
                break  # a large batch is decoded by a thread before the next call
            plain, size, read = self.queue.plain(), self._batches[0].size, self.batches_read
            try:
                self._next_within(room, taken, plain)
            except Exception:
                if taken:
                    break  # deliver the good records first; the next call raises
                raise
            if self.batches_read != read:  # else a run was taken apart
                used += size
                decompressed += plain.size
        if not taken and not self._batches:
            self.raise_broken()
        if taken and first_held is not None and first_held < taken.first_offset:
            taken.reread_offset = int(first_held)
        return taken

    def _next_within(self, room: int, taken: LazyRecords, plain: BatchView | BatchRun) -> None:
        """Deliver the front batch undecoded if it has a record for every offset, all of them wanted; else decode it."""
        front = self._batches[0]
        # corruption may show only in decoding; after the batch has left the buffer it cannot be skipped any more
        must_decode = self.decode_eagerly or self._on_skip is not None or self.queue.is_front_decoded
        must_decode = must_decode or (self.chunks is not None and not self.chunks.lets_pass(plain))
        is_wanted = front.base_offset >= self.floor and front.record_count <= room
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
        self.drop_front()
        self.floor = front.next_offset
        if self.chunks is not None:
            self.chunks.first_dropped = -1

    def _take_decoded(self, room: int, taken: LazyRecords) -> None:
        taken.add_records(self.decoded[: -room - 1 : -1])
        del self.decoded[-room:]
        if not self.decoded:
            self.release()


def make_buffer(
    reader: Reader, offset: int, config: ConsumerConfig, on_skip: OnSkip, leader_epoch: int, hooks: Hooks
) -> RecordBuffer:
    """Return the buffer of a partition by the configuration."""
    skip = on_skip if config.on_corrupt_batch == "skip" else None
    buffer = RecordBuffer(reader.tp, offset, config.check_crcs, skip, leader_epoch, config.max_response_size)
    if config.chunks != "as_is":
        buffer.chunks = ChunkFilter(reader, buffer, config, hooks)
    return buffer
