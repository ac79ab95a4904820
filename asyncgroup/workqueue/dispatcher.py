"""Dispatcher: selects the next record to deliver, and applies the outcome of each delivery. Synchronous and pure.

It depends on no broker and no task: partitions are `PartitionWork` objects, time comes from `clock`, and everything else
is a call of its Watcher or its Publisher. A record is ready, waits for an earlier one of its key or for its time, is
acquired (delivered, and the delivery has not ended), or is done; `Turns` decides between the ready ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Final

from asyncgroup.errors import UsageError
from asyncgroup.hooks import DeliveryListeners, DeliveryOutcome
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import Record
from asyncgroup.workqueue.ack_timeouts import AckTimeouts
from asyncgroup.workqueue.delivery import FAILURES, AckOutcome, Delivery, DeliveryState, Publisher, Work
from asyncgroup.workqueue.delivery_times import DeliveryTimes
from asyncgroup.workqueue.due_times import DueTimes
from asyncgroup.workqueue.last_failures import LastFailures
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_work import COPY_OVERHEAD, RECORD_OVERHEAD
from asyncgroup.workqueue.statistics import QueueCounts
from asyncgroup.workqueue.turns import Turns
from asyncgroup.workqueue.watcher import Watcher

__all__ = ["Dispatcher"]

_log = logging.getLogger("asyncgroup.workqueue")

_OUTCOMES: Final[Mapping[DeliveryState, DeliveryOutcome]] = {
    DeliveryState.NACKED: "nacked",
    DeliveryState.RELEASED: "released",
    DeliveryState.EXPIRED: "expired",
    DeliveryState.LOST: "lost",
}

_ANY_NUMBER: Final = 1 << 62
"""More deliveries than any queue with dead letters allows."""


class Dispatcher:
    """The state of a work queue over all its partitions.

    - `delay_of(failures)` is the delay in seconds before a record is delivered again (`Backoff.delay`).
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
        watcher: Watcher | None = None,
        ack_timeout: float | None = None,
        retry_share: float = 0.3,
        allow_out_of_order: bool = False,
        ordering_key: Callable[[Record], bytes | None] = lambda record: record.key,
        delivery_times: DeliveryTimes | None = None,
        listeners: DeliveryListeners | None = None,
    ) -> None:
        self.mode = mode
        self.publisher = publisher
        self.watcher = watcher or Watcher()
        self.counts = QueueCounts()
        self.works: dict[object, Work] = {}
        """The partitions that are assigned, by TopicPartition."""
        self.turns = Turns(self._may_take, retry_share)
        self.timeouts = AckTimeouts(ack_timeout)
        self.ack_timeout = ack_timeout
        """Seconds from a hand-out after which a delivery expires; None: it never does."""
        self.serial = False
        """Whether at most one record of a partition is acquired: handlers run in offset order."""
        self.is_open = True
        """Whether records are delivered."""
        self.is_prefetched = False
        """Whether deliveries wait in the inbox of a local consumer first, until `hand_out`."""
        self._clock = clock
        self._delay_of = delay_of
        self._ordering_key = ordering_key
        self._delivery_times = delivery_times or DeliveryTimes(lambda _: None, lambda: 0)
        self._has_lanes = mode is Mode.KEY_SHARED
        self._holds_lanes = not allow_out_of_order
        self._in_order = mode.in_order
        self._due = DueTimes()
        self._last_failures = LastFailures()
        self._listeners = listeners
        """Those of the hooks for each delivery; None without any."""
        self._reported: dict[int, BaseException | None] = {}
        """With listeners: the deliveries that have begun, by id(), and the errors with which they have failed."""

    def __repr__(self) -> str:
        waiting = sum(len(work.waiting) for work in self.works.values())
        return f"<Dispatcher {self.mode.value}: {len(self.works)} partitions, {waiting} waiting>"

    def key_of(self, record: Record) -> bytes | None:
        """Return the record's ordering key; None if the user's function for it raises."""
        try:
            return self._ordering_key(record)
        except FAILURES:
            return None

    # --- partitions -----------------------------------------------------------------------------------------------------

    def add_partition(self, work: Work) -> None:
        """Add a partition that was assigned."""
        self.works[work.tp] = work

    def close_partition(self, work: Work) -> None:
        """Deliver no more records of a partition that is revoked; open deliveries may still be ended."""
        work.is_open = False
        work.drop_ready()

    def remove_partition(self, work: Work) -> list[Delivery]:
        """Forget a partition; return its open deliveries, which are lost."""
        self.close_partition(work)
        if self.works.get(work.tp) is work:
            del self.works[work.tp]
        return self.lose(work)

    def lose(self, work: Work, offset: int = 0) -> list[Delivery]:
        """Forget the records of a partition from `offset` on; return their open deliveries, which are lost."""
        lost, dropped = work.clear(offset)
        for delivery in lost:
            if delivery.state is DeliveryState.IN_HAND:
                self._end(delivery, DeliveryState.LOST)
            else:
                delivery.state = DeliveryState.LOST
                self.report_end(delivery, "lost")
            delivery._keeps_lane = delivery._has_handler
        for record in (*dropped, *(delivery.record for delivery in lost if not delivery._keeps_lane)):
            self._free_lane(work, record)
        work.engine.on_room()
        if work.is_open:
            self.relist(work)
        return lost

    # --- records arrive -------------------------------------------------------------------------------------------------

    def offer(self, work: Work, records: Iterable[Record]) -> None:
        """Add records of a partition, in offset order; drop records that are acknowledged already.

        Offsets without a record in between count as done: they were compacted away, or are transaction markers.
        """
        window, expected, fresh, size = work.window, work.position, work.fresh, 0
        is_plain = not (work.has_copies or window.attempts or window.end > expected)
        key_of = self._ordering_key if self._has_lanes else None
        for record in records:
            offset = record.offset
            if offset != expected:
                if offset < expected:  # read again, after a batch that could not be decoded
                    continue
                window.ack_range(expected, offset)
                work.engine.on_change()
            expected = offset + 1
            if is_plain and not record.headers:  # `_arrive`, in fewer calls
                value, key = record.value, record.key
                size += RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
                try:
                    if key_of is None or (lane := key_of(record)) is None or work.enter_lane(lane, record):
                        fresh.append(record)
                except FAILURES as error:
                    self._discard_arrived(work, record, error)
            elif offset not in window and not self._skip_of_other_group(work, record):
                size += work.size_of(record)
                self._arrive(work, record)
        work.position = expected
        work.bytes += size
        self.relist(work)

    def _skip_of_other_group(self, work: Work, record: Record) -> bool:
        """Acknowledge the record if it is for another group; return whether it is."""
        if not work.has_copies or not work.engine.skips(record):
            return False
        work.window.ack(record.offset)
        work.engine.on_ack(record)
        return True

    def _arrive(self, work: Work, record: Record) -> None:
        if self._has_lanes:
            try:
                key = self._ordering_key(record)
                if key is not None and not work.enter_lane(key, record):
                    return
            except FAILURES as error:
                self._discard_arrived(work, record, error)
                return
        self._admit(work, record)

    def _discard_arrived(self, work: Work, record: Record, error: BaseException) -> None:
        """Copy a record to the dead letter topic whose ordering key is unknown; without such a topic raise the error."""
        at = f"{record.topic}-{record.partition}@{record.offset}"
        if not self.publisher.is_last(_ANY_NUMBER):
            error.add_note(
                f"raised by ordering_key for {at}; with dead_letter=… that record would be a dead letter"
            )
            raise error
        _log.warning("%s has no ordering key: %s", at, describe_error(error))
        delivery = Delivery(record, self.attempts(work, record) + 1, None, work, self)
        self.begin_publishing(delivery)
        self.publisher.start_dead_letter(delivery, f"has no ordering key: {describe_error(error)}")

    def _admit(self, work: Work, record: Record) -> None:
        """Make a record ready that no earlier one of its key precedes; a delayed one waits for its time first."""
        attempts = work.window.attempts
        if not attempts and not record.headers:  # `_make_ready`, in fewer calls
            work.fresh.append(record)
            self.turns.add_fresh(work)
        elif record.offset in attempts and self.publisher.is_last(self.attempts(work, record)):
            self._copy_exhausted(work, record)
            work.note_unread()
        elif (at := self._delivery_times.of(record)) is not None:
            self._wait_until(work, record, at)
            work.note_unread()
        else:
            self._make_ready(work, record)

    def attempts(self, work: Work, record: Record) -> int:
        """Return the number of deliveries of the record so far."""
        attempts = work.window.attempts.get(record.offset, 0)
        return attempts + work.engine.earlier_attempts(record) if work.has_copies else attempts

    def _copy_exhausted(self, work: Work, record: Record) -> None:
        """Copy a record to the dead letter topic whose allowed deliveries were all made before it arrived."""
        attempts, window = self.attempts(work, record), work.window
        only_crashes = record.offset in window.unfinished and attempts == window.attempts[record.offset]
        delivery = Delivery(record, attempts, None, work, self)
        self.begin_publishing(delivery)
        reason = self._last_failures.reason(record, attempts, is_unfinished=only_crashes)
        self.publisher.start_dead_letter(delivery, reason)

    def _make_ready(self, work: Work, record: Record) -> None:
        if work.window.attempts and record.offset in work.window.attempts:
            if self._in_order:
                work.insert_retry(record)
            else:
                work.retries.append(record)
            self.turns.add_retry(work)
        else:
            work.fresh.append(record)
            self.turns.add_fresh(work)

    # --- records are delivered ------------------------------------------------------------------------------------------

    def take(self) -> Delivery | None:
        """Return the next delivery, or None if no record may be delivered now."""
        turns = self.turns
        if not self.is_open:
            return None
        if turns.has_retries and (work := turns.next_retry(in_order=self._in_order)) is not None:
            return self._take_retry(work)
        if (work := turns.next_fresh()) is not None:
            record = work.fresh.popleft()
            attempt = 1 if not work.has_copies else work.engine.earlier_attempts(record) + 1
            return self._hand_out(work, record, attempt)
        if turns.has_retries and (work := turns.last_retry()) is not None:
            return self._take_retry(work)
        return None

    def _take_retry(self, work: Work) -> Delivery:
        record = work.retries.popleft()
        attempts = self.attempts(work, record)
        is_counted = work.gate is not None and work.gate.is_counted(record.offset)
        delivery = self._hand_out(work, record, attempts if is_counted else attempts + 1)
        delivery._is_retry = True
        if not self.is_prefetched:
            self._take_slot(delivery)
        return delivery

    def _take_slot(self, delivery: Delivery) -> None:
        delivery._has_slot = True
        self.turns.retries_in_hand += 1

    def _may_take(self, work: Work, record: Record) -> bool:
        if not work.is_open or (self.serial and (work.handlers or not work.is_next_in_order)):
            return False
        if work.retries and self._in_order and record is not work.retries[0]:
            return False
        return work.gate is None or work.gate.may_begin(record)

    def _hand_out(self, work: Work, record: Record, attempt: int) -> Delivery:
        timeout, deadline = self.ack_timeout, None
        if timeout is not None and not self.is_prefetched:
            now = self._clock()
            deadline = now + timeout
            if not work.in_hand:
                self.watcher.on_due(now + self.timeouts.interval)
        delivery = Delivery(record, attempt, deadline, work, self)
        work.in_hand[record.offset] = delivery
        self.counts.delivered += 1
        if self._listeners is not None and not self.is_prefetched:
            self._report_start(delivery)
        # `unread` inlined, as it runs for each record
        if work.refill_at >= 0 and len(work.fresh) + work.blocked + work.parked <= work.refill_at:
            work.note_unread()
        return delivery

    def relist(self, work: Work) -> None:
        """Deliver records of the partition again, after a condition that may have prevented it has changed."""
        if work.fresh:
            self.turns.add_fresh(work)
        if work.retries:
            self.turns.add_retry(work)
        if work.fresh or work.retries:
            self.watcher.on_ready()

    # --- deliveries end ---------------------------------------------------------------------------------------------------

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge the record. Raises what an interceptor raises, after a nack."""
        if self.watcher.checks_acks:
            self._check_ack(delivery)
        # inlined, as it runs for each record: `_end`
        work = delivery._work
        record = delivery.record
        delivery.state = DeliveryState.ACKED
        if self._listeners is not None:
            self.report_end(delivery, "acknowledged")
        del work.in_hand[record.offset]
        if delivery._has_slot:
            self._end_retry()
        if not work.is_open:
            work.engine.on_drain()
        work.window.ack(record.offset)
        self.counts.acked += 1
        self._done(work, record, delivery)

    def _check_ack(self, delivery: Delivery) -> None:
        try:
            self.watcher.before_ack(delivery)
        except FAILURES as error:
            self.nack(delivery, None, error)
            raise
        except BaseException:
            self.release(delivery)  # neither done nor failed
            raise

    def ack_cumulative(self, delivery: Delivery) -> None:
        """Acknowledge the record and all before it in its partition. Raises UsageError in modes without an order."""
        if not self._in_order:
            allowed = f"mode {self.mode.value} has no order: acknowledge each record by itself"
            raise UsageError(f"ack_cumulative() of {delivery!r}: {allowed}")
        work = delivery._work
        for offset in sorted(at for at in work.in_hand if at < delivery.record.offset):
            self.ack(work.in_hand[offset])
        self.ack(delivery)
        for record in work.take_before(delivery.record.offset):
            work.window.ack(record.offset)
            self.counts.acked += 1
            self._done(work, record)
        work.engine.on_room()

    def nack(
        self, delivery: Delivery, delay: float | None, error: BaseException | None = None, reason: str = ""
    ) -> None:
        """The delivery failed: deliver the record again after `delay` seconds, or copy it to the dead letter topic."""
        self.counts.nacked += 1
        self._end(delivery, DeliveryState.NACKED, error)
        self.fail(delivery, delay, reason or ("nacked" if error is None else describe_error(error)))
        self.watcher.on_nack(delivery, error)

    def discard(self, delivery: Delivery, reason: str, error: BaseException | None = None) -> None:
        """Copy a record to the dead letter topic that no delivery can handle; without such a topic, nack it."""
        if self.publisher.is_last(_ANY_NUMBER):
            self.begin_publishing(delivery)
            self.publisher.start_dead_letter(delivery, reason)
        else:
            self.nack(delivery, None, error)

    def fail(self, delivery: Delivery, delay: float | None, reason: str) -> None:
        """Deliver the record of a failed delivery again later, or copy it to the dead letter topic."""
        work = delivery._work
        record = delivery.record
        if self.works.get(work.tp) is not work:
            return
        earlier = work.engine.earlier_attempts(record) if work.has_copies else 0
        work.window.set_attempts(record.offset, delivery.attempt - earlier)
        if work.gate is not None:
            work.gate.ended(record.offset)
        work.engine.on_change()
        if self.publisher.is_last(delivery.attempt):
            self._last_failures.note(record, reason)
            self.begin_publishing(delivery)
            self.publisher.start_dead_letter(delivery, reason)
            return
        if self._has_lanes and not self._holds_lanes:
            self._free_lane(work, record)
        due = self._clock() + (self._delay_of(delivery.attempt) if delay is None else delay)
        if delivery._has_handler and delivery.state is DeliveryState.NACKED:  # until it has returned
            delivery._due = due
            work.expired[record.offset] = delivery
        else:
            self._wait(work, record, due)
        self.relist(work)

    def release(self, delivery: Delivery) -> None:
        """Deliver the record again with the same attempt number: the delivery was neither acknowledged nor failed."""
        self._end(delivery, DeliveryState.RELEASED)
        work = delivery._work
        if not work.is_open:
            return
        record = delivery.record
        if not self._in_order:
            (work.retries if delivery._is_retry else work.fresh).appendleft(record)
        else:
            if work.gate is not None:
                work.gate.released(record.offset)  # records that precede it may have to be counted first
            if delivery._is_retry or (work.retries and record.offset < work.retries[-1].offset):
                work.insert_retry(record)
            else:
                work.insert_fresh(record)
        self.relist(work)

    def park(self, delivery: Delivery) -> None:
        """A delivery waits for permits of a local consumer: it is queued."""
        delivery._work.parked += 1

    def unpark(self, delivery: Delivery) -> None:
        """It goes to an inbox, or has ended."""
        delivery._work.parked -= 1
        delivery._work.note_unread()

    def renew(self, delivery: Delivery) -> None:
        """Restart the ack timeout of a delivery; the renewal counts as progress of its partition."""
        delivery._work.renewals += 1
        if self.ack_timeout is not None:
            delivery.deadline = self._clock() + self.ack_timeout
            in_hand = delivery._work.in_hand  # stays in the order of deadlines
            in_hand[delivery.record.offset] = in_hand.pop(delivery.record.offset)

    def hand_out(self, delivery: Delivery) -> None:
        """Start the ack timeout of a delivery that leaves an inbox, and give it a slot if it is a retry."""
        if self._listeners is not None:
            self._report_start(delivery)
        if delivery._is_retry and not delivery._has_slot:
            self._take_slot(delivery)
        if self.ack_timeout is not None:
            self.renew(delivery)
            self.watcher.on_due(self._clock() + self.timeouts.interval)

    def _end(self, delivery: Delivery, state: DeliveryState, error: BaseException | None = None) -> None:
        work = delivery._work
        delivery.state = state
        if self._listeners is not None:
            self._report_state(delivery, state, error)
        work.in_hand.pop(delivery.record.offset, None)
        if not work.is_open:
            work.engine.on_drain()
        if delivery._has_slot:
            self._end_retry()

    def _end_retry(self) -> None:
        self.turns.retries_in_hand -= 1
        if self.turns.has_retries:
            self.watcher.on_ready()

    def _done(self, work: Work, record: Record, delivery: Delivery | None = None) -> None:
        if record.headers:
            work.bytes -= work.size_of(record)
        else:  # inlined, as it runs for each record
            value, key = record.value, record.key
            work.bytes -= RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
        if work.bytes <= work.refill_bytes:
            work.engine.on_room()
        work.engine.on_ack(record)
        if self._has_lanes:
            if delivery is not None and delivery._has_handler:
                delivery._keeps_lane = True
            else:
                self._free_lane(work, record)
        if work.gate is not None:
            work.gate.ended(record.offset)
            self.relist(work)
        elif self.serial:
            self.relist(work)

    def begin_handler(self, delivery: Delivery) -> None:
        """A handler of `run` begins: until it has returned, the next record of its key, or in order, is not delivered."""
        delivery._has_handler = True
        delivery._work.handlers += 1

    def end_handler(self, delivery: Delivery) -> None:
        """The handler has returned."""
        work = delivery._work
        delivery._has_handler = False
        work.handlers -= 1
        if delivery.state is DeliveryState.NACKED and work.expired.get(delivery.record.offset) is delivery:
            del work.expired[delivery.record.offset]
            self._wait(work, delivery.record, delivery._due)
        if delivery._keeps_lane:
            self._free_lane(work, delivery.record)
        if self.serial:
            self.relist(work)

    def _free_lane(self, work: Work, record: Record) -> None:
        key = self.key_of(record) if self._has_lanes else None
        if key is not None and (following := work.leave_lane(key)) is not None:
            self._admit(work, following)
            self.watcher.on_ready()

    # --- copies to other topics --------------------------------------------------------------------------------------------

    def begin_publishing(self, delivery: Delivery) -> None:
        """Mark the record as being copied to another topic; later records of its key wait."""
        if delivery.state is DeliveryState.IN_HAND:
            self._end(delivery, DeliveryState.PUBLISHING)
        elif delivery.state is not DeliveryState.EXPIRED:  # calls that end an expired one are too late
            delivery.state = DeliveryState.PUBLISHING
        work = delivery._work
        work.publishing += 1
        work.bytes += COPY_OVERHEAD

    def finish(self, delivery: Delivery) -> AckOutcome:
        """Acknowledge the record: the broker has acknowledged its copy."""
        work = delivery._work
        self._end_publishing(work)
        if self.works.get(work.tp) is not work or delivery.record.offset in work.window:
            delivery.state = DeliveryState.LOST
            return AckOutcome.LOST
        if delivery.state is not DeliveryState.EXPIRED:
            delivery.state = DeliveryState.ACKED
        self._last_failures.forget(delivery.record)
        work.window.ack(delivery.record.offset)
        self._done(work, delivery.record, delivery)
        return AckOutcome.ACKED

    def give_back(self, delivery: Delivery) -> None:
        """Deliver the record again later: its copy was given up. After a revocation the next owner does."""
        work = delivery._work
        self._end_publishing(work)
        self.report_end(delivery, "lost")
        delivery.state = DeliveryState.LOST
        if self.works.get(work.tp) is work and delivery.record.offset not in work.window:
            self._wait(work, delivery.record, self._clock() + self._delay_of(delivery.attempt))

    def _end_publishing(self, work: Work) -> None:
        work.publishing -= 1
        work.bytes -= COPY_OVERHEAD
        if work.bytes <= work.refill_bytes:
            work.engine.on_room()
        if not work.is_open:
            work.engine.on_drain()

    # --- hooks -------------------------------------------------------------------------------------------------------------

    def _report_start(self, delivery: Delivery) -> None:
        assert self._listeners is not None
        self._reported[id(delivery)] = None
        self._listeners.start(delivery)

    def _report_state(self, delivery: Delivery, state: DeliveryState, error: BaseException | None) -> None:
        """A delivery has left the hands of its handler; one that is copied, or fails for the last time, ends with its copy."""
        is_last = state is DeliveryState.NACKED and self.publisher.is_last(delivery.attempt)
        if state is not DeliveryState.PUBLISHING and not is_last:
            self.report_end(delivery, _OUTCOMES[state], error)
        elif id(delivery) in self._reported:
            self._reported[id(delivery)] = error

    def report_end(
        self, delivery: Delivery, outcome: DeliveryOutcome, error: BaseException | None = None
    ) -> None:
        """Call the hooks, once for each delivery that has begun."""
        if self._listeners is None or id(delivery) not in self._reported:
            return
        before = self._reported.pop(id(delivery))
        self._listeners.end(delivery, outcome, error or before)

    # --- time -------------------------------------------------------------------------------------------------------------------

    def _wait(self, work: Work, record: Record, due: float) -> None:
        if not work.is_open:
            return
        if self._due.add(work, record, due):
            self.watcher.on_due(due)

    def _wait_until(self, work: Work, record: Record, at: int) -> None:
        """Wait for a time of day, in ms."""
        if not work.is_open:
            return
        work.delayed.add(record.offset)
        if self._delivery_times.add(work, record, at):
            self.watcher.on_due(self._clock() + self._delivery_times.seconds_left)

    def wake(self) -> float:
        """Handle the records and deadlines that are due; return the loop time of the next one, infinity without one."""
        now = self._clock()
        for work, record in chain(self._due.pop_due(now), self._delivery_times.pop_due()):
            self._on_due(work, record)
        return min(self._due.first, self._expire(now), now + self._delivery_times.seconds_left)

    def note_late(self, seconds: float) -> None:
        """The alarm runs so many seconds late: if the event loop was blocked, that does not count for ack timeouts."""
        self.timeouts.note_late(self.works.values(), self._clock(), seconds)

    def _on_due(self, work: Work, record: Record) -> None:
        work.engine.on_room()
        has_failed = record.offset not in work.delayed and record.offset in work.window.attempts
        work.delayed.discard(record.offset)
        if has_failed and self._in_order and not self.serial:
            self._rewind(work, record)
        elif has_failed and self._has_lanes and not self._holds_lanes:
            self._arrive(work, record)
        else:
            self._make_ready(work, record)
        self.watcher.on_ready()

    def _rewind(self, work: Work, record: Record) -> None:
        """Deliver all unacknowledged records of the partition again, in order, as Pulsar does without Shared."""
        in_hand = list(work.in_hand.values())
        work.in_hand.clear()
        for delivery in in_hand:
            delivery.state = DeliveryState.EXPIRED
            self.report_end(delivery, "expired")
            self.turns.retries_in_hand -= delivery._has_slot
        if work.gate is not None:
            work.gate.released(None)
        work.repeat_in_order((record, *(delivery.record for delivery in in_hand)))
        self.relist(work)

    def _expire(self, now: float) -> float:
        """End the deliveries whose ack timeout has passed; return when to look for others."""
        expired, following = self.timeouts.overdue(self.works.values(), now)
        for delivery in expired:
            self.counts.expired += 1
            delivery._work.expired[delivery.record.offset] = delivery
            self._end(delivery, DeliveryState.EXPIRED)
            if not self.watcher.on_expired(delivery):
                self.repeat_expired(delivery)
        return following

    def repeat_expired(self, delivery: Delivery) -> None:
        """Deliver the record of an expired delivery again, now that its handler, if it was cancelled, has ended."""
        work = delivery._work
        if work.expired.pop(delivery.record.offset, None) is not None:
            self.fail(delivery, 0.0, f"not acknowledged within {self.ack_timeout:g} s")
            if not work.is_open:
                work.engine.on_drain()
