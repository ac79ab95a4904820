"""QueueCore: an open work queue without its engine. It delivers the records that the engine adds, and applies the outcomes.

It owns the dispatcher (which record is next), the receiver (which task gets it), the workers, the timer and the copies. The first half is
what the engine calls, the second what `WorkQueue` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from asyncgroup.errors import AsyncGroupError, UsageError
from asyncgroup.lifecycle import await_shared, cancel_and_wait, start_task, wait_shielded
from asyncgroup.log_events import log_fields
from asyncgroup.model import MillisClock, Record, RecordMetadata, TopicPartition
from asyncgroup.workqueue.delivery import Delivery, Work
from asyncgroup.workqueue.delivery_reports import DispatcherCallbacks
from asyncgroup.workqueue.delivery_result import DeliveryResult, Known, Outstanding
from asyncgroup.workqueue.dispatch_timer import DispatchTimer
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.due_times import DeliveryTimes
from asyncgroup.workqueue.engine import Engine
from asyncgroup.workqueue.interceptors import QueueInterceptors
from asyncgroup.workqueue.local_consumers import LocalConsumer
from asyncgroup.workqueue.orders import ordering_key_by
from asyncgroup.workqueue.publisher import TopicPublisher
from asyncgroup.workqueue.queue_consumer import LocalDispatch, QueueConsumer
from asyncgroup.workqueue.receiver import Deliveries, Receiver, Waiters
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.statistics import QueueStatistics
from asyncgroup.workqueue.workers import DeliveryHandler, WorkerPools, Workers

__all__ = ["QueueCore"]

_log = logging.getLogger("asyncgroup.workqueue")


class QueueCore(DispatcherCallbacks):
    """An open queue; `clock` is the time of day in ms, by which records with a delivery time are due."""

    def __init__(
        self, engine: Engine, settings: QueueSettings, interceptors: QueueInterceptors, clock: MillisClock
    ) -> None:
        self.engine = engine
        self.name = engine.name
        self.settings = settings
        self._interceptors = interceptors
        self._publisher = self._make_publisher()
        waiters = Waiters()
        self.dispatcher = Dispatcher(
            settings.mode,
            asyncio.get_running_loop().time,
            self._publisher,
            settings.nack_backoff.delay,
            callbacks=self,
            demand=waiters,
            ack_timeout=settings.ack_timeout,
            retry_share=settings.retry_share,
            allow_out_of_order=settings.allow_out_of_order,
            ordering_key=ordering_key_by(settings.ordering_key, engine.ordering_key),
            delivery_times=DeliveryTimes(engine.due_at, clock),
            listeners=engine.listeners,
        )
        self.receiver = Receiver(self.name, self.dispatcher.take, waiters, interceptors)
        self._timer = DispatchTimer(self.dispatcher)
        self._pools = WorkerPools(self.dispatcher)
        self._local = LocalDispatch(self.name, self.dispatcher, interceptors, self._pools)
        self.checks_acks = bool(interceptors) or self._publisher.breaker is not None
        self._runs = False
        self._seeks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._creator = asyncio.current_task()  # see `_release_own`

    def _make_publisher(self) -> TopicPublisher:
        engine, policy = self.engine, self.settings.dead_letter_policy
        return TopicPublisher(
            engine.copies,
            engine.copy_format,
            self.name,
            retry_topic=engine.retry_topic,
            dead_letter_topic=engine.dead_letter_topic,
            max_redeliveries=None if policy is None else policy.max_redeliveries,
            breaker=None if policy is None else policy.breaker,
            on_error=engine.report,
            on_dead_letter=self._on_dead_letter,
            on_trip=self.end,
        )

    def __repr__(self) -> str:
        state = "closed" if self.receiver.is_ended else "open"
        return f"<WorkQueue {self.name!r}, {self.settings.mode.value}: {state}, {self.dispatcher!r}>"

    # --- called by the engine: partitions and records -------------------------------------------------------------------

    def add(self, work: Work) -> None:
        """Add a partition that was assigned, before its first records."""
        self.dispatcher.add_partition(work)
        self._interceptors.became_active(work.tp)

    def offer(self, work: Work, records: Iterable[Record]) -> None:
        """Add records of a partition, in offset order."""
        self.dispatcher.offer(work, records)

    def requeue(self, work: Work) -> None:
        """Deliver records of the partition again, after its `guard` has delayed one."""
        self.dispatcher.ready.requeue(work)

    def restart(self, work: Work, offset: int) -> list[Delivery]:
        """The log has other records from `offset` on: forget them, and return their open deliveries, which are lost."""
        # before `lose`: it gives back records, which have to be lost as well
        self._publisher.abandon(work.tp, offset, is_over=False)
        lost = self.dispatcher.lose(work, offset)
        self._pools.interrupt(lost)
        self._local.drop_ended()
        return lost

    def withdraw(self, work: Work) -> list[tuple[Record, int]]:
        """The broker gives all records again that are neither delivered nor being copied: forget them; return the failed ones."""
        return self.dispatcher.withdraw(work)

    def close(self, work: Work) -> None:
        """Deliver no more records of a partition that is revoked; its open deliveries may still be ended."""
        self.dispatcher.close_partition(work)
        # after the close, which keeps what is given back from being delivered again
        self._local.withdraw(work)

    def lose(self, work: Work) -> None:
        """Remove a partition at once: open deliveries are lost, their handlers cancelled, copies given up."""
        self.abandon_copies(work)
        self._pools.interrupt(self.dispatcher.remove_partition(work))
        self._local.drop_ended()

    def remove(self, work: Work) -> None:
        """Remove a partition whose deliveries have ended, or that was never read."""
        self.abandon_copies(work)
        self.dispatcher.remove_partition(work)

    def became_inactive(self, tp: TopicPartition) -> None:
        """A partition was removed for good: the consumer gets no more of its records."""
        self._interceptors.became_inactive(tp)

    def abandon_copies(self, work: Work, *, is_over: bool = True) -> None:
        """Give up the copies of a partition, unless it has come back as another assignment already; `is_over`: this one ends."""
        if work.is_live:
            self._publisher.abandon(work.tp, is_over=is_over)

    def note_copy_retry(self, topic: str, error: Exception) -> None:
        """The engine's producer tries to write a copy to a topic again; an empty topic: copies to all topics."""
        self._publisher.note_retry(topic, error)

    # --- called by the engine: what is going on -------------------------------------------------------------------------

    def is_handled(self, work: Work) -> bool:
        """Whether a handler runs for a delivery of this partition, also for one that is lost."""
        return self._pools.handles(work)

    def handles(self, delivery: Delivery) -> bool:
        """Whether a handler runs for this delivery."""
        return self._pools.has(delivery)

    def interrupt_all(self, work: Work) -> None:
        """Cancel all handlers of a partition."""
        self._pools.interrupt_all(work)

    @property
    def on_demand(self) -> asyncio.Event:
        """Set when a task begins to wait for a delivery."""
        return self.receiver.waiters.on_demand

    def works(self) -> Iterable[Work]:
        """Return the partitions that were added and not removed."""
        return self.dispatcher.works.values()

    def attempts(self, work: Work, record: Record) -> int:
        """Return the number of deliveries of a record so far."""
        return self.dispatcher.outcomes.attempts(work, record)

    def is_last(self, attempt: int) -> bool:
        """Whether a record whose delivery number `attempt` failed is not delivered again."""
        return self._publisher.is_last(attempt)

    @property
    def is_serial(self) -> bool:
        """Whether at most one record of a partition is delivered at a time."""
        return self.dispatcher.order.serial

    @property
    def free_handlers(self) -> int:
        """The number of handlers that may be started now; 1 if loops receive the deliveries."""
        return self._pools.free

    @property
    def has_demand(self) -> bool:
        """Whether a task waits for a delivery; of a queue with local consumers this is always assumed."""
        return self._local.is_used or bool(self.receiver.waiters)

    @property
    def is_paused(self) -> bool:
        """Whether no deliveries begin, for now or for good."""
        return not self.dispatcher.is_open

    @property
    def is_ended(self) -> bool:
        """Whether no more deliveries begin."""
        return self.receiver.is_ended

    def check_open(self) -> None:
        """Raise ClosedError after the end, or the failure that ended the queue."""
        self.receiver.check_open()

    def end(self, failure: BaseException | None) -> None:
        """Begin no more deliveries; raise `failure` to those that receive (None: the queue was closed)."""
        self.dispatcher.is_open = False
        self.receiver.end(failure)
        self._local.end(failure)

    # --- events of the dispatcher ---------------------------------------------------------------------------------------

    def on_due(self, time: float) -> None:
        """Wake the dispatcher at this time."""
        self._timer.schedule(time)

    def on_expired(self, delivery: Delivery) -> bool:
        """Cancel the handler of a delivery whose ack timeout has passed."""
        self._interceptors.on_ack_timeout(delivery)
        return self._pools.on_expired(delivery)

    def before_ack(self, delivery: Delivery) -> None:
        """Ask the interceptors."""
        self._interceptors.before_ack(delivery)
        self._publisher.note_ack()

    def on_nack(self, delivery: Delivery, error: BaseException | None) -> None:
        """Call the interceptors."""
        self._interceptors.on_nack(delivery, error)

    def _on_dead_letter(self, delivery: Delivery, metadata: RecordMetadata, reason: str) -> None:
        record = delivery.record
        tp = TopicPartition(record.topic, record.partition)
        fields = log_fields("dead_letter", group=self.name, tp=tp, offset=record.offset)
        _log.info("dead letter %s-%d@%d: %r, %s", *metadata[:3], delivery, reason, extra=fields)
        self._interceptors.on_dead_letter(delivery, reason)

    # --- called by WorkQueue --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the engine. Raises what that raises, after a close."""
        try:
            await self.engine.open(self)
        except BaseException:
            # the engine may be open in part
            await self.aclose()
            raise

    async def run(self, handle: DeliveryHandler) -> None:
        """See `WorkQueue.run`."""
        self.check_no_consumers("run")
        if self._runs:
            raise UsageError(f"run() of work queue {self.name!r} was called twice: it runs already")
        self.check_open()
        settings = self.settings
        workers = Workers(
            self.dispatcher.outcomes,
            self.receiver,
            handle,
            settings.concurrency,
            cancels_expired=settings.on_ack_timeout == "cancel",
        )
        self._runs = True
        try:
            await self._pools.run(workers)
        finally:
            self._runs = False

    def check_no_consumers(self, call: str) -> None:
        """Raise UsageError if the queue is read by local consumers."""
        if self._local.is_used:
            raise UsageError(
                f"{call}() of work queue {self.name!r}: it has consumers (queue.consumer()), read those"
            )

    def consumer(self, local: LocalConsumer, concurrency: int | None) -> QueueConsumer:
        """See `WorkQueue.consumer`."""
        self.check_open()
        if self._runs or self.receiver.is_read or self.receiver.waiters:
            raise UsageError(
                f"consumer() of work queue {self.name!r}: the queue itself is read already; read its consumers instead"
            )
        settings = self.settings
        return QueueConsumer(
            self._local,
            local,
            settings.concurrency if concurrency is None else concurrency,
            cancels_expired=settings.on_ack_timeout == "cancel",
        )

    def seek(self, position: Any, *, inclusive: bool) -> DeliveryResult[None]:
        """See `WorkQueue.seek`."""
        self.check_open()
        left = self.engine.seek(position, inclusive=inclusive)
        if left is None:
            return Known(None)
        task = start_task(left, name=f"work queue {self.name}: seek")
        self._seeks.add(task)
        task.add_done_callback(self._on_seek_end)
        return Outstanding(partial(self._wait_for_seek, task))

    async def _wait_for_seek(self, task: asyncio.Task[None]) -> None:
        await asyncio.wait({task})
        if task.cancelled():
            self.check_open()  # the queue was closed
        await await_shared(task)

    def _on_seek_end(self, task: asyncio.Task[None]) -> None:
        self._seeks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, AsyncGroupError):
            self.engine.report(error)
        elif error is not None:
            _log.error("%r: bug in a seek", self, exc_info=error)

    @property
    def paused(self) -> bool:
        """See `WorkQueue.paused`."""
        return not self.dispatcher.is_open and not self.is_ended

    def pause(self, *, paused: bool) -> None:
        """See `WorkQueue.pause`."""
        self.check_open()
        self.dispatcher.is_open = not paused
        self.dispatcher.ready.wake_later()

    def deliveries(self) -> Deliveries:
        """See `WorkQueue.__aiter__`."""
        self.check_no_consumers("async for")
        return Deliveries(self.receiver)

    def problems(self) -> list[str]:
        """Return what is wrong with the queue besides its engine, in words."""
        problems = [
            f"copies to topic {topic!r} fail: {error}"
            for topic, error in sorted(self._publisher.failing.items())
        ]
        if found := ", ".join(map(str, self._local.gaps)):
            problems.append(f"no consumer has the keys of the hash ranges {found}: their records wait")
        if self.receiver.failure is not None:
            problems.append(f"the queue has ended: {self.receiver.failure}")
        return problems

    def statistics(self) -> QueueStatistics:
        """See `WorkQueue.statistics`."""
        partitions, at_close = self.engine.statistics()
        return QueueStatistics(
            counts=replace(self.dispatcher.counts),
            partitions=partitions,
            handlers=self._pools.busy,
            at_close=at_close,
        )

    # --- close ------------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """See `WorkQueue.aclose`."""
        self.end(None)
        self._local.withdraw()
        self._release_own()
        if self._closing is None:
            self._closing = start_task(self._close(), name=f"work queue {self.name}: close")
        if self._pools.is_caller:
            return  # the close waits for this handler
        await wait_shielded(self._closing)

    def _release_own(self) -> None:
        """Give back the deliveries of the closing task, which cannot end them while it waits here; other tasks have time.

        If the task that has received a delivery has ended (`asyncio.wait_for` before Python 3.12 receives in a separate
        task), the one that entered the queue counts.
        """
        current = asyncio.current_task()
        for work in list(self.dispatcher.works.values()):
            # the last one first: each that is given back is the next to be delivered
            for delivery in reversed(list(work.acquired.values())):
                reader = delivery._reader
                if reader is None or reader.done():
                    reader = self._creator
                is_own = reader is None or reader is current or reader.done()
                if is_own and not self._pools.has(delivery):
                    self.dispatcher.outcomes.release(delivery)

    async def _close(self) -> None:
        try:
            await self.engine.leave()
        finally:
            # after the open deliveries, whose end may be a copy
            await self._publisher.aclose()
            self._timer.close()
            await self.engine.aclose()
            await cancel_and_wait(*self._seeks)
