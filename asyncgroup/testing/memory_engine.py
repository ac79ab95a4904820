"""MemoryEngine: the engine of a work queue over a MemorySource.

It is also the smallest example of an engine: a reader for each partition gives records while there is room, and the copies go
to lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from asyncgroup.checks import check_offset
from asyncgroup.consumer.error_stream import ErrorReader, ErrorStream
from asyncgroup.errors import AsyncGroupError, ConfigError, UsageError
from asyncgroup.group.health.health import Health
from asyncgroup.hooks import DeliveryListeners, Hooks
from asyncgroup.model import MillisClock, Record, RecordMetadata, TopicPartition
from asyncgroup.producer.arguments import check_headers
from asyncgroup.testing.memory_source import FEATURES, MemoryLog, MemoryPlan, MemorySource
from asyncgroup.workqueue.closing import end_partitions
from asyncgroup.workqueue.copies import CopyHeaders, due_at, earlier_attempts, is_of_other_group, ordering_key
from asyncgroup.workqueue.delivery import Delivery, Work
from asyncgroup.workqueue.delivery_result import AckOutcome
from asyncgroup.workqueue.engine import OnWritten, OpenQueue, OutgoingCopy
from asyncgroup.workqueue.partition_engine import PartitionEngine
from asyncgroup.workqueue.partition_work import PartitionWork
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.statistics import PartitionStatistics

__all__ = ["MemoryEngine"]

ERROR_BUFFER = 256
"""Errors that a reader of `errors()` may leave unread."""


class MemoryEngine:
    """The Engine of a queue on a MemorySource."""

    features = FEATURES
    hooks = Hooks()
    listeners: DeliveryListeners | None = None

    def __init__(self, plan: MemoryPlan, settings: QueueSettings, clock: MillisClock) -> None:
        self.name = plan.source.subscription
        self.retry_topic = plan.retry_topic
        self.dead_letter_topic = plan.dead_letter_topic
        self.copies = _MemoryCopies(plan)
        self.copy_format = CopyHeaders(self.name, clock, check_headers)
        self._source = plan.source
        self._logs = plan.source._inner
        self._settings = settings
        self._queue: OpenQueue | None = None
        self._readers: dict[TopicPartition, _Reader] = {}
        self._errors = ErrorStream(ERROR_BUFFER)
        self._at_close: tuple[PartitionStatistics, ...] = ()

    def __repr__(self) -> str:
        return f"<MemoryEngine of {self._source!r}>"

    def ordering_key(self, record: Record) -> bytes | None:
        """Return the header `ag-ordering-key`, else the record's key."""
        return ordering_key(record)

    def due_at(self, record: Record) -> int | None:
        """Return the header `ag-deliver-at`; in the modes with an order only of copies in the retry topic."""
        return due_at(self.retry_topic, record, delays_all=not self._settings.mode.in_order)

    # --- life -----------------------------------------------------------------------------------------------------------

    async def open(self, queue: OpenQueue) -> None:
        """Begin to give records. Raises UsageError if another queue is open on the source."""
        if self._logs.reader is not None:
            raise UsageError(f"{self._source!r} is read by another queue: one may be open at a time")
        self._queue = queue
        for log in self._logs.open(self):
            self._add(queue, log)

    def on_records(self, log: MemoryLog) -> None:
        """Records were added to a log."""
        if (reader := self._readers.get(log.tp)) is not None:
            reader.feed_soon()
        elif self._queue is not None and not self._queue.is_ended:
            self._add(self._queue, log)

    def _add(self, queue: OpenQueue, log: MemoryLog) -> None:
        reader = self._readers[log.tp] = _Reader(queue, self._source, log)
        queue.add(reader.work)
        reader.feed_soon()

    async def leave(self) -> None:
        """Wait until the open deliveries have ended, or cancel their handlers after `close_timeout`."""
        queue = self._queue
        if queue is None:
            return
        self._at_close = self.statistics()[0]
        readers = list(self._readers.values())
        for reader in readers:
            queue.close(reader.work)
        try:
            await end_partitions(queue, readers, self._source.close_timeout)
        finally:
            self._readers.clear()

    async def aclose(self) -> None:
        """Let other queues read the source."""
        if self._logs.reader is self:
            self._logs.reader = None
        self._errors.close()

    # --- use ------------------------------------------------------------------------------------------------------------

    def seek(self, target: Any, *, inclusive: bool) -> None:
        """Continue at `earliest`, `latest`, an offset, or offsets by partition. Raises ConfigError for another target."""
        skipped = 0 if inclusive or isinstance(target, str) else 1
        for tp, offset in self._targets(target).items():
            self._readers[tp].seek(offset + skipped)

    def _targets(self, target: Any) -> dict[TopicPartition, int]:
        """Return the new position of each partition that a target names; all are checked before the first one moves."""
        if not isinstance(target, Mapping):
            return {tp: _offset(target, reader.log) for tp, reader in self._readers.items()}
        for tp in target:
            if tp not in self._readers:
                allowed = f"partitions of the source: {', '.join(map(str, sorted(self._readers)))}"
                raise ConfigError("position", tp, allowed)
        return {TopicPartition(*tp): check_offset(offset) for tp, offset in target.items()}

    def report(self, error: AsyncGroupError) -> None:
        """Give an error to the readers of `errors`."""
        self._errors.put(error)

    def errors(self) -> ErrorReader:
        """Return a new iterator of errors."""
        return self._errors.reader()

    def health(self, problems: Sequence[str]) -> Health:
        """Return a health that has the problems of the queue only."""
        return Health(
            group_id=self.name,
            state="closed" if self._queue is None or self._queue.is_ended else "stable",
            state_age=0.0,
            member_id="",
            generation_id=-1,
            group_protocol="memory",
            last_heartbeat=None,
            last_fetch=None,
            claims=(),
            waits_for=None,
            problems=tuple(problems),
            errors=(),
        )

    def statistics(self) -> tuple[tuple[PartitionStatistics, ...], tuple[PartitionStatistics, ...]]:
        """Return the partitions, and those that a closed queue had last."""
        return tuple(self._readers[tp].statistics() for tp in sorted(self._readers)), self._at_close


class _Reader(PartitionEngine):
    """Gives the records of one partition to the queue, while there is room for them."""

    def __init__(self, queue: OpenQueue, source: MemorySource, log: MemoryLog) -> None:
        self.log = log
        self.has_copies = log.is_retry
        self.work: Work = PartitionWork(log.tp, log.window, engine=self)
        self._queue = queue
        self._source = source
        self._size = max(1, queue.settings.receiver_queue)
        self._changed = asyncio.Event()
        self._is_feeding = False
        self._lost: list[Delivery] = []  # by a seek; their handlers were cancelled, and may still run

    def feed_soon(self) -> None:
        """Give records in the next turn of the event loop, once; the caller may be in the middle of a delivery."""
        if not self._is_feeding:
            self._is_feeding = True
            asyncio.get_running_loop().call_soon(self._feed)

    def _feed(self) -> None:
        self._is_feeding = False
        work = self.work
        self._lost = [delivery for delivery in self._lost if self._queue.handles(delivery)]
        if not work.is_open or self._lost:
            return
        work.refill_at = self._size // 2
        if work.unread <= work.refill_at and (
            records := self.log.read(work.position, self._size - work.unread)
        ):
            try:
                self._queue.offer(work, records)
            except Exception as error:  # noqa: BLE001  of the user's `ordering_key`, without a dead letter topic
                self._queue.end(error)

    def seek(self, offset: int) -> None:
        """Continue at an offset: open deliveries are lost, earlier records count as acknowledged."""
        self._queue.abandon_copies(self.work, is_over=False)
        self.log.window.restart(offset)
        self._lost += self._queue.restart(self.work, 0)
        self.work.position = offset
        self._source._inner.changed.set()
        self.feed_soon()

    async def wait_idle(self) -> None:
        """Wait until the deliveries and their handlers have ended."""
        while not self.work.is_idle or self._queue.is_handled(self.work):
            self._changed.clear()
            await self._changed.wait()

    def statistics(self) -> PartitionStatistics:
        """Return where the records are."""
        work, window = self.work, self.log.window
        return PartitionStatistics(
            tp=work.tp,
            base=window.base,
            lag=max(0, self.log.end - window.base - window.acked_above),
            queued=work.queued,
            acquired=len(work.acquired),
            waiting=len(work.waiting),
            publishing=work.publishing,
            window=window.end - window.base,
            metadata_bytes=0,
            is_full=False,
            open_for=work.open_for(asyncio.get_running_loop().time()),
        )

    # --- PartitionEngine ------------------------------------------------------------------------------------------------

    def on_ack(self, record: Record) -> None:  # noqa: ARG002
        """The window of the log has it."""
        self._source._inner.changed.set()

    def on_capacity(self) -> None:
        """Give more records."""
        self.feed_soon()

    def on_drain(self) -> None:
        """Look whether all has ended; after a seek records may follow."""
        self._changed.set()
        if self._lost:
            self.feed_soon()

    async def commit(self) -> AckOutcome:
        """The source keeps acknowledgements."""
        return AckOutcome.COMMITTED

    def earlier_attempts(self, record: Record) -> int:
        """Return the number of deliveries that led to this copy."""
        return earlier_attempts(record)

    def skips(self, record: Record) -> bool:
        """Whether a copy is for another subscription."""
        return is_of_other_group(self._source.subscription, record)


class _MemoryCopies:
    """The CopyWriter of a MemorySource."""

    is_transactional = False

    def __init__(self, plan: MemoryPlan) -> None:
        self._source = plan.source
        self._retry_topic = plan.retry_topic

    async def aclose(self) -> None:
        """Nothing is open."""

    async def write(
        self,
        tp: TopicPartition,  # noqa: ARG002
        offset: int,  # noqa: ARG002
        copy: OutgoingCopy,
        on_written: OnWritten,  # noqa: ARG002
        *,
        alone: bool,  # noqa: ARG002
    ) -> RecordMetadata:
        """Write the copy at once."""
        return self._source._inner.write_copy(copy, is_retry=copy.topic == self._retry_topic)

    def abandon(self, tp: TopicPartition, offset: int, *, is_over: bool) -> None:
        """Nothing waits."""

    def passes(self, error: Exception) -> bool:  # noqa: ARG002
        """Not asked: no copy fails."""
        return True


def _offset(target: Any, log: MemoryLog) -> int:
    """Return the offset that a target means in a log. Raises ConfigError for another target."""
    if target == "earliest":
        return log.records[0].offset if log.records else 0
    if target == "latest":
        return log.end
    if type(target) is int and target >= 0:
        return check_offset(target)
    raise ConfigError("position", target, "'earliest', 'latest', an offset, or offsets by partition")
