"""Ack timeouts beside a handler that blocks the event loop: the time of the block does not count. A block moves the virtual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.workqueue import DeadLetter, Delivery
from tests.scenario.support import now
from tests.stories.queue_members import acked, opened, send, working
from tests.stories.virtual import VirtualEnvironment, block
from tests.work_queues import core_of

# heartbeats have their own thread, but not in virtual time
TIMEOUTS: dict[str, Any] = {
    "ack_timeout": 10.0,
    "config": {"session_timeout": 300.0, "heartbeat_interval": 30.0},
}
# the last allowed delivery is the first one: one that expires is a dead letter
OPTIONS: dict[str, Any] = {**TIMEOUTS, "dead_letter": DeadLetter(0, partitions=1)}


@pytest.mark.parametrize(
    ("begins", "lasts"),
    [
        (5.0, 40.0),
        *(
            pytest.param(begins, lasts, marks=pytest.mark.full)
            for begins, lasts in ((0.5, 9.0), (5.0, 9.0), (9.5, 9.0), (0.5, 40.0), (9.5, 40.0))
        ),
    ],
)
async def test_neighbours_do_not_expire(env: VirtualEnvironment, begins: float, lasts: float):
    """Each works for 9 s of a running loop, wherever in that time the block is."""

    async def work(delivery: Delivery) -> None:
        if delivery.value == b"blocks":
            await asyncio.sleep(begins)
            block(lasts)
        else:
            for _ in range(9):
                await asyncio.sleep(1.0)

    await send(env, b"1", b"blocks", b"2", b"3")
    async with working(env, "ann", work, **OPTIONS) as ann:
        await ann.until_count("end", 4)
        assert sorted(ann.of("begin")) == ["0@0#1", "0@1#1", "0@2#1", "0@3#1"]
        assert ann.of("cancelled") == []
        counts = ann.queue.statistics().counts
        assert (counts.expired, counts.dead_lettered, counts.acked) == (0, 0, 4)
    assert await acked(env) == [0, 1, 2, 3]


@pytest.mark.full
async def test_a_delivery_that_is_forgotten_expires_all_the_same(env: VirtualEnvironment):
    """Blocks put the end off by the time that they last, and by no more."""
    await send(env, b"forgotten")
    async with opened(env, **TIMEOUTS) as queue:
        began = now()
        delivery = await queue.receive()
        for _ in range(3):
            await asyncio.sleep(2.0)
            block(20.0)
        again = await queue.receive()
        assert (again.record.offset, again.attempt) == (0, 2)
        assert 70.0 <= now() - began < 75.0
        assert not await delivery.ack()
        await again.ack()


@pytest.mark.full
@pytest.mark.parametrize(("turn", "latest"), [(0.1, 11.0), (0.9, 25.0)])
async def test_a_busy_loop_is_no_excuse(env: VirtualEnvironment, turn: float, latest: float):
    """A loop that is busy has turns: a timeout is in time, or at least comes."""
    await send(env, b"forgotten")
    async with opened(env, **TIMEOUTS) as queue:
        began = now()
        await queue.receive()
        waiting = asyncio.create_task(queue.receive())
        while not waiting.done():
            block(turn)
            await asyncio.sleep(0.001)
        assert 10.0 <= now() - began < latest
        await waiting.result().ack()


@pytest.mark.full
async def test_nothing_is_checked_while_nothing_acquired(env: VirtualEnvironment):
    await send(env, b"0")
    async with opened(env, ack_timeout=10.0) as queue:
        await (await queue.receive()).ack()
        await asyncio.sleep(20.0)
        assert core_of(queue)._timer._timer is None
