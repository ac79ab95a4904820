"""Bugs of work queues that `python -m tests.simulate` has found, each as a small test.

`queue.partition("a b.")` adds a partition with a record for each letter, which is its key, at the offset of the letter; a space is
a gap of the log, a dot a record without a key.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.model import Record
from asyncgroup.workqueue.delivery import AckOutcome, Delivery
from asyncgroup.workqueue.interceptors import QueueInterceptors
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_work import PartitionWork
from asyncgroup.workqueue.receiver import Receiver, Waiters
from asyncgroup.workqueue.workers import Workers
from tests.workqueue.test_dispatcher import Queue

pytestmark = pytest.mark.real


@pytest.mark.parametrize("copy", ["under way", "written", "given up"])
async def test_an_ack_after_the_last_timeout_is_too_late(copy: str, monkeypatch: pytest.MonkeyPatch):
    """It raised UsageError, as if the delivery had been ended by a call, if the record was copied as a dead letter."""
    queue = Queue(Mode.SHARED, max_redeliveries=0, ack_timeout=5.0)
    copied: list[Delivery] = []
    monkeypatch.setattr(queue.letters, "start_dead_letter", lambda delivery, _reason: copied.append(delivery))
    queue.partition("a")
    delivery = queue.take()
    queue.pass_time(5.0)
    assert copied == [delivery]
    if copy == "written":
        assert queue.dispatcher.outcomes.finish(delivery)
    elif copy == "given up":
        queue.dispatcher.outcomes.give_back(delivery)
    outcome = await delivery.ack()
    assert not outcome
    assert outcome in (AckOutcome.EXPIRED, AckOutcome.LOST)
    assert not await delivery.nack()
    assert not await delivery.reject()


async def test_a_failed_record_comes_first_after_all_were_to_be_repeated():
    """Between two calls of `run` a record became due, and all after it were to be repeated as well: when it failed again, they
    came before it.
    """
    queue = Queue(Mode.EXCLUSIVE, delay=1.0)
    queue.dispatcher.set_serial(serial=True)
    queue.partition("...")
    queue.dispatcher.outcomes.nack(queue.take(), None)
    queue.dispatcher.set_serial(serial=False)  # run() was cancelled
    queue.pass_time(1.0)
    queue.dispatcher.set_serial(serial=True)
    queue.dispatcher.outcomes.nack(queue.take(), None)
    assert queue.dispatcher.take() is None
    queue.pass_time(2.0)
    for offset in range(3):
        delivery = queue.take()
        assert delivery.record.offset == offset
        queue.dispatcher.outcomes.ack(delivery)


async def test_run_ends_after_its_cancellation_though_a_handler_swallows_it():
    """Its worker went on with the next deliveries, so that `run` did not end before it was cancelled again."""
    queue = Queue(Mode.SHARED)
    queue.partition("...")
    handled: list[int] = []
    is_handled = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.record.offset)
        is_handled.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if delivery.record.offset:
                raise

    receiver = Receiver("billing", queue.dispatcher.take, Waiters(), QueueInterceptors(()))
    workers = Workers(queue.dispatcher.outcomes, receiver, handle, 1, cancels_expired=True)
    running = asyncio.create_task(workers.run())
    await is_handled.wait()
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=1.0)
    still_running = not done
    for worker in list(workers._workers):
        assert worker.task is not None
        worker.task.cancel()
    await asyncio.wait([running])
    assert not still_running
    assert handled == [0]
    assert 0 in queue.dispatcher.works[("orders", 0)].window


async def test_a_record_that_a_copy_has_delayed_is_delivered_though_run_was_called_again_meanwhile():
    """It was not: its turn had passed while the copy was written, and when that was done no handlers ran in order."""
    queue = Queue(Mode.FAILOVER, max_redeliveries=0)
    queue.letters.holds = True
    queue.dispatcher.set_serial(serial=True)
    queue.partition("..")
    first = queue.take()
    queue.dispatcher.outcomes.nack(first, None)
    assert queue.dispatcher.take() is None  # the copy is being written
    queue.dispatcher.set_serial(serial=False)  # run() was cancelled
    queue.dispatcher.outcomes.finish(first)
    queue.dispatcher.set_serial(serial=True)
    assert queue.take().record.offset == 1


class FullWindow:
    """A gate as that of a claim whose window is nearly too large: nothing above it is delivered."""

    def __init__(self, work: PartitionWork[Delivery]) -> None:
        self.work = work
        work.guard = self

    def may_begin(self, record: Record) -> bool:
        return record.offset < self.work.window.end or self.work.may_grow(record)

    def is_counted(self, offset: int) -> bool:
        return False

    def ended(self, offset: int) -> None:
        """Nothing is counted."""

    def released(self, offset: int | None) -> None:
        """Nothing is counted."""


async def test_above_a_full_window_the_next_record_follows_when_a_failed_one_enters_its_lane_again():
    """Nothing was delivered any more: the failed record was the last one that had delayed the next of its key, and came after it."""
    queue = Queue(Mode.KEY_SHARED, allow_out_of_order=True)
    work = queue.partition("aaa")
    FullWindow(work)
    queue.dispatcher.outcomes.nack(queue.take(), 5.0)
    assert queue.dispatcher.take() is None  # the window may shrink when the failed one is delivered again
    queue.pass_time(5.0)
    for offset in (1, 2, 0):
        delivery = queue.take()
        assert delivery.record.offset == offset
        queue.dispatcher.outcomes.ack(delivery)
    assert work.window.base == 3
