"""Receiver: tasks that wait for deliveries, and are cancelled while they are woken."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import ClosedError
from asyncgroup.workqueue.interceptors import QueueInterceptors
from asyncgroup.workqueue.receiver import Receiver, Waiters

pytestmark = pytest.mark.real


@pytest.mark.parametrize("end", [False, True])
async def test_a_wait_that_is_cancelled_in_the_turn_of_a_wakeup_ends(end: bool) -> None:
    """The wake-up finds the cancelled wait first, and passes to the next one."""
    receiver = Receiver("g", lambda: None, Waiters(), QueueInterceptors(()))
    first, second = (asyncio.create_task(receiver.waiters.wait()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    if end:
        receiver.end(None)
        with pytest.raises(ClosedError):
            receiver.check_open()
    else:
        receiver.waiters.wake(1)
    await asyncio.wait({first, second})
    assert first.cancelled()
    assert second.exception() is None
    assert not receiver.waiters
