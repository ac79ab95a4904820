"""The buffer of fetched record batches of one partition, decoded one at a time, and the partition's position. Pure state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from asyncgroup.columns import RecordColumns
from asyncgroup.consumer.decoding import (
    LARGE_BYTES,
    MAX_EXPANSION,
    AbortedTransactions,
    LazyRecords,
    ListedTransaction,
    plain_form,
    read_columns,
)
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import Record, TopicPartition, add_records
from asyncgroup.wire.batch_view import HEADER_SIZE, PREFIX_BYTES, BatchView, complete_bytes, iter_batches
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import MAX_DECOMPRESSED, check_batch, decode_batch, read_batch

__all__ = ["OnSkip", "RecordBuffer"]

OnSkip: TypeAlias = Callable[[CorruptRecordsError], None]
"""Called with the error of a batch that was skipped (`on_corrupt_batch="skip"`)."""


class RecordBuffer:
    """A queue of undecoded record batches, preceded by the remaining records of the decoded front batch.

    A caller that pops from `decoded` itself, as the iterator does for speed, has to call `release` after the last record.
    A corrupt batch stays in the buffer and raises at every read until a seek past it. With `on_skip` it is skipped and
    reported instead, if its end is known: if the end in its header matches its record count or the next batch, and lies
    within the log. A batch whose end is not known is never skipped: a guessed offset might leave out good records, or lead
    into the same batch again and again. Bytes that do not form batches at all are not kept: `framing_error` is raised
    once, after the records before them, and they are fetched again. A compressed batch with more than `limit` decompressed
    bytes counts as corrupt.
    """

    __slots__ = (
        "_batches",
        "_check_crcs",
        "_floor",
        "_limit",
        "_on_skip",
        "_plain",
        "_ready",
        "_size",
        "_tp",
        "_undecoded",
        "batch_bytes",
        "batches_read",
        "bytes",
        "decode_eagerly",
        "decoded",
        "fetch_offset",
        "fetched_epoch",
        "framing_error",
        "high_water_mark",
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
        self.high_water_mark = -1
        """As of the last fetch; no batch reaches beyond it."""
        self.batch_bytes = 0
        """Wire bytes of the batch added last: an estimate for the next ones."""
        self._batches: deque[BatchView] = deque()
        self.seek(offset, epoch)

    def __repr__(self) -> str:
        return f"<RecordBuffer {self._tp}: {self.records} records, {self.bytes} bytes, at {self.position}>"

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Drop everything and continue at `offset`; `epoch` is the leader epoch of the record before it, -1 if unknown."""
        self._batches.clear()
        self._ready: tuple[BatchView, list[Record] | BaseException] | None = None
        """The front batch's records, or the error of decoding it, if a thread has decoded it."""
        self._plain: tuple[BatchView, BatchView | None] | None = None
        """The front batch and its `plain_form`, once `large_front` has found that."""
        self.framing_error: CorruptRecordsError | None = None
        self.fetched_epoch = epoch
        """The leader epoch of the record before `fetch_offset`, -1 if unknown (KIP-320)."""
        self.decoded: list[Record] = []
        """The remaining records of the front batch in reverse order: `pop()` returns the next one."""
        self._size = 0  # wire bytes of the batch that `decoded` came from
        self._undecoded = 0  # records of the undecoded batches, by their headers
        self.bytes = 0
        """Wire bytes in the buffer; a batch counts in full until its last record is handed out."""
        self.fetch_offset = offset
        """The next offset to fetch."""
        self.records_end = offset
        """The offset after the last batch kept; from there to `fetch_offset` are only markers and aborted records."""
        self._floor = offset  # records below this offset are not handed out
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
        return bool(self.decoded or self._batches or self.framing_error)

    @property
    def records(self) -> int:
        """Buffered records; for undecoded batches an estimate by their headers, too high after compaction."""
        return len(self.decoded) + self._undecoded

    @property
    def position(self) -> int:
        """The offset of the next record to hand out; compaction gaps and transaction markers are skipped."""
        if self.decoded:
            return self.decoded[-1].offset
        if not self._batches:
            return self.fetch_offset
        return max(self._floor, self._batches[0].base_offset)

    @property
    def progress(self) -> tuple[int, int]:
        """A value that changes whenever a record is handed out; a timer compares it, so that no records are counted."""
        return self.batches_read, len(self.decoded)

    def add(self, data: Buffer, *, zero_copy: bool, aborted: Iterable[ListedTransaction] = ()) -> None:
        """Add the record batches of one response, except control batches (transaction markers) and the batches of the
        `aborted` transactions that the response lists.

        With `zero_copy` (a response with records of this partition only) `data` is not copied if the batches use most of
        its memory; otherwise it is, so that a slow partition does not keep the whole response in memory. If some bytes do
        not form batches, `framing_error` is set and the batches before them are added.
        """
        view = _kept(memoryview(data), zero_copy=zero_copy)
        try:
            self._add_batches(view, AbortedTransactions(aborted, self._check_crcs) if aborted else None)
        except CorruptRecordsError as error:
            self.framing_error = CorruptRecordsError(f"partition {self._tp}: {error}")

    def _add_batches(self, view: memoryview, aborted: AbortedTransactions | None) -> None:
        for batch in iter_batches(view):
            self.batch_bytes, end = batch.size, batch.next_offset
            if batch.last_offset_delta < 0 or batch.record_count < 0:
                # otherwise it would count as fetched before, and be fetched again and again
                raise CorruptRecordsError(f"batch at offset {batch.base_offset}: impossible counts")
            hidden = aborted is not None and aborted.advance_to(batch)
            if end <= self.fetch_offset:
                continue
            # with a wrong checksum a data batch may look like a marker; it is kept, so that reading it raises
            hidden = hidden or (batch.is_control and (not self._check_crcs or batch.crc_is_valid()))
            if not hidden:
                self._batches.append(batch)
                self.bytes += batch.size
                self._undecoded += batch.record_count
                self.records_end = max(self.records_end, end)
            self.fetch_offset = end
            self.fetched_epoch = batch.leader_epoch  # -1 in magic 0 and 1

    def release(self) -> None:
        """Stop counting the front batch's bytes: its last record was handed out."""
        self.bytes -= self._size
        self._size = 0

    # --- large batches ------------------------------------------------------------------------------------------

    @property
    def large_front(self) -> BatchView | None:
        """The next batch to decode if it is large and no thread has decoded it yet, else None."""
        if self.decoded or not self._batches or (self._ready and self._ready[0] is self._batches[0]):
            return None
        batch = self._batches[0]
        if self._plain is None or self._plain[0] is not batch:
            # decompressed once, for all calls until it has left the buffer: this is what `pop_records` and `advance` read
            self._plain = (batch, plain_form(batch))
        return batch if self._plain[1] is None else None

    def decode_call(self, batch: BatchView) -> Callable[[], list[Record]]:
        """Return a function that decodes a batch; it may run in any thread, its result is for `set_decoded`."""
        return partial(decode_batch, *self._tp, batch, self._check_crcs, self._limit)

    def set_decoded(self, batch: BatchView, outcome: list[Record] | BaseException) -> None:
        """Store a batch's records, or the error of decoding it, until `advance`; ignored if it is not the front batch."""
        if self._batches and self._batches[0] is batch:
            self._ready = (batch, outcome)

    def _decode_front(self) -> list[Record]:
        """Return the front batch's records. An error stored by `set_decoded` is raised once; the next read decodes again."""
        batch, ready, self._ready = self._batches[0], self._ready, None
        if ready is None or ready[0] is not batch:
            check_batch(*self._tp, batch, self._check_crcs)
            return list(read_batch(*self._tp, self._plain_front(), self._limit, check_crc=self._check_crcs))
        if isinstance(ready[1], BaseException):
            raise ready[1]
        return ready[1]

    def _plain_front(self) -> BatchView:
        """Return the front batch, decompressed if `large_front` has done that and the limit allows it."""
        batch = self._batches[0]
        plain = self._plain[1] if self._plain is not None and self._plain[0] is batch else None
        return batch if plain is None or plain.size - HEADER_SIZE > self._limit else plain

    # --- decoding -----------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Decode the next batch, to be called when the front batch is used up; return False if there is none.

        The batch may turn out to have no record to hand out. Raises CorruptRecordsError or UnsupportedVersionError; the
        batch then stays in the buffer, unless it may be skipped.
        """
        if not self._batches:
            self._raise_broken()
            return False
        batch = self._batches[0]
        try:
            records = self._decode_front()
        except CorruptRecordsError as error:
            self._skip(batch, error)
            return True
        self._batches.popleft()
        self._plain = None
        self._undecoded -= batch.record_count
        self._size = batch.size
        self.batches_read += 1
        end = max(batch.next_offset, records[-1].offset + 1 if records else 0)
        # a fetch from the middle of a batch returns the whole batch: skip the records before the fetch offset
        if records and records[0].offset < self._floor:
            records = [record for record in records if record.offset >= self._floor]
        self._floor = max(self._floor, end)
        records.reverse()
        self.decoded = records
        if not records:
            self.release()
        return True

    def read_columns(self, columns: RecordColumns, end: int) -> bool:
        """Append the front batch's records before the offset `end` to columns; return False if there are none left.

        For Spark's range reader: the counterpart of `advance`, without creating Record objects. Records from `end` on stay in
        the buffer. Raises as `advance`; a batch may also turn out to have no record to hand out.
        """
        if self.decoded or not self._batches:
            return self._read_decoded(columns, end)
        batch = self._batches[0]
        floor, batch_end = self._floor, batch.next_offset
        if max(floor, batch.base_offset) >= end:
            return False
        try:
            check_batch(*self._tp, batch, self._check_crcs)
            limit, check_crc = self._limit, self._check_crcs
            read_columns(*self._tp, batch, columns, start=floor, end=end, limit=limit, check_crc=check_crc)
        except CorruptRecordsError as error:
            self._skip(batch, error)
            return True
        if batch_end <= end:
            self._drop_front(batch)
        if batch_end > floor:
            self._floor = min(batch_end, end)
        return True

    def _read_decoded(self, columns: RecordColumns, end: int) -> bool:
        """Append records that are decoded already: the rest of a begun batch."""
        ours = [record for record in reversed(self.decoded) if record.offset < end]
        if self.decoded and not ours:
            return False
        if not self.decoded and not self._batches and self.fetch_offset < end:
            self._raise_broken()
        add_records(ours, columns)
        del self.decoded[len(self.decoded) - len(ours) :]
        if not self.decoded:
            self.release()
        return bool(ours or self._batches)

    def copy_batches(self) -> None:
        """Copy the buffered batches out of the responses that they came in, so that those can be freed.

        For Spark's workers, which keep what was fetched beyond a range for the next task.
        """
        self._batches = deque(batch.copy() for batch in self._batches)

    def _raise_broken(self) -> None:
        if self.framing_error is not None:
            error, self.framing_error = self.framing_error, None
            raise error

    def _skip(self, batch: BatchView, error: CorruptRecordsError) -> None:
        """Skip the front batch and report it; raise `error` instead without `on_skip`, or if the batch's end is unknown."""
        if self._on_skip is None or not self._has_known_end(batch):
            raise error
        self._drop_front(batch)
        first = max(self._floor, batch.base_offset) if batch.is_base_offset_certain else self._floor
        self._floor = max(self._floor, batch.next_offset)
        text = f"partition {self._tp}: offsets {first} to {batch.last_offset} are skipped"
        self._on_skip(CorruptRecordsError(f"{text}: {error}"))

    def _has_known_end(self, batch: BatchView) -> bool:
        if batch.next_offset > self.high_water_mark:
            return False
        following = self._batches[1] if len(self._batches) > 1 else None
        if following is not None and following.base_offset >= batch.next_offset:
            return True
        return batch.is_dense

    def _drop_front(self, batch: BatchView) -> None:
        """Remove the front batch as a whole: it was skipped, or is handed out undecoded."""
        self._batches.popleft()
        self._plain = None
        self._undecoded -= batch.record_count
        self.bytes -= batch.size
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
            if not self.decoded:
                if not self._batches or (taken and used + self._batches[0].size > max_bytes):
                    break
                if decompressed >= most_decompressed or self.large_front is not None:
                    break  # before the next call a thread has to decode the large batch
                plain = self._plain_front()
                used += self._batches[0].size
                decompressed += plain.size
                try:
                    self._next_within(room, taken, plain)
                except Exception:
                    if taken:
                        break  # hand out the good records first; the next call raises
                    raise
            else:
                self._take_decoded(room, taken)
        if not taken and not self._batches:
            self._raise_broken()
        return taken

    def _next_within(self, room: int, taken: LazyRecords, plain: BatchView) -> None:
        """Hand the front batch out undecoded if it has a record for every offset, all of them wanted; else decode it."""
        batch = self._batches[0]
        # corruption may show only in decoding; after the batch has left the buffer it cannot be skipped any more
        must_decode = self.decode_eagerly or self._on_skip is not None or self._ready is not None
        is_wanted = batch.base_offset >= self._floor and batch.record_count <= room
        if must_decode or not (is_wanted and batch.is_dense):
            self.advance()
            return
        check_batch(*self._tp, batch, self._check_crcs)
        if plain.codec:  # malformed, or above the limit: this call raises the error, instead of the reader's
            self.advance()
            return
        taken.add_batch(plain)
        self._drop_front(batch)
        self._floor = batch.next_offset

    def _take_decoded(self, room: int, taken: LazyRecords) -> None:
        part = self.decoded[-room:]
        del self.decoded[-room:]
        part.reverse()
        taken.add_records(part)
        if not self.decoded:
            self.release()


def _kept(data: memoryview, *, zero_copy: bool) -> memoryview:
    """Return the complete batches of a partition's bytes, copied unless they make up most of the response's memory.

    A broker cuts the last batch off at the requested size (KIP-74). This incomplete batch is useless, but would stay in
    memory, uncounted, as long as the batches before it: where batches are large, almost as much again as those.
    """
    end = complete_bytes(data)
    kept = data[: end + PREFIX_BYTES]  # enough of the rest to check that a batch begins there
    return kept if zero_copy and len(data) - end <= end // 8 else memoryview(bytes(kept))
