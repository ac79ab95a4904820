"""What a partition holds between the fetch and its reader: whole record batches, decoded one at a time.

Pure state without any waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from asyncgroup.columns import RecordColumns
from asyncgroup.consumer.aborted import AbortedTransactions, ListedTransaction
from asyncgroup.consumer.decoding import is_slow
from asyncgroup.consumer.lazy_records import LazyRecords, RawBatch
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import Record, TopicPartition, add_records
from asyncgroup.wire.columnar import read_columns
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import (
    LOG_OVERHEAD,
    MAX_DECOMPRESSED,
    BatchHeader,
    check_batch,
    crc_is_valid,
    decode_batch,
    is_large_compressed,
    iter_batch_headers,
)

__all__ = ["OnSkip", "RecordBuffer"]

OnSkip: TypeAlias = Callable[[CorruptRecordsError], None]
"""Hears of a batch that was left out (`on_corrupt_batch="skip"`)."""

_LOOK_BYTES = LOG_OVERHEAD + 5
"""Bytes of a batch from which its length and magic can be read."""


class RecordBuffer:
    """A queue of undecoded record batches, with the rest of the one that is being read in front.

    `fetch_offset` is the next offset to ask the broker for; `bytes` is what waits, a batch counting whole until its
    last record is handed out. `decoded` holds the rest of the batch in front in reverse order, so that its `pop()` is
    the next record: whoever calls that itself (the iterator, which has no time to lose) calls `release` behind the
    last one. `fetched_epoch` is the leader epoch of the record before `fetch_offset`, -1 if unknown (KIP-320).
    `records_end` is the offset behind the last batch that was kept: from there up to `fetch_offset` is nothing to hand
    out, only transaction markers and what was aborted.

    A batch that cannot be read stays where it is, and is met again at every read, until somebody seeks past it. With
    `on_skip` it is left out and told of, if its header can be believed: if what it says of the batch's end fits the
    number of its records or the next batch, and the log's end. One whose end is not known stays in any case: to guess
    an offset behind it might leave out records that are good, or lead into it again and again. Bytes whose very form
    is wrong are not kept: `framing_error` is the error for them, met behind what came before; then they are fetched anew, as
    the fault may have been on the way. A compressed batch that holds more than `limit` bytes cannot be read either.
    """

    __slots__ = (
        "_batches",
        "_check_crcs",
        "_floor",
        "_limit",
        "_on_skip",
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
        self._tp, self._check_crcs, self._on_skip = tp, check_crcs, on_skip
        self._limit = limit
        self.batches_read = 0
        self.decode_eagerly = False
        """Whether `pop_records` decodes every batch, so that one that cannot be read stays here, and is met here."""
        self.high_water_mark = -1
        """The high watermark as of the last fetch; no batch reaches beyond it."""
        self.batch_bytes = 0
        """Wire bytes of the batch that came last: how large the next ones may be."""
        self._batches: deque[RawBatch] = deque()
        self.seek(offset, epoch)

    def __repr__(self) -> str:
        return f"<RecordBuffer {self._tp}: {self.records} records, {self.bytes} bytes, at {self.position}>"

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Drop everything and go on at `offset`; `epoch` is the leader epoch of the record before it."""
        self._batches.clear()
        self._ready: tuple[RawBatch, list[Record] | BaseException] | None = None
        """What the batch in front holds, or why it cannot be read, if it was decoded elsewhere."""
        self.framing_error: CorruptRecordsError | None = None
        self.fetched_epoch = epoch
        self.decoded: list[Record] = []
        self._size = self._undecoded = 0
        self.bytes = 0
        self.fetch_offset = self.records_end = self._floor = offset
        self.batches_read += 1

    def drop(self) -> None:
        """Drop everything that waits, for good; the position stays as it is."""
        self.seek(self.position)

    def skip_to(self, offset: int) -> None:
        """Ask for a later offset next; what waits is kept."""
        self.fetch_offset, self.fetched_epoch = offset, -1

    def __bool__(self) -> bool:
        return bool(self.decoded or self._batches or self.framing_error)

    @property
    def records(self) -> int:
        """Records that wait; of undecoded batches as their headers count them, too many after a compaction."""
        return len(self.decoded) + self._undecoded

    @property
    def position(self) -> int:
        """The offset of the next record to hand out; gaps of compaction and transaction markers are passed over."""
        if self.decoded:
            return self.decoded[-1].offset
        if not self._batches:
            return self.fetch_offset
        header = self._batches[0].header
        # an old compressed message set is known by its last offset only
        return max(self._floor, header.base_offset) if header.magic >= 2 else self._floor

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever a record is handed out; read by a timer, so that nobody has to count records."""
        return self.batches_read, len(self.decoded)

    def add(self, data: Buffer, *, zero_copy: bool, aborted: Iterable[ListedTransaction] = ()) -> None:
        """Take in the record batches of one response; control batches (transaction markers) are passed over, and so are
        those of the `aborted` transactions that the response lists.

        `zero_copy` says that the response holds this partition alone; otherwise `data` is copied, so that a slow
        partition does not keep the whole response in memory. Of bytes that are no batches `framing_error` tells; what stood
        before them is taken in.
        """
        view = _kept(memoryview(data), zero_copy=zero_copy)
        try:
            self._add_batches(view, AbortedTransactions(aborted, self._check_crcs) if aborted else None)
        except CorruptRecordsError as error:
            self.framing_error = CorruptRecordsError(f"partition {self._tp}: {error}")

    def _add_batches(self, view: memoryview, aborted: AbortedTransactions | None) -> None:
        for header in iter_batch_headers(view):
            self.batch_bytes, behind = header.size, header.next_offset
            data = view[header.start : header.start + header.size]
            hidden = False
            if header.magic >= 2:
                if header.last_offset_delta < 0 or header.record_count < 0:
                    # it would be passed over as an old one, and be fetched again and again
                    raise CorruptRecordsError(f"batch at offset {header.base_offset}: impossible counts")
                hidden = aborted is not None and aborted.is_aborted(header, data)
                if behind <= self.fetch_offset:
                    continue
                # where the checksum is wrong, data may pose as a marker: its reader will be told
                hidden = hidden or (header.is_control and (not self._check_crcs or crc_is_valid(data)))
            if not hidden:
                self._batches.append(RawBatch(header, data))
                self.bytes += header.size
                self._undecoded += header.record_count
                self.records_end = max(self.records_end, behind)
            if behind > self.fetch_offset:
                self.fetch_offset = behind
                self.fetched_epoch = header.leader_epoch if header.magic >= 2 else -1

    def pop(self) -> Record | None:
        """The next record of the batch in front, None if it has no more (then `advance`)."""
        if not self.decoded:
            return None
        record = self.decoded.pop()
        if not self.decoded:
            self.release()
        return record

    def release(self) -> None:
        """The last record of the batch in front was handed out: its bytes count no more."""
        self.bytes -= self._size
        self._size = 0

    # --- large batches ------------------------------------------------------------------------------------------

    @property
    def large_front(self) -> RawBatch | None:
        """The next batch to be decoded, if it is large and was not decoded elsewhere yet."""
        if self.decoded or not self._batches or (self._ready and self._ready[0] is self._batches[0]):
            return None
        batch = self._batches[0]
        return batch if is_slow(*batch) else None

    def decode_call(self, batch: RawBatch) -> Callable[[], list[Record]]:
        """What decodes a batch; it may be called in any thread, and its outcome goes to `set_decoded`."""
        return partial(decode_batch, *self._tp, batch.data, batch.header, self._check_crcs, self._limit)

    def set_decoded(self, batch: RawBatch, outcome: list[Record] | BaseException) -> None:
        """Keep what a batch holds, or why it cannot be read, until its turn; void if it is not in front any more."""
        if self._batches and self._batches[0] is batch:
            self._ready = (batch, outcome)

    def _decode_front(self) -> list[Record]:
        """The records of the batch in front. An error is kept for one read: the next one tries once more."""
        batch, ready, self._ready = self._batches[0], self._ready, None
        if ready is None or ready[0] is not batch:
            return self.decode_call(batch)()
        if isinstance(ready[1], BaseException):
            raise ready[1]
        return ready[1]

    # --- decoding -----------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Decode the next batch when the one in front is used up; False if there is none.

        The batch may turn out to hold nothing of ours. Raises CorruptRecordsError or UnsupportedVersionError; the
        batch then stays where it is, unless it may be left out.
        """
        if not self._batches:
            self._raise_broken()
            return False
        header = self._batches[0].header
        try:
            records = self._decode_front()
        except CorruptRecordsError as error:
            self._skip(header, error)
            return True
        self._batches.popleft()
        self._undecoded -= header.record_count
        self._size = header.size
        self.batches_read += 1
        end = max(header.next_offset, records[-1].offset + 1 if records else 0)
        # a fetch in the middle of a batch returns all of it: what lies before the asked offset is not ours
        if records and records[0].offset < self._floor:
            records = [record for record in records if record.offset >= self._floor]
        self._floor = max(self._floor, end)
        records.reverse()
        self.decoded = records
        if not records:
            self.release()
        return True

    def read_columns(self, columns: RecordColumns, end: int) -> bool:
        """Append those records of the batch in front that lie before `end`; False if nothing more waits.

        The way of `advance` for whoever reads column by column: no object for a record, gaps or not. What a batch
        holds from `end` on stays. Raises as `advance` does; a batch may also turn out to hold nothing of ours.
        """
        if self.decoded or not self._batches:
            return self._read_decoded(columns, end)
        header, data = self._batches[0]
        if header.magic < 2:
            return self._floor < end and self.advance() and self._read_decoded(columns, end)
        floor, behind = self._floor, header.next_offset
        if max(floor, header.base_offset) >= end:
            return False
        try:
            check_batch(*self._tp, data, header, self._check_crcs)
            read_columns(*self._tp, data, header, columns, start=floor, end=end, limit=self._limit)
        except CorruptRecordsError as error:
            self._skip(header, error)
            return True
        if behind <= end:
            self._drop_front(header)
        if behind > floor:
            self._floor = min(behind, end)
        return True

    def _read_decoded(self, columns: RecordColumns, end: int) -> bool:
        """The way of what was decoded before, and of old message sets, which are few by now."""
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
        """Copy what waits out of the responses that it came in, so that those need not stay in memory for it."""
        self._batches = deque(RawBatch(header, bytes(data)) for header, data in self._batches)

    def _raise_broken(self) -> None:
        if self.framing_error is not None:
            error, self.framing_error = self.framing_error, None
            raise error

    def _skip(self, header: BatchHeader, error: CorruptRecordsError) -> None:
        """Leave the batch in front out, or raise `error` if that is not wanted or its end cannot be believed."""
        if self._on_skip is None or not self._has_known_end(header):
            raise error
        self._drop_front(header)
        first = max(self._floor, header.base_offset)
        self._floor = max(self._floor, header.next_offset)
        text = f"partition {self._tp}: offsets {first} to {header.last_offset} are left out"
        self._on_skip(CorruptRecordsError(f"{text}: {error}"))

    def _has_known_end(self, header: BatchHeader) -> bool:
        if header.magic < 2 or header.next_offset > self.high_water_mark:
            return False
        following = self._batches[1].header if len(self._batches) > 1 else None
        if following is not None and following.magic >= 2 and following.base_offset >= header.next_offset:
            return True
        return header.record_count == header.last_offset_delta + 1

    def _drop_front(self, header: BatchHeader) -> None:
        """The batch in front leaves whole: decoded by nobody, or by others."""
        self._batches.popleft()
        self._undecoded -= header.record_count
        self.bytes -= header.size
        self.batches_read += 1

    def pop_records(self, max_records: int, max_bytes: int) -> LazyRecords:
        """Up to `max_records` records of up to `max_bytes` wire bytes, at least one if any waits.

        Bytes are counted by record batches: a batch that would go beyond the limit stays for the next call, and so does
        a large one that was not decoded elsewhere: `large_front` has to be None before a call that shall take any.
        Raises as `advance` does, if nothing could be taken before.
        """
        taken = LazyRecords(self._tp, self._limit)
        used = self._size
        while (room := max_records - len(taken)) > 0:
            if not self.decoded:
                if not self._batches or (taken and used + self._batches[0].header.size > max_bytes):
                    break
                if self.large_front is not None:
                    break  # to be decoded elsewhere before the next call
                used += self._batches[0].header.size
                try:
                    self._next_within(room, taken)
                except Exception:
                    if taken:
                        break  # hand out the good records first; the next call meets the bad batch
                    raise
            else:
                self._take_decoded(room, taken)
        if not taken and not self._batches:
            self._raise_broken()
        return taken

    def _next_within(self, room: int, taken: LazyRecords) -> None:
        """Hand the batch in front out as it is if nothing has to be left out of it, else decode it."""
        header, data = self._batches[0]
        # a batch may turn out to be corrupt only when it is decoded, too late to be left out
        must_decode = self.decode_eagerly or self._on_skip is not None or self._ready is not None
        if must_decode or header.record_count > room or not self._is_ours_alone(header):
            self.advance()
            return
        check_batch(*self._tp, data, header, self._check_crcs)
        if is_large_compressed(
            data, header, self._limit
        ):  # its reader would meet the error, instead of whoever takes it
            self.advance()
            return
        taken.add_batch(self._batches[0])
        self._drop_front(header)
        self._floor = header.next_offset

    def _is_ours_alone(self, header: BatchHeader) -> bool:
        """Whether every offset of a batch has a record, and none lies before the asked one."""
        whole = header.magic >= 2 and header.record_count == header.last_offset_delta + 1
        return whole and header.base_offset >= self._floor

    def _take_decoded(self, room: int, taken: LazyRecords) -> None:
        part = self.decoded[-room:]
        del self.decoded[-room:]
        part.reverse()
        taken.add_records(part)
        if not self.decoded:
            self.release()


def _kept(data: memoryview, *, zero_copy: bool) -> memoryview:
    """The whole batches of a partition's bytes, in memory of their own unless they have most of it anyway.

    A broker cuts the last batch off at the size asked for (KIP-74). Its beginning is of no use, but would stay in memory
    as long as the batches before it, counted by nobody: almost as much again as those, where batches are large.
    """
    end = 0
    while len(data) - end >= _LOOK_BYTES:
        size = LOG_OVERHEAD + int.from_bytes(data[end + 8 : end + 12], signed=True)
        if size <= LOG_OVERHEAD or size > len(data) - end:
            break
        end += size
    kept = data[: end + _LOOK_BYTES]  # enough of the rest to see whether it's a batch at all
    return kept if zero_copy and len(data) - end <= end // 8 else memoryview(bytes(kept))
