"""The way of what coordinators write into a partition of `__consumer_offsets` (Kafka's `CoordinatorRuntime` with its
`PartitionWriter` and its queue of deferred events).

A write is on its way for a time, then stands in the log until all replicas have it; only then it counts and is answered.
Writes of a partition never overtake each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from asyncgroup.broker.coordinator.interfaces import Clock, OffsetsLog, TimerKey, Timers, WriteCallback
from asyncgroup.broker.coordinator.records import CoordinatorRecord, encode_record
from asyncgroup.broker.coordinator.replayed import ReplayedPartition
from asyncgroup.broker.errors import Refused
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
"""What clients of a coordinator are told when an append fails
(`GroupMetadataManager.appendGroupMetadataErrorToResponseError`); other codes stay what they are.
"""

COMMIT_TIMEOUT: Final = 5.0
"""Seconds after which a write is answered that is in the log, but not on all replicas (`offsets.commit.timeout.ms`)."""

NON_TRANSACTIONAL: Final = (-1, -1)
"""The producer (id, epoch) of what is written outside of transactions."""

RecordsSupplier: TypeAlias = Callable[[], list[CoordinatorRecord]]
"""What to write, said when its turn comes: tombstones are for what is there by then."""

_NO_SIZE_LIMIT: Final = 2**31 - 1


@dataclass(slots=True, eq=False)
class _QueuedWrite:
    """A batch on its way to the log; without a timer it goes with the one before it."""

    records: RecordsSupplier
    producer: tuple[int, int]
    done: WriteCallback
    timer: TimerKey | None


@dataclass(slots=True, eq=False)
class _DeferredEvent:
    """Something that stands in the log before `end_offset`: how it counts, whom to answer, what it says."""

    end_offset: int
    apply: Callable[[], None]
    done: WriteCallback | None
    records: Sequence[CoordinatorRecord] = ()
    timer: TimerKey | None = None

    def answer(self, error: ErrorCode) -> None:
        """Only once: one that was answered after its time still counts when it is replicated."""
        done, self.done = self.done, None
        if done is not None:
            done(error)


class OffsetsWriter:
    """The writes to the partitions that a node has loaded, which are in `replayed`.

    `clock` stamps the records. With an `append_delay` (seconds) a batch enters the log that much later, and is lost
    if the node dies before.
    """

    def __init__(
        self,
        log: OffsetsLog,
        timers: Timers,
        clock: Clock,
        replayed: Mapping[int, ReplayedPartition],
        append_delay: float,
    ) -> None:
        self._log, self._timers, self._clock = log, timers, clock
        self._replayed, self._append_delay = replayed, append_delay
        self._queued: dict[int, deque[_QueuedWrite]] = {}
        self._deferred: dict[int, deque[_DeferredEvent]] = {}
        self._timer_count = 0

    def __repr__(self) -> str:
        queued, deferred = (sum(map(len, queues.values())) for queues in (self._queued, self._deferred))
        return f"<OffsetsWriter {queued} queued, {deferred} not replicated>"

    # -- what comes ------------------------------------------------------------------------------------------

    def write(
        self,
        partition: int,
        records: RecordsSupplier,
        done: WriteCallback,
        producer: tuple[int, int] = NON_TRANSACTIONAL,
    ) -> None:
        """Append a batch; an empty one is answered when its turn comes."""
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
        """Answer when all that was written before is answered, at once if nothing is under way."""
        if partition not in self._replayed:
            done(ErrorCode.NOT_COORDINATOR)
        elif sent := self._queued.get(partition):
            sent.append(_QueuedWrite(list, NON_TRANSACTIONAL, done, None))
        else:
            self._append(partition, [], done, NON_TRANSACTIONAL)

    def is_idle(self, partition: int) -> bool:
        """Whether nothing is under way."""
        return not self._queued.get(partition) and not self._deferred.get(partition)

    def unreplicated_records(self, partition: int) -> Iterator[CoordinatorRecord]:
        """What stands in the log and does not count yet."""
        for one in self._deferred.get(partition, ()):
            yield from one.records

    def end_transaction(self, partition: int, producer_id: int, *, commit: bool) -> None:
        """The marker of a producer's transaction was appended: what is still on its way came too late for it (the
        verification guard of KIP-890).
        """
        if sent := self._queued.get(partition):
            late = [one for one in sent if one.producer[0] == producer_id]
            self._queued[partition] = deque(one for one in sent if one.producer[0] != producer_id)
            self._fail_queued(late, ErrorCode.INVALID_TXN_STATE)
            self._append_untimed(partition)
        ends = partial(self._replayed[partition].end_transaction, producer_id, commit=commit)
        self._defer(partition, _DeferredEvent(self._log.end_offset(partition), ends, None))

    def fail(self, partition: int) -> None:
        """The partition is not this node's any more: NOT_COORDINATOR for all that was not answered."""
        self._fail_queued(self._queued.pop(partition, ()), ErrorCode.NOT_COORDINATOR)
        for one in self._deferred.pop(partition, ()):
            if one.timer is not None:
                self._timers.cancel(one.timer)
            one.answer(ErrorCode.NOT_COORDINATOR)

    def _fail_queued(self, sent: Iterable[_QueuedWrite], error: ErrorCode) -> None:
        for one in sent:
            if one.timer is not None:
                self._timers.cancel(one.timer)
            one.done(error)

    # -- on the way ------------------------------------------------------------------------------------------

    def _append_next(self, partition: int) -> None:
        """One more batch comes to the log: the oldest, whichever timer fired."""
        one = self._queued[partition].popleft()
        self._append(partition, one.records(), one.done, one.producer)
        self._append_untimed(partition)

    def _append_untimed(self, partition: int) -> None:
        """What waited for the batches before it only has waited long enough."""
        while (sent := self._queued.get(partition)) and sent[0].timer is None:
            one = sent.popleft()
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

    # -- in the log ------------------------------------------------------------------------------------------

    def _defer(self, partition: int, one: _DeferredEvent) -> None:
        logged = self._deferred.setdefault(partition, deque())
        logged.append(one)
        if len(logged) == 1 and self._log.high_watermark(partition) >= one.end_offset:
            self.on_high_watermark_updated(partition)
        elif one.done is not None:
            give_up = partial(one.answer, APPEND_ERRORS[ErrorCode.REQUEST_TIMED_OUT])
            one.timer = self._timer("replicas", partition, COMMIT_TIMEOUT, give_up)

    def on_high_watermark_updated(self, partition: int) -> None:
        """The partition's high watermark may have moved: what is below it counts."""
        logged = self._deferred.get(partition)
        while logged and self._log.high_watermark(partition) >= logged[0].end_offset:
            one = logged.popleft()
            if one.timer is not None:
                self._timers.cancel(one.timer)
            one.apply()
            one.answer(ErrorCode.NONE)

    def _timer(self, kind: str, partition: int, delay: float, action: Callable[[], None]) -> TimerKey:
        self._timer_count += 1
        key = (kind, partition, self._timer_count)
        self._timers.schedule(key, delay, action)
        return key
