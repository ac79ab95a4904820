"""Dispatcher: the records of a work queue from their arrival to their delivery. Synchronous and pure.

It depends on no broker and no task: partitions are `PartitionWork` objects, time comes from `clock`, and everything else
is a call of its DispatcherCallbacks, its Publisher or its Demand. `ReadyPartitions` decides between ready records, `Outcomes` what the end of a delivery
does, and a DeliveryOrder in which order the mode delivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from asyncgroup.hooks import DeliveryListeners
from asyncgroup.model import Record
from asyncgroup.workqueue.ack_timeouts import AckTimeouts
from asyncgroup.workqueue.delivery import FAILURES, Delivery, Publisher, Work
from asyncgroup.workqueue.delivery_reports import DeliveryReports, DispatcherCallbacks
from asyncgroup.workqueue.due_times import DeliveryTimes, WaitingRecords
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.orders import DeliveryOrder, InOrder, Redelivery, Shared
from asyncgroup.workqueue.outcomes import Outcomes
from asyncgroup.workqueue.partition_work import RECORD_OVERHEAD
from asyncgroup.workqueue.ready_partitions import Demand, NoDemand, ReadyPartitions

__all__ = ["Dispatcher"]


class Dispatcher:
    """The state of a work queue over all its partitions.

    - `delay_of(failures)` is the delay in seconds before a record is delivered again (`Backoff.delay`).
    - `demand` is what waits for deliveries.
    - `ordering_key(record)` is the key of Mode.KEY_SHARED, and `delivery_times` says for which time of day a record with headers
      waits when it arrives.
    """

    def __init__(
        self,
        mode: Mode,
        clock: Callable[[], float],
        publisher: Publisher,
        delay_of: Callable[[int], float],
        *,
        callbacks: DispatcherCallbacks | None = None,
        demand: Demand | None = None,
        ack_timeout: float | None = None,
        retry_share: float = 0.3,
        allow_out_of_order: bool = False,
        ordering_key: Callable[[Record], bytes | None] = lambda record: record.key,
        delivery_times: DeliveryTimes | None = None,
        listeners: DeliveryListeners | None = None,
    ) -> None:
        in_order = InOrder() if mode.in_order else None
        key_of = ordering_key if mode is Mode.KEY_SHARED else None
        shared = Shared(key_of, keeps_order=not allow_out_of_order)
        self.mode = mode
        self.order: DeliveryOrder = shared if in_order is None else in_order
        self.works: dict[object, Work] = {}
        """The partitions that are assigned, by TopicPartition."""
        self.is_open = True
        """Whether records are delivered."""
        self._clock = clock
        self._callbacks = callbacks = callbacks or DispatcherCallbacks()
        self.ready = ReadyPartitions(retry_share, in_order, NoDemand() if demand is None else demand)
        self._timeouts = AckTimeouts(ack_timeout)
        times = delivery_times or DeliveryTimes(lambda _: None, lambda: 0)
        self._waiting = WaitingRecords(clock, times, callbacks.on_due)
        self._reports = None if listeners is None else DeliveryReports(listeners)
        self._starts = ack_timeout is not None or listeners is not None
        self.outcomes = Outcomes(
            self.ready,
            self.order,
            self._waiting,
            publisher,
            callbacks,
            delay_of,
            ordering_key,
            self._timeouts,
            self._reports,
        )
        self.counts = self.outcomes.counts

    def __repr__(self) -> str:
        waiting = sum(len(work.waiting) for work in self.works.values())
        return f"<Dispatcher {self.mode.value}: {len(self.works)} partitions, {waiting} waiting>"

    # --- partitions -----------------------------------------------------------------------------------------------------

    def add_partition(self, work: Work) -> None:
        """Add a partition that was assigned."""
        if (before := self.works.get(work.tp)) is not None:
            before.is_live = False
        self.works[work.tp] = work
        work.is_live = True

    def close_partition(self, work: Work) -> None:
        """Deliver no more records of a partition that is revoked; open deliveries may still be ended."""
        work.is_open = False
        work.drop_ready()

    def remove_partition(self, work: Work) -> list[Delivery]:
        """Forget a partition; return its open deliveries, which are lost."""
        self.close_partition(work)
        if work.is_live:
            work.is_live = False
            del self.works[work.tp]
        return self.lose(work)

    def lose(self, work: Work, offset: int = 0) -> list[Delivery]:
        """Forget the records of a partition from `offset` on; return their open deliveries, which are lost."""
        lost, dropped = work.clear(offset)
        for record in dropped:
            self.outcomes.leave(work, record)
        for delivery in lost:
            self.outcomes.lose(delivery)
        work.engine.on_capacity()
        if work.is_open:
            self.ready.requeue(work)
        return lost

    def withdraw(self, work: Work) -> list[tuple[Record, int]]:
        """Forget the records of a partition that are neither delivered nor being copied: the broker gives them to a consumer again.

        Their offsets count as done. Return those whose deliveries have failed, with the numbers of these.
        """
        window = work.window
        # where the order may be broken, a failed record that waits does not lead its key any more
        overtaken = set() if self.order.keeps_order else work.waiting.keys() & window.attempts.keys()
        leading, blocked = work.withdraw()
        failed = list[tuple[Record, int]]()
        for record in (*leading, *blocked):
            if (attempts := window.attempts.get(record.offset)) is not None:
                failed.append((record, attempts))
            window.ack(record.offset)
        for record in leading:
            if record.offset not in overtaken:
                self.order.leave(work, record)
        work.engine.on_capacity()
        return failed

    def set_serial(self, *, serial: bool) -> None:
        """In modes with an order: whether handlers run in offset order, so that at most one record of a partition is acquired.

        A record may have waited for that, or its partition may have been dropped while a copy was written: all of them are queued again.
        """
        if self.mode.in_order and self.order.serial is not serial:
            self.order.serial = serial
            for work in self.works.values():
                self.ready.requeue(work)

    # --- records arrive -------------------------------------------------------------------------------------------------

    def offer(self, work: Work, records: Iterable[Record]) -> None:
        """Add records of a partition, in offset order; drop records that are acknowledged already.

        Offsets without a record in between count as done: they were compacted away, or are transaction markers.
        """
        window, expected, fresh, size = work.window, work.position, work.fresh, 0
        is_plain = not (work.has_copies or window.attempts or window.end > expected)
        key_of = self.order.key_of
        for record in records:
            offset = record.offset
            if offset != expected:
                if offset < expected:  # read again, after a batch that could not be decoded
                    continue
                window.ack_range(expected, offset)
                work.engine.on_change()
            expected = offset + 1
            if is_plain and not record.headers:  # `_arrive` and `admit`, inlined, as it runs for each record
                value, key = record.value, record.key
                size += RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
                try:
                    if key_of is None or (key := key_of(record)) is None or work.enter_key_queue(key, record):
                        fresh.append(record)
                except FAILURES as error:
                    self.outcomes.discard_arrived(work, record, error)
            elif offset not in window and not self._skip_of_other_group(work, record):
                size += work.size_of(record)
                self._arrive(work, record)
        work.position = expected
        work.bytes += size
        if ready := self.ready.add(work):
            self.ready.demand.wake(ready)

    def _skip_of_other_group(self, work: Work, record: Record) -> bool:
        """Acknowledge the record if it is for another group; return whether it is."""
        if not work.has_copies or not work.engine.skips(record):
            return False
        work.window.ack(record.offset)
        work.engine.on_ack(record)
        return True

    def _arrive(self, work: Work, record: Record) -> None:
        if self.order.key_of is not None:
            try:
                key = self.order.key_of(record)
                if key is not None and not work.enter_key_queue(key, record):
                    return
            except FAILURES as error:
                self.outcomes.discard_arrived(work, record, error)
                return
        self.outcomes.admit(work, record)

    # --- records are delivered ------------------------------------------------------------------------------------------

    def take(self, *, starts: bool = True) -> Delivery | None:
        """Return the next delivery, or None if no record may be delivered now.

        Without `starts` it waits in the inbox of a local consumer first, until `start`.
        """
        if not self.is_open:
            return None
        partitions, is_retry = self.ready, False
        if partitions.has_retries and (work := partitions.next_retry()) is not None:
            is_retry = True
        elif (work := partitions.next_fresh()) is None:
            if not partitions.has_retries or (work := partitions.last_retry()) is None:
                return None
            is_retry = True
        if is_retry:
            record, attempt = self._next_retry(work)
        else:
            record = work.fresh.popleft()
            attempt = 1 if not work.has_copies else work.engine.earlier_attempts(record) + 1
        delivery = Delivery(record, attempt, None, work, self.outcomes)
        work.acquired[record.offset] = delivery
        self.counts.delivered += 1
        if is_retry or self._starts:
            delivery._is_retry = is_retry
            if starts:
                self._start(delivery, is_first=len(work.acquired) == 1)
        # `note_unread`, inlined, as it runs for each record
        if work.refill_at >= 0 and len(work.fresh) + work.blocked + work.parked <= work.refill_at:
            work.refill_at = -1
            work.engine.on_capacity()
        return delivery

    def _next_retry(self, work: Work) -> tuple[Record, int]:
        """Return a record that was delivered before, and the number of its next delivery."""
        record = work.retries.popleft()
        attempts = self.outcomes.attempts(work, record)
        is_counted = work.guard is not None and work.guard.is_counted(record.offset)
        return record, attempts if is_counted else attempts + 1

    def start(self, delivery: Delivery) -> None:
        """A delivery leaves the inbox of a local consumer."""
        self._start(delivery, is_first=True)
        if self._timeouts.seconds is not None:
            self.outcomes.renew(delivery)  # those of the inbox have no deadline yet: it is the last one now

    def _start(self, delivery: Delivery, *, is_first: bool) -> None:
        """Start the ack timeout of a delivery, and give it a slot if it is a retry."""
        if self._reports is not None:
            self._reports.start(delivery)
        if delivery._is_retry and not delivery._has_slot:
            self.ready.take_slot(delivery)
        if self._timeouts.seconds is not None:
            now = self._clock()
            delivery.deadline = now + self._timeouts.seconds
            if is_first:
                self._callbacks.on_due(now + self._timeouts.interval)

    # --- time -------------------------------------------------------------------------------------------------------------------

    def wake(self) -> float:
        """Handle the records and deadlines that are due; return the loop time of the next one, infinity without one."""
        now = self._clock()
        for work, record in self._waiting.pop_due(now):
            self._on_due(work, record)
        return min(self._waiting.next_due(now), self._expire(now))

    def note_late(self, seconds: float) -> None:
        """The timer runs `seconds` late: if the event loop was blocked, that does not count for ack timeouts."""
        self._timeouts.note_late(self.works.values(), self._clock(), seconds)

    def _on_due(self, work: Work, record: Record) -> None:
        work.engine.on_capacity()
        has_failed = record.offset not in work.delayed and record.offset in work.window.attempts
        work.delayed.discard(record.offset)
        if has_failed and work.engine.gives_back(record, work.window.attempts[record.offset]):
            self.outcomes.withdraw_due(work, record)
            return
        repeat = self.order.repeat() if has_failed else Redelivery.READY
        if repeat is Redelivery.REWIND:
            self._rewind(work, record)
        elif repeat is Redelivery.ARRIVE:
            self._arrive(work, record)
            # also if it waits for its key: nothing may be left that shrinks a full window
            self.ready.requeue(work)
        else:
            self.outcomes.make_ready(work, record)

    def _rewind(self, work: Work, record: Record) -> None:
        """Deliver all unacknowledged records of the partition again, in order, as Pulsar does without Shared."""
        acquired = list(work.acquired.values())
        for delivery in acquired:
            self.outcomes.overtake(delivery)
        if work.guard is not None:
            work.guard.released(None)
        work.repeat_in_order((record, *(delivery.record for delivery in acquired)))
        self.ready.requeue(work)

    def _expire(self, now: float) -> float:
        """End the deliveries whose ack timeout has passed; return when to look for others."""
        expired, following = self._timeouts.overdue(self.works.values(), now)
        for delivery in expired:
            self.outcomes.expire(delivery)
            if not self._callbacks.on_expired(delivery):
                self.outcomes.repeat_expired(delivery)
        return following
