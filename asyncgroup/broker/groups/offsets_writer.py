"""Write coordinator records to the partitions of `__consumer_offsets`.

A write passes through two queues of its partition, both in FIFO order: it waits for `append_delay` before it
enters the log, then for the high watermark. Only after that it is applied to the in-memory state and its
callback is called.

Kafka's counterpart is `CoordinatorRuntime` with its `PartitionWriter` and its queue of deferred events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from asyncgroup.broker.clock import Clock
from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.interfaces import OffsetsLog, WriteCallback
from asyncgroup.broker.groups.records import CoordinatorRecord, encode_record
from asyncgroup.broker.groups.replayed import ReplayedPartition
from asyncgroup.broker.timers import TimerKey, Timers
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.records import BatchBuilder

__all__ = ["APPEND_ERRORS", "COMMIT_TIMEOUT", "NON_TRANSACTIONAL", "OffsetsWriter", "RecordsSupplier"]

APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error that clients of the coordinator get when an append fails
(`GroupMetadataManager.appendGroupMetadataErrorToResponseError`); other codes are passed on unchanged.
"""

COMMIT_TIMEOUT: Final = 5.0
"""Seconds that a write may wait for replication before it is answered with an error (`offsets.commit.timeout.ms`)."""

NON_TRANSACTIONAL: Final = (-1, -1)
"""The producer (id, epoch) of writes outside of transactions."""

RecordsSupplier: TypeAlias = Callable[[], list[CoordinatorRecord]]
"""Returns the records to write. Called at the time of the append, so that tombstones cover what exists then."""

_NO_SIZE_LIMIT: Final = 2**31 - 1


@dataclass(slots=True, eq=False)
class _QueuedWrite:
    """A batch that waits for `append_delay`."""

    records: RecordsSupplier
    producer: tuple[int, int]
    done: WriteCallback
    timer: TimerKey | None
    """None: it is appended right after the write before it in the queue."""


@dataclass(slots=True, eq=False)
class _DeferredEvent:
    """A batch or marker in the log that takes effect when the high watermark reaches `end_offset`."""

    end_offset: int
    apply: Callable[[], None]
    """Applies it to the in-memory state."""
    done: WriteCallback | None
    """None once called, and for markers, which have no caller."""
    records: Sequence[CoordinatorRecord] = ()
    timer: TimerKey | None = None

    def answer(self, error: ErrorCode) -> None:
        """Call `done`, at most once: a write that timed out is still applied when it is replicated."""
        done, self.done = self.done, None
        if done is not None:
            done(error)


class OffsetsWriter:
    """Writes to the partitions that this node has loaded; `replayed` holds their state by partition number.

    `clock` gives the timestamps of records. With an `append_delay` (seconds) a batch enters the log that much
    later, and is lost if the node dies before.
    """

    def __init__(
        self,
        log: OffsetsLog,
        timers: Timers,
        clock: Clock,
        replayed: Mapping[int, ReplayedPartition],
        append_delay: float,
    ) -> None:
        self._log = log
        self._timers = timers
        self._clock = clock
        self._replayed = replayed
        self._append_delay = append_delay
        self._queued: dict[int, deque[_QueuedWrite]] = {}
        """Writes that are not in the log yet, by partition."""
        self._deferred: dict[int, deque[_DeferredEvent]] = {}
        """Writes and markers in the log, above the high watermark, by partition."""
        self._timer_count = 0  # makes timer keys unique

    def __repr__(self) -> str:
        queued, deferred = (sum(map(len, queues.values())) for queues in (self._queued, self._deferred))
        return f"<OffsetsWriter {queued} queued, {deferred} not replicated>"

    # -- requests --------------------------------------------------------------------------------------------

    def write(
        self,
        partition: int,
        records: RecordsSupplier,
        done: WriteCallback,
        producer: tuple[int, int] = NON_TRANSACTIONAL,
    ) -> None:
        """Append a batch; an empty one appends nothing and is answered after all earlier writes."""
        if partition not in self._replayed:
            done(ErrorCode.NOT_COORDINATOR)
        elif self._append_delay <= 0:
            self._append(partition, records(), done, producer)
        else:
            timer = self._timer(
                "append", partition, self._append_delay, partial(self._append_next, partition)
            )
            self._queued.setdefault(partition, deque()).append(_QueuedWrite(records, producer, done, timer))

    def after_writes(self, partition: int, done: WriteCallback) -> None:
        """Call `done` after all earlier writes to the partition are answered, at once if there are none."""
        if partition not in self._replayed:
            done(ErrorCode.NOT_COORDINATOR)
        elif queue := self._queued.get(partition):
            queue.append(_QueuedWrite(list, NON_TRANSACTIONAL, done, None))
        else:
            self._append(partition, [], done, NON_TRANSACTIONAL)

    def is_idle(self, partition: int) -> bool:
        """Whether no write to the partition is queued or waits for replication."""
        return not self._queued.get(partition) and not self._deferred.get(partition)

    def unreplicated_records(self, partition: int) -> Iterator[CoordinatorRecord]:
        """The records in the log that are not replicated, so not applied yet."""
        for one in self._deferred.get(partition, ()):
            yield from one.records

    def end_transaction(self, partition: int, producer_id: int, *, commit: bool) -> None:
        """Handle the marker of a producer's transaction, which was just appended.

        Queued writes of the transaction missed it: they fail with INVALID_TXN_STATE (the verification guard of
        KIP-890).
        """
        if queue := self._queued.get(partition):
            late = [one for one in queue if one.producer[0] == producer_id]
            self._queued[partition] = deque(one for one in queue if one.producer[0] != producer_id)
            self._fail_queued(late, ErrorCode.INVALID_TXN_STATE)
            self._append_untimed(partition)
        ends = partial(self._replayed[partition].end_transaction, producer_id, commit=commit)
        self._defer(partition, _DeferredEvent(self._log.end_offset(partition), ends, None))

    def fail(self, partition: int) -> None:
        """Answer all pending writes with NOT_COORDINATOR, when this node no longer leads the partition."""
        self._fail_queued(self._queued.pop(partition, ()), ErrorCode.NOT_COORDINATOR)
        for one in self._deferred.pop(partition, ()):
            if one.timer is not None:
                self._timers.cancel(one.timer)
            one.answer(ErrorCode.NOT_COORDINATOR)

    def _fail_queued(self, queue: Iterable[_QueuedWrite], error: ErrorCode) -> None:
        for one in queue:
            if one.timer is not None:
                self._timers.cancel(one.timer)
            one.done(error)

    # -- appending -------------------------------------------------------------------------------------------

    def _append_next(self, partition: int) -> None:
        """Append the oldest queued write, when the timer of any write fires, so that the order is kept."""
        one = self._queued[partition].popleft()
        self._append(partition, one.records(), one.done, one.producer)
        self._append_untimed(partition)

    def _append_untimed(self, partition: int) -> None:
        """Append the writes without a timer at the head of the queue: the writes before them are in the log."""
        while (queue := self._queued.get(partition)) and queue[0].timer is None:
            one = queue.popleft()
            self._append(partition, one.records(), one.done, one.producer)

    def _append(
        self, partition: int, records: list[CoordinatorRecord], done: WriteCallback, producer: tuple[int, int]
    ) -> None:
        if not records and not self._deferred.get(partition):
            done(ErrorCode.NONE)
            return
        try:
            base_offset = self._log.append(partition, self._batch(records, producer)) if records else -1
        except Refused as error:
            done(APPEND_ERRORS.get(error.code, error.code))
            return
        apply = partial(self._replayed[partition].apply_all, base_offset, producer[0], records)
        self._defer(partition, _DeferredEvent(self._log.end_offset(partition), apply, done, records))

    def _batch(self, records: list[CoordinatorRecord], producer: tuple[int, int]) -> bytes:
        builder = BatchBuilder(
            size_limit=_NO_SIZE_LIMIT,
            transactional=producer != NON_TRANSACTIONAL,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=0,
        )
        now = self._clock()
        for record in records:
            builder.append(now, *encode_record(record))
        return builder.build()

    # -- replication -----------------------------------------------------------------------------------------

    def _defer(self, partition: int, one: _DeferredEvent) -> None:
        deferred = self._deferred.setdefault(partition, deque())
        deferred.append(one)
        if len(deferred) == 1 and self._log.high_watermark(partition) >= one.end_offset:
            self.on_high_watermark_updated(partition)
        elif one.done is not None:
            give_up = partial(one.answer, APPEND_ERRORS[ErrorCode.REQUEST_TIMED_OUT])
            one.timer = self._timer("replicas", partition, COMMIT_TIMEOUT, give_up)

    def on_high_watermark_updated(self, partition: int) -> None:
        """Apply and answer the writes below the partition's high watermark, which may have moved."""
        deferred = self._deferred.get(partition)
        while deferred and self._log.high_watermark(partition) >= deferred[0].end_offset:
            one = deferred.popleft()
            if one.timer is not None:
                self._timers.cancel(one.timer)
            one.apply()
            one.answer(ErrorCode.NONE)

    def _timer(self, kind: str, partition: int, delay: float, action: Callable[[], None]) -> TimerKey:
        self._timer_count += 1
        key = (kind, partition, self._timer_count)
        self._timers.schedule(key, delay, action)
        return key
