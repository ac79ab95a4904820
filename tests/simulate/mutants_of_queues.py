"""Mutations of work queues: bugs introduced on purpose, each as a patch for the duration of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final
from unittest.mock import patch

from asyncgroup import TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.model import Record
from asyncgroup.offsets import CommittedOffset, window_encoding
from asyncgroup.offsets.window_marks import WindowMarks
from asyncgroup.workqueue import AckOutcome, Delivery, DeliveryState
from asyncgroup.workqueue.dispatch_timer import DispatchTimer
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.due_times import DueTimes
from asyncgroup.workqueue.group_engine import claim_window, engine
from asyncgroup.workqueue.outcomes import Outcomes
from asyncgroup.workqueue.partition_work import PartitionWork
from asyncgroup.workqueue.publisher import TopicPublisher
from asyncgroup.workqueue.workers import Workers

__all__ = ["QUEUE_MUTANTS"]

Mutation = Callable[[], AbstractContextManager[object]]


# --- commits ----------------------------------------------------------------------------------------------------------------


def _commit_one_more() -> AbstractContextManager[object]:
    """A commit has the offset after the window's base."""
    value = WindowMarks.value

    def one_more(self: WindowMarks, *args: Any) -> CommittedOffset:
        found = value(self, *args)
        return found._replace(offset=found.offset + 1)

    return patch.object(WindowMarks, "value", one_more)


def _no_attempts() -> AbstractContextManager[object]:
    """Commits have no attempts."""
    return patch.object(window_encoding, "_encode_attempts", lambda *_: b"\0")


def _claims_stay_open() -> AbstractContextManager[object]:
    """The last commit of a claim says that it is open."""
    return patch.object(WindowMarks, "close", lambda _self: None)


def _restoring(change: Callable[[AckWindow], AckWindow]) -> AbstractContextManager[object]:
    restore = claim_window._restore

    def changed(*args: Any, **more: Any) -> Any:
        window, metadata = restore(*args, **more)
        return change(window), metadata

    return patch.object(claim_window, "_restore", changed)


def _window_not_restored() -> AbstractContextManager[object]:
    """A new owner restores the committed offset only."""
    return _restoring(lambda window: AckWindow(window.base, attempts=window.attempts))


def _attempts_not_restored() -> AbstractContextManager[object]:
    """A new owner does not restore the attempts."""
    return _restoring(lambda window: AckWindow(window.base, window.runs))


# --- deliveries -------------------------------------------------------------------------------------------------------------


def _ack_on_release() -> AbstractContextManager[object]:
    """A cancelled delivery is acknowledged."""
    return patch.object(Outcomes, "release", Outcomes.ack)


def _nack_frees_the_key() -> AbstractContextManager[object]:
    """While a record waits after a nack, the next one of its key is delivered."""
    make = Dispatcher.__init__

    def made(self: Dispatcher, *args: Any, **more: Any) -> None:
        make(self, *args, **{**more, "allow_out_of_order": True})

    return patch.object(Dispatcher, "__init__", made)


def _keys_are_ignored() -> AbstractContextManager[object]:
    """Records of a key are handled at the same time."""
    return patch.object(PartitionWork, "enter_key_queue", lambda *_: True)


def _deliver_after_revoke() -> AbstractContextManager[object]:
    """Records are delivered until the open deliveries have ended."""
    return patch.object(Dispatcher, "close_partition", lambda *_: None)


def _window_is_ignored() -> AbstractContextManager[object]:
    """Records above the committed offset are delivered, though they are acknowledged."""
    offer = Dispatcher.offer

    def blind(self: Dispatcher, work: PartitionWork, records: Iterable[Record]) -> None:
        with patch.object(AckWindow, "__contains__", lambda window, offset: offset < window.base):
            offer(self, work, records)

    return patch.object(Dispatcher, "offer", blind)


def _late_results_count() -> AbstractContextManager[object]:
    """What a handler has done after its delivery had expired or was lost is acknowledged, if its queue has the partition."""
    end_handler, add_partition = Outcomes.end_handler, Dispatcher.add_partition

    def add(self: Dispatcher, work: PartitionWork) -> None:
        add_partition(self, work)
        vars(self.outcomes)["works"] = self.works

    def accepting(self: Outcomes, delivery: Delivery, *, has_returned: bool) -> None:
        record = delivery.record
        work = vars(self)["works"].get(TopicPartition(record.topic, record.partition))
        is_late = delivery.state in (DeliveryState.LOST, DeliveryState.EXPIRED)
        if has_returned and is_late and work is not None:
            work.window.ack(record.offset)
            work.engine.on_change()
        end_handler(self, delivery, has_returned=has_returned)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Dispatcher, "add_partition", add))
        stack.enter_context(patch.object(Outcomes, "end_handler", accepting))
        return stack.pop_all()


def _retries_lose_their_place() -> AbstractContextManager[object]:
    """In modes with an order a record that is due again comes after all others that are repeated."""
    return patch.object(PartitionWork, "insert_retry", lambda self, record: self.retries.append(record))


def _workers_go_on() -> AbstractContextManager[object]:
    """A worker whose handler has swallowed its cancellation handles the next deliveries."""
    never = property(lambda _self: False, lambda _self, _value: None)
    return patch.object(Workers, "_is_stopping", never, create=True)


def _late_acks_raise() -> AbstractContextManager[object]:
    """An expired delivery that is copied counts as ended by a call."""
    begin = Outcomes.begin_publishing

    def forgetful(self: Outcomes, delivery: Delivery) -> None:
        begin(self, delivery)
        delivery.state = DeliveryState.PUBLISHING

    return patch.object(Outcomes, "begin_publishing", forgetful)


def _timeouts_are_not_counted() -> AbstractContextManager[object]:
    """The attempt of an expired delivery does not count."""
    fail = Outcomes._fail

    def forgetful(self: Outcomes, delivery: Delivery, delay: float | None, reason: str) -> None:
        if delivery.state is DeliveryState.EXPIRED:
            delivery.attempt -= 1
        fail(self, delivery, delay, reason)

    return patch.object(Outcomes, "_fail", forgetful)


# --- times ------------------------------------------------------------------------------------------------------------------


def _late_timers() -> AbstractContextManager[object]:
    """Timers are a second late."""
    schedule = DispatchTimer.schedule
    return patch.object(DispatchTimer, "schedule", lambda self, time: schedule(self, time + 1.0))


def _early_retries() -> AbstractContextManager[object]:
    """Records are due 40 ms early."""
    add = DueTimes.add
    return patch.object(DueTimes, "add", lambda self, work, record, due: add(self, work, record, due - 0.04))


def _copies_are_due_at_once() -> AbstractContextManager[object]:
    """Copies in the retry topic are delivered when they arrive."""
    return patch.object(engine, "due_at", lambda *_, **__: None)


# --- copies -----------------------------------------------------------------------------------------------------------------


def _acked_before_the_copy() -> AbstractContextManager[object]:
    """A record is acknowledged when its copy begins."""
    begin = Outcomes.begin_publishing

    def hasty(self: Outcomes, delivery: Delivery) -> None:
        begin(self, delivery)
        delivery._work.window.ack(delivery.record.offset)
        delivery._work.engine.on_change()

    def finish(self: Outcomes, delivery: Delivery) -> AckOutcome:
        self._end_publishing(delivery._work)
        delivery.state = DeliveryState.ACKED
        self._done(delivery._work, delivery.record)
        return AckOutcome.ACKED

    return patch.multiple(Outcomes, begin_publishing=hasty, finish=finish)


def _one_delivery_less() -> AbstractContextManager[object]:
    """A record is a dead letter one delivery early."""
    is_last = TopicPublisher.is_last
    return patch.object(TopicPublisher, "is_last", lambda self, attempt: is_last(self, attempt + 1))


def _given_up_copies_count() -> AbstractContextManager[object]:
    """A record whose copy was given up is acknowledged."""
    return patch.object(Outcomes, "give_back", Outcomes.finish)


QUEUE_MUTANTS: Final[dict[str, Mutation]] = {
    "a window commits one record more": _commit_one_more,
    "attempts are not committed": _no_attempts,
    "claims are never closed": _claims_stay_open,
    "a window is not restored": _window_not_restored,
    "attempts are not restored": _attempts_not_restored,
    "released deliveries are acknowledged": _ack_on_release,
    "a nack frees the key": _nack_frees_the_key,
    "keys are ignored": _keys_are_ignored,
    "deliveries after a revocation": _deliver_after_revoke,
    "the window is ignored": _window_is_ignored,
    "late results count": _late_results_count,
    "retries lose their place": _retries_lose_their_place,
    "cancelled workers go on": _workers_go_on,
    "late acks raise": _late_acks_raise,
    "ack timeouts are not counted": _timeouts_are_not_counted,
    "timers are late": _late_timers,
    "retries are early": _early_retries,
    "copies are due at once": _copies_are_due_at_once,
    "acknowledged before the copy": _acked_before_the_copy,
    "a dead letter is early": _one_delivery_less,
    "a copy that was given up counts": _given_up_copies_count,
}
"""By name; each returns a context manager that applies the patch."""
