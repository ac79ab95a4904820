"""Bugs of work queues that `python -m tests.simulate` has found, each as a small test."""

from __future__ import annotations

import pytest

from asyncgroup.workqueue.delivery import AckOutcome, Delivery
from asyncgroup.workqueue.modes import Mode
from tests.workqueue.test_dispatcher import Queue

pytestmark = pytest.mark.asyncio


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
        assert queue.dispatcher.finish(delivery)
    elif copy == "given up":
        queue.dispatcher.give_back(delivery)
    outcome = await delivery.ack()
    assert not outcome
    assert outcome in (AckOutcome.EXPIRED, AckOutcome.LOST)
    assert not await delivery.nack()
    assert not await delivery.reject()


async def test_a_failed_record_comes_first_after_all_were_to_be_repeated():
    """Between two calls of `run` a record became due, and all after it were to be repeated, too: when it failed again, they
    came before it.
    """
    queue = Queue(Mode.EXCLUSIVE, delay=1.0)
    queue.dispatcher.serial = True
    queue.partition("...")
    queue.dispatcher.nack(queue.take(), None)
    queue.dispatcher.serial = False  # run() was cancelled
    queue.pass_time(1.0)
    queue.dispatcher.serial = True
    queue.dispatcher.nack(queue.take(), None)
    assert queue.dispatcher.take() is None
    queue.pass_time(2.0)
    for offset in range(3):
        delivery = queue.take()
        assert delivery.record.offset == offset
        queue.dispatcher.ack(delivery)
