"""Bugs of work queues that `python -m tests.simulate` has found, each as a small test."""

from __future__ import annotations

import pytest

from asyncgroup.model import Record
from asyncgroup.workqueue.modes import Mode
from tests.workqueue.test_dispatcher import Queue, offsets

IN_ORDER = (Mode.EXCLUSIVE, Mode.FAILOVER)


def delayed(*delays: float) -> Queue:
    """Return a queue whose records arrive with these delays, handled one by one."""
    queue = Queue(IN_ORDER[0], due_delay=lambda record: delays[record.offset])
    queue.dispatcher.serial = True
    work = queue.partition("")
    records = [Record("orders", 0, offset, headers=[("at", b"")]) for offset in range(len(delays))]
    queue.dispatcher.offer(work, records)
    return queue


@pytest.mark.parametrize("mode", IN_ORDER)
def test_delayed_records_keep_their_place_in_modes_in_order(mode: Mode):
    """Without `run`: a copy of the retry topic that was delayed came after later records that were not."""
    delays = [1.0, 0.0, 2.0, 0.0]
    queue = Queue(mode, due_delay=lambda record: delays[record.offset])
    queue.dispatcher.offer(queue.partition(""), [Record("orders", 0, at, headers=[("at", b"")]) for at in range(4)])
    queue.pass_time(3.0)
    assert offsets(queue.take_all()) == [0, 1, 2, 3]


def test_delayed_records_are_handled_in_order():
    queue = delayed(1.0, 0.0, 0.0)
    assert queue.dispatcher.take() is None
    queue.pass_time(1.0)
    for offset in range(3):
        delivery = queue.take()
        assert delivery.record.offset == offset
        assert queue.dispatcher.take() is None
        queue.dispatcher.ack(delivery)


def test_a_long_delay_keeps_no_earlier_record_waiting():
    """While records were handled one by one, one that waits for an hour kept those before it waiting, too."""
    queue = delayed(0.0, 1.0, 3600.0, 0.0)
    queue.dispatcher.ack(queue.take())
    assert queue.dispatcher.take() is None
    queue.pass_time(1.0)
    queue.dispatcher.ack(queue.take())
    assert queue.dispatcher.take() is None
    queue.pass_time(3600.0)
    assert queue.take().record.offset == 2
