"""From record batches to records: large batches in a thread, others lazily or by column, none of aborted transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, Protocol, overload

from asyncgroup.columns import RecordColumns
from asyncgroup.lifecycle import start_task
from asyncgroup.model import Record, TopicPartition, add_records
from asyncgroup.off_loop import run_off_loop
from asyncgroup.wire.batch_run import BatchRun
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.decompression import MAX_DECOMPRESSED
from asyncgroup.wire.records import (
    ControlType,
    raw_records,
    read_batch,
    read_control_type,
    translate_error,
)

__all__ = [
    "AbortedTransactions",
    "BatchDecoder",
    "LazyRecords",
    "ListedTransaction",
    "read_columns",
]

_LAST: Final = 2**63 - 1


# --- large batches ---------------------------------------------------------------------------------------------------


class BatchDecoder:
    """Decodes large record batches in a worker thread, so that they do not delay heartbeats and other partitions.

    One batch at a time; `on_done(batch, outcome)` gets its records, or the error of decoding it. No reader waits for the
    thread itself, so that a canceled read loses nothing; after `cancel` the result is discarded.
    """

    def __init__(self, on_done: Callable[[BatchView, list[Record] | BaseException], None]) -> None:
        self._on_done = on_done
        self._batch: BatchView | None = None  # the batch that `_task` decodes
        self._task: asyncio.Task[list[Record]] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being decoded in a thread."""
        return self._task is not None

    def decode(self, batch: BatchView, decode: Callable[[], list[Record]]) -> None:
        """Decode a batch with `decode`, unless that has begun already."""
        if self._batch is batch:
            return
        self.cancel()
        self._batch = batch
        self._task = start_task(run_off_loop(decode), name="decode a large batch")
        self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[list[Record]]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if task is self._task:
            batch, self._batch, self._task = self._batch, None, None
            assert batch is not None
            self._on_done(batch, task.result() if error is None else error)

    def cancel(self) -> None:
        """Discard the batch being decoded: the position has moved, or the partition has ended."""
        task, self._task, self._batch = self._task, None, None
        if task is not None:
            task.cancel()


# --- lazily, and by column -------------------------------------------------------------------------------------------


class LazyRecords(Sequence[Record]):
    """A sequence of records that decodes its record batches only when it is read.

    The records are in offset order, held as undecoded record batches and as lists of decoded records.

    Iteration decodes one record after another, and does so again for every further iteration: thousands of Record objects
    at once exceed the processor's cache and keep the garbage collector busy, which took longer than decoding them. Access by
    index decodes all records and keeps them. Batches are held decompressed, so that no iteration has to decompress them.

    `on_unreadable` is called, in the reading thread, when a batch turns out to be unreadable although its checksum is
    right: its records have left the buffer, but the reader never sees them.
    """

    __slots__ = ("_count", "_parts", "_tp", "on_unreadable", "reread_offset")

    def __init__(self, tp: TopicPartition) -> None:
        self._tp = tp
        self._parts: list[BatchView | BatchRun | list[Record]] = []
        self._count = 0
        self.on_unreadable: Callable[[], None] | None = None
        self.reread_offset: int | None = None
        """The offset to read again from if a batch is unreadable; None means `first_offset`."""

    def __repr__(self) -> str:
        return f"<LazyRecords {self._tp}: {self._count} records>"

    def add_batch(self, batch: BatchView | BatchRun) -> None:
        """Append an uncompressed record batch without gaps in its offsets that `check_batch` has accepted, or a valid run."""
        self._parts.append(batch)
        self._count += batch.record_count

    def add_records(self, records: list[Record]) -> None:
        """Append decoded records; at least one."""
        self._parts.append(records)
        self._count += len(records)

    @property
    def first_offset(self) -> int:
        """The offset of the first record, taken from the header of an undecoded batch."""
        part = self._parts[0]
        return part[0].offset if isinstance(part, list) else part.base_offset

    @property
    def last_offset(self) -> int:
        """The offset of the last record, taken from the header of an undecoded batch."""
        part = self._parts[-1]
        return part[-1].offset if isinstance(part, list) else part.last_offset

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the last record; -1 if unknown (message sets with magic 0 and 1 have none)."""
        part = self._parts[-1]
        return part[-1].leader_epoch if isinstance(part, list) else part.leader_epoch

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record]:
        """Decode the records one after another. Raises as `read_batch`, for bad content with a right checksum."""
        return chain.from_iterable(map(self._open, self._parts))

    def add_to(self, columns: RecordColumns) -> None:
        """Append the records to columns, undecoded ones without creating Record objects. Raises as iteration does."""
        for part in self._parts:
            if isinstance(part, list):
                add_records(part, columns)
            else:
                try:
                    read_columns(*self._tp, part, columns)
                except Exception:
                    if self.on_unreadable is not None:
                        self.on_unreadable()
                    raise

    def _open(self, part: BatchView | BatchRun | list[Record]) -> Iterator[Record] | list[Record]:
        if isinstance(part, list):
            return part
        return read_batch(*self._tp, part, on_error=self.on_unreadable)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        decoded = self._parts[0] if len(self._parts) == 1 else None
        if not isinstance(decoded, list):
            decoded = list(self)
            self._parts = [decoded]
        return decoded[index]


def read_columns(
    topic: str,
    partition: int,
    batch: BatchView | BatchRun,
    columns: RecordColumns,
    *,
    start: int = 0,
    end: int = _LAST,
    limit: int = MAX_DECOMPRESSED,
    check_crc: bool = True,
) -> None:
    """Append the records with start <= offset < end of a batch that `check_batch` has accepted, or of a valid run.

    For `Batch.to_arrow`, and for Spark's range reader, which also reads parts of a batch. Raises as `decode_batch` does; then
    nothing is appended.
    """
    length = len(columns)
    base, next_offset = batch.base_offset, batch.next_offset
    try:
        raws, size = raw_records(batch, limit, check_crc)
        if not batch.is_dense:
            found = [raw for raw in raws if start <= raw.offset < end]
            offsets: range | list[int] = [raw.offset for raw in found]
            _append(found, columns)
        else:
            # dense: the index of a record in the batch is its offset minus `base`
            if start > base or end < next_offset:
                raws = islice(raws, max(0, start - base), max(0, min(next_offset, end) - base))
            offsets = range(max(base, start), min(next_offset, end))
            _append(raws, columns)
    except Exception as error:  # decompressors raise errors without a common base class
        columns.truncate(length)
        raise translate_error(error, topic, partition, batch) from error
    columns.size += size
    columns.add_run(topic, partition, batch.timestamp_type, offsets)


def _append(raws: Iterable[Any], columns: RecordColumns) -> None:
    """Append the fields of each record in one loop; a comprehension per column needs a list of all records, and is slower."""
    add_key, add_value, add_time = columns.keys.append, columns.values.append, columns.timestamps.append
    if columns.headers is None:
        for raw in raws:
            add_key(raw.key)
            add_value(raw.value)
            add_time(raw.timestamp)
        return
    add_headers = columns.headers.append
    for raw in raws:
        add_key(raw.key)
        add_value(raw.value)
        add_headers(raw.headers or ())
        add_time(raw.timestamp)


# --- aborted transactions --------------------------------------------------------------------------------------------


class ListedTransaction(Protocol):
    """An entry of a Fetch response's `aborted_transactions`."""

    producer_id: int
    first_offset: int


class AbortedTransactions:
    """Filter for the batches of aborted transactions in a response (KIP-98; Kafka's `CompletedFetch`).

    A `read_committed` response ends before the first open transaction and lists the aborted transactions that overlap it,
    by producer id and first offset. Each ends at that producer's abort marker; later batches of the same producer belong to
    another transaction. No state is kept between responses: each lists all aborted transactions that overlap it, also those
    that began earlier.
    """

    __slots__ = ("_check_crcs", "_producers", "_upcoming")

    def __init__(self, listed: Iterable[ListedTransaction], check_crcs: bool) -> None:
        # (first offset, producer id); in descending order, so that `pop()` takes the next one
        self._upcoming = sorted(((one.first_offset, one.producer_id) for one in listed), reverse=True)
        self._check_crcs = check_crcs
        self._producers: set[int] = set()  # producers whose aborted transaction is open at the current batch

    def __repr__(self) -> str:
        return f"<AbortedTransactions {len(self._upcoming)} upcoming, {len(self._producers)} open>"

    def may_hide(self, producer_id: int, last_offset: int) -> bool:
        """Go on to the next batch by its header; return whether it may belong to an aborted transaction.

        If not, `advance_to` does not have to be called for it.
        """
        if producer_id < 0:
            return False
        while self._upcoming and self._upcoming[-1][0] <= last_offset:
            self._producers.add(self._upcoming.pop()[1])
        return producer_id in self._producers

    def advance_to(self, batch: BatchView) -> bool:
        """Go on to the next batch; return whether it belongs to an aborted transaction.

        Raises CorruptRecordsError for a transaction marker that cannot be read although its checksum is right.
        """
        producer_id = batch.producer_id
        if not self.may_hide(producer_id, batch.last_offset):
            return False
        if self._check_crcs and not batch.crc_is_valid():
            return False  # the header cannot be trusted; reading the batch will raise the error
        if batch.is_control:
            if read_control_type(batch, check_crc=False) is ControlType.ABORT:
                self._producers.discard(producer_id)
            return False
        return batch.is_transactional
