"""`WorkQueue.pause` and `resume`: no delivery in between, and no partition is given up for it."""

from __future__ import annotations

import asyncio

from asyncgroup.workqueue import Delivery, DeliveryState
from tests.stories.queue_members import opened, send, working
from tests.stories.virtual import VirtualEnvironment


async def test_a_paused_queue_hands_out_nothing_and_keeps_its_partitions(env: VirtualEnvironment) -> None:
    await send(env, *(b"%d" % number for number in range(20)))
    async with opened(env, "ann", receiver_queue=4, config={"max_poll_interval": 30.0}) as queue:
        first = await queue.receive()
        queue.pause()
        assert queue.paused
        waiting = asyncio.create_task(queue.receive())
        await asyncio.sleep(200.0)  # longer than max_poll_interval, with records that wait
        assert not waiting.done()
        assert len(queue.health().claims) == 4
        assert bool(await first.ack())
        queue.resume()
        assert not queue.paused
        second = await waiting
        assert (second.record.offset, second.state) == (1, DeliveryState.ACQUIRED)


async def test_handlers_go_on_after_a_pause(env: VirtualEnvironment) -> None:
    seen: list[int] = []

    async def work(delivery: Delivery) -> None:
        seen.append(delivery.record.offset)
        await asyncio.sleep(1.0)

    await send(env, *(b"%d" % number for number in range(10)))
    async with working(env, "ann", work, concurrency=2) as ann:
        await ann.until_count("begin", 4)
        ann.queue.pause()
        await asyncio.sleep(60.0)
        assert len(seen) == 4
        ann.queue.resume()
        await ann.until_count("end", 10)
    assert sorted(seen) == list(range(10))
