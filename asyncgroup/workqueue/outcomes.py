"""Outcomes: what becomes of a record when it may be delivered, and when a delivery of it ends. Synchronous.

Each method is a move of `DeliveryState`: it takes the record out of one container of its PartitionWork and puts it into another.
What the move depends on is decided first: the attempts and the publisher say whether a failed delivery was the last one, the
DeliveryOrder which records a failed one delays, and what it does when its time has come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from asyncgroup.hooks import DeliveryOutcome
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import Record
from asyncgroup.workqueue.ack_timeouts import AckTimeouts
from asyncgroup.workqueue.dead_letters import LastFailures
from asyncgroup.workqueue.delivery import FAILURES, AckOutcome, Delivery, DeliveryState, Publisher, Work
from asyncgroup.workqueue.delivery_reports import DeliveryReports, DispatcherCallbacks
from asyncgroup.workqueue.delivery_state import MOVES
from asyncgroup.workqueue.due_times import NEVER, WaitingRecords
from asyncgroup.workqueue.orders import DeliveryOrder
from asyncgroup.workqueue.partition_work import COPY_OVERHEAD, RECORD_OVERHEAD
from asyncgroup.workqueue.ready_partitions import ReadyPartitions
from asyncgroup.workqueue.statistics import QueueCounts

__all__ = ["Outcomes"]

_log = logging.getLogger("asyncgroup.workqueue")

_ANY_NUMBER: Final = 1 << 62
"""More deliveries than any queue with dead letters allows."""


class Outcomes:
    """Applies outcomes. `delay_of(failures)` is the delay in seconds before a record is delivered again (`Backoff.delay`)."""

    def __init__(
        self,
        ready: ReadyPartitions,
        order: DeliveryOrder,
        waiting: WaitingRecords,
        publisher: Publisher,
        callbacks: DispatcherCallbacks,
        delay_of: Callable[[int], float],
        ordering_key: Callable[[Record], bytes | None],
        timeouts: AckTimeouts,
        reports: DeliveryReports | None,
    ) -> None:
        self.publisher = publisher
        self.counts = QueueCounts()
        self._ready = ready
        self._order = order
        self._has_keys = order.key_of is not None
        self._waiting = waiting
        self._callbacks = callbacks
        self._delay_of = delay_of
        self._ordering_key = ordering_key
        self._timeouts = timeouts
        self._reports = reports
        self._last_failures = LastFailures()

    def __repr__(self) -> str:
        return f"<Outcomes: {self.counts!r}>"

    def key_of(self, record: Record) -> bytes | None:
        """Return the record's ordering key; None if the user's function for it raises."""
        try:
            return self._ordering_key(record)
        except FAILURES:
            return None

    def attempts(self, work: Work, record: Record) -> int:
        """Return the number of deliveries of the record so far."""
        attempts = work.window.attempts.get(record.offset, 0)
        return attempts + work.engine.earlier_attempts(record) if work.has_copies else attempts

    # --- a record may be delivered --------------------------------------------------------------------------------------

    def admit(self, work: Work, record: Record) -> None:
        """Make a record ready that no earlier one of its key precedes; a delayed one waits for its time first."""
        attempts = work.window.attempts
        if not attempts and not record.headers:
            # `_make_ready`, inlined, as it runs for each record that has waited for its key
            work.fresh.append(record)
            if not work.is_fresh_queued:
                self._ready.add(work)
        elif record.offset in attempts and self.publisher.is_last(self.attempts(work, record)):
            self._copy_exhausted(work, record)
            work.note_unread()
        elif self._waiting.add_delayed(work, record):
            work.note_unread()
        else:
            self._make_ready(work, record)

    def make_ready(self, work: Work, record: Record) -> None:
        """A record that has waited for its time is ready."""
        self._make_ready(work, record)
        self._ready.wake_later()

    def _make_ready(self, work: Work, record: Record) -> None:
        if work.window.attempts and record.offset in work.window.attempts:
            self._order.add_again(work, record)
        else:
            work.fresh.append(record)
        self._ready.add(work)

    def _copy_exhausted(self, work: Work, record: Record) -> None:
        """Copy a record to the dead letter topic whose allowed deliveries were all made before it arrived."""
        attempts, window = self.attempts(work, record), work.window
        only_crashes = record.offset in window.unfinished and attempts == window.attempts[record.offset]
        reason = self._last_failures.reason(record, attempts, is_unfinished=only_crashes)
        self._bury(Delivery(record, attempts, None, work, self), reason)

    def discard_arrived(self, work: Work, record: Record, error: BaseException) -> None:
        """Copy a record to the dead letter topic whose ordering key is unknown; without such a topic raise the error."""
        at = f"{record.topic}-{record.partition}@{record.offset}"
        if not self.publisher.is_last(_ANY_NUMBER):
            error.add_note(
                f"raised by ordering_key for {at}; with dead_letter=… that record would be a dead letter"
            )
            raise error
        _log.warning("%s has no ordering key: %s", at, describe_error(error))
        delivery = Delivery(record, self.attempts(work, record) + 1, None, work, self)
        self._bury(delivery, f"has no ordering key: {describe_error(error)}")

    # --- a delivery ends ------------------------------------------------------------------------------------------------

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge the record. Raises what an interceptor raises, after a nack."""
        if self._callbacks.checks_acks:
            self._check_ack(delivery)
        # `_end`, inlined, as it runs for each record
        work = delivery._work
        record = delivery.record
        delivery.state = DeliveryState.ACKED
        if self._reports is not None:
            self._reports.end(delivery, "acknowledged")
        del work.acquired[record.offset]
        if delivery._has_slot:
            self._ready.free_slot(delivery)
        if not work.is_open:
            work.engine.on_drain()
        work.window.ack(record.offset)
        self.counts.acked += 1
        self._done(work, record, delivery)

    def _check_ack(self, delivery: Delivery) -> None:
        try:
            self._callbacks.before_ack(delivery)
        except FAILURES as error:
            self.nack(delivery, None, error)
            raise
        except BaseException:
            self.release(delivery)  # neither done nor failed
            raise

    def ack_cumulative(self, delivery: Delivery) -> None:
        """Acknowledge the record and all before it in its partition. Raises UsageError in modes without an order."""
        self._order.check_cumulative(delivery)
        work, offset = delivery._work, delivery.record.offset
        for at in sorted(at for at in work.acquired if at < offset):
            self.ack(work.acquired[at])
        self.ack(delivery)
        for record in work.take_before(offset):
            work.window.ack(record.offset)
            self.counts.acked += 1
            self._done(work, record)
        work.engine.on_capacity()

    def nack(
        self, delivery: Delivery, delay: float | None, error: BaseException | None = None, reason: str = ""
    ) -> None:
        """The delivery failed: deliver the record again after `delay` seconds, or copy it to the dead letter topic."""
        self.counts.nacked += 1
        self._end(delivery, DeliveryState.NACKED, error)
        self._fail(delivery, delay, reason or ("nacked" if error is None else describe_error(error)))
        self._callbacks.on_nack(delivery, error)

    def discard(self, delivery: Delivery, reason: str, error: BaseException | None = None) -> None:
        """Copy a record to the dead letter topic that no delivery can handle; without such a topic, nack it."""
        if self.publisher.is_last(_ANY_NUMBER):
            self._bury(delivery, reason)
        else:
            self.nack(delivery, None, error)

    def release(self, delivery: Delivery) -> None:
        """Deliver the record again with the same attempt number: the delivery was neither acknowledged nor failed."""
        self._end(delivery, DeliveryState.RELEASED)
        work = delivery._work
        if work.is_open and not self._leave_to_broker(delivery):
            self._order.put_back(work, delivery)
            self._ready.requeue(work)

    def expire(self, delivery: Delivery) -> None:
        """The ack timeout of a delivery has passed: it has failed, once its handler, if it is cancelled for that, has ended."""
        self.counts.expired += 1
        delivery._work.held[delivery.record.offset] = delivery, NEVER
        self._end(delivery, DeliveryState.EXPIRED)

    def overtake(self, delivery: Delivery) -> None:
        """An earlier record is delivered again, and so is this one after it."""
        self._end(delivery, DeliveryState.EXPIRED)

    def lose(self, delivery: Delivery) -> None:
        """The partition is revoked, or its log has other records."""
        if delivery.state is DeliveryState.ACQUIRED:
            self._end(delivery, DeliveryState.LOST)
        else:
            self._move(delivery, DeliveryState.LOST)
            self.report_end(delivery, "lost")
        delivery._keeps_key = delivery._has_handler
        if not delivery._keeps_key:
            self.leave(delivery._work, delivery.record)

    def _end(self, delivery: Delivery, state: DeliveryState, error: BaseException | None = None) -> None:
        """The handler or reader of a delivery has ended it, or has lost it."""
        work = delivery._work
        self._move(delivery, state)
        if self._reports is not None:
            self._reports.left(delivery, error, is_last=self.publisher.is_last(delivery.attempt))
        work.acquired.pop(delivery.record.offset, None)
        if not work.is_open:
            work.engine.on_drain()
        self._ready.free_slot(delivery)

    def _move(self, delivery: Delivery, state: DeliveryState) -> None:
        assert state in MOVES[delivery.state], f"{delivery!r} cannot become {state.value}"
        delivery.state = state

    # --- a delivery has failed ------------------------------------------------------------------------------------------

    def _fail(self, delivery: Delivery, delay: float | None, reason: str) -> None:
        """Deliver the record of a failed delivery again later, or copy it to the dead letter topic."""
        work, record = delivery._work, delivery.record
        if not work.is_live:
            return
        earlier = work.engine.earlier_attempts(record) if work.has_copies else 0
        work.window.set_attempts(record.offset, delivery.attempt - earlier)
        if work.guard is not None:
            work.guard.ended(record.offset)
        work.engine.on_change()
        if work.engine.comes_again(record, delivery.attempt - earlier):
            self._withdraw(delivery)
            return
        if self.publisher.is_last(delivery.attempt):
            self._last_failures.note(record, reason)
            self._bury(delivery, reason)
            return
        if (following := self._order.fail(work, record)) is not None:
            self.admit(work, following)
        due = self._waiting.now() + (self._delay_of(delivery.attempt) if delay is None else delay)
        if delivery._has_handler and delivery.state is DeliveryState.NACKED:
            work.held[record.offset] = delivery, due
        else:
            self._waiting.add(work, record, due)
        self._ready.requeue(work)

    def _leave_to_broker(self, delivery: Delivery) -> bool:
        """Forget the record of a delivery that has not failed if the broker gives it again; return whether it does."""
        work, offset = delivery._work, delivery.record.offset
        if not work.engine.comes_again(delivery.record, work.window.attempts.get(offset, 0)):
            return False
        self._withdraw(delivery)
        return True

    def _withdraw(self, delivery: Delivery, *, leads: bool = True) -> None:
        """Forget the record of a delivery that has ended; `leads`: the next one of its key waits for it."""
        work, record = delivery._work, delivery.record
        self._forget(work, record)
        if leads and delivery._has_handler:
            delivery._keeps_key = self._has_keys
        elif leads:
            self.leave(work, record)
        self._ready.requeue(work)

    def withdraw_due(self, work: Work, record: Record) -> None:
        """Forget a failed record whose time has come."""
        self._forget(work, record)
        if self._order.keeps_order:
            self.leave(work, record)

    def _forget(self, work: Work, record: Record) -> None:
        work.window.ack(record.offset)
        work.bytes -= work.size_of(record)
        work.engine.on_capacity()

    def repeat_expired(self, delivery: Delivery) -> None:
        """Deliver the record of an expired delivery again, now that its handler, if it was cancelled, has ended."""
        work = delivery._work
        if work.held.pop(delivery.record.offset, None) is not None:
            self._fail(delivery, 0.0, f"not acknowledged within {self._timeouts.seconds:g} s")
            if not work.is_open:
                work.engine.on_drain()

    def renew(self, delivery: Delivery) -> None:
        """Restart the ack timeout of a delivery; the renewal counts as progress of its partition."""
        work, offset = delivery._work, delivery.record.offset
        work.renewals += 1
        if self._timeouts.seconds is not None:
            delivery.deadline = self._waiting.now() + self._timeouts.seconds
            work.acquired[offset] = work.acquired.pop(offset)  # stays in the order of deadlines

    # --- a record is done -----------------------------------------------------------------------------------------------

    def _done(self, work: Work, record: Record, delivery: Delivery | None = None) -> None:
        if record.headers:
            work.bytes -= work.size_of(record)
        else:  # `size_of`, inlined, as it runs for each record
            value, key = record.value, record.key
            work.bytes -= RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
        if work.bytes <= work.refill_bytes:
            work.engine.on_capacity()
        work.engine.on_ack(record)
        if self._has_keys:
            if delivery is not None and delivery._has_handler:
                delivery._keeps_key = True
            else:
                self.leave(work, record)
        if work.guard is not None:
            work.guard.ended(record.offset)
            self._ready.requeue(work)
        elif self._order.serial:
            self._ready.requeue(work)

    def leave(self, work: Work, record: Record) -> None:
        """A record is done, or forgotten: the next one of its key may be delivered."""
        if (following := self._order.leave(work, record)) is not None:
            self.admit(work, following)
            self._ready.wake_later()

    def end_handler(self, delivery: Delivery, *, has_returned: bool) -> None:
        """A handler of `run` has ended: acknowledge its record if it has returned, and nothing has ended the delivery before."""
        work = delivery._work
        delivery._has_handler = False
        work.handlers -= 1
        if has_returned and delivery.state is DeliveryState.ACQUIRED:
            try:
                self.ack(delivery)
            except FAILURES:  # of an interceptor
                _log.exception(
                    "the acknowledgement of %r was refused: the record is delivered again", delivery
                )
            return
        if delivery.state is DeliveryState.NACKED and delivery.record.offset in work.held:
            record, due = work.end_hold(delivery)
            if work.engine.comes_again(record, work.window.attempts.get(record.offset, 0)):
                self._withdraw(delivery, leads=self._order.keeps_order)
            else:
                self._waiting.add(work, record, due)
        if delivery._keeps_key:
            self.leave(work, delivery.record)
        if self._order.serial:
            self._ready.requeue(work)

    # --- copies to other topics --------------------------------------------------------------------------------------------

    def _bury(self, delivery: Delivery, reason: str) -> None:
        """Copy a record to the dead letter topic."""
        self.begin_publishing(delivery)
        self.publisher.start_dead_letter(delivery, reason)

    def begin_publishing(self, delivery: Delivery) -> None:
        """Mark the record as being copied to another topic; later records of its key wait."""
        if delivery.state is DeliveryState.ACQUIRED:
            self._end(delivery, DeliveryState.PUBLISHING)
        elif delivery.state is not DeliveryState.EXPIRED:  # calls that end an expired one are too late
            self._move(delivery, DeliveryState.PUBLISHING)
        work = delivery._work
        work.publishing += 1
        work.bytes += COPY_OVERHEAD

    def finish(self, delivery: Delivery) -> AckOutcome:
        """Acknowledge the record: the broker has acknowledged its copy."""
        work = delivery._work
        self._end_publishing(work)
        if not work.is_live or delivery.record.offset in work.window:
            self._move(delivery, DeliveryState.LOST)
            return AckOutcome.LOST
        if delivery.state is not DeliveryState.EXPIRED:
            self._move(delivery, DeliveryState.ACKED)
        self._last_failures.forget(delivery.record)
        work.window.ack(delivery.record.offset)
        self._done(work, delivery.record, delivery)
        return AckOutcome.ACKED

    def give_back(self, delivery: Delivery) -> None:
        """Deliver the record again later: its copy was given up. After a revocation the next owner does."""
        work = delivery._work
        self._end_publishing(work)
        self.report_end(delivery, "lost")
        self._move(delivery, DeliveryState.LOST)
        record = delivery.record
        if work.is_live and record.offset not in work.window and not self._leave_to_broker(delivery):
            # where the order may be broken a record that has failed before enters the queue of its key again when it is due:
            # it must not be the one that this queue waits for
            if (
                record.offset in work.window.attempts
                and (following := self._order.fail(work, record)) is not None
            ):
                self.admit(work, following)
                self._ready.wake_later()
            self._waiting.add(work, record, self._waiting.now() + self._delay_of(delivery.attempt))

    def _end_publishing(self, work: Work) -> None:
        work.publishing -= 1
        work.bytes -= COPY_OVERHEAD
        if work.bytes <= work.refill_bytes:
            work.engine.on_capacity()
        if not work.is_open:
            work.engine.on_drain()

    def report_end(
        self, delivery: Delivery, outcome: DeliveryOutcome, error: BaseException | None = None
    ) -> None:
        """Call the hooks, once for each delivery that has begun."""
        if self._reports is not None:
            self._reports.end(delivery, outcome, error)
