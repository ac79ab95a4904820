"""Work queues that are read by local consumers, by loops that are cancelled, or on demand: order, room and slots."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import ConsumerConfig, Producer, WorkQueue
from asyncgroup.hashing.key_ranges import key_hash
from asyncgroup.workqueue import BatchPolicy, DeadLetter, Delivery, Mode
from tests.stories.queue_members import cut_off, opened
from tests.stories.virtual import VirtualEnvironment

KEYS = [b"k%d" % number for number in range(100)]
LOW = [key for key in KEYS if key_hash(key) <= 32767]
HIGH = [key for key in KEYS if key_hash(key) > 32767]


def queue_of(env: VirtualEnvironment, mode: Mode, **options: Any) -> WorkQueue:
    given = {"initial_position": "earliest", "nack_backoff": 1.0} | options
    return WorkQueue(env.bootstrap_servers, "g", "orders", mode=mode, **given)


async def fill(env: VirtualEnvironment, *keys: bytes) -> None:
    async with Producer(env.bootstrap_servers) as producer:
        for number, key in enumerate(keys):
            await producer.send("orders", b"%d" % number, key=key, partition=0)


async def offsets(source: Any, count: int) -> list[int]:
    async with asyncio.timeout(100.0):
        return [(await source.receive()).record.offset for _ in range(count)]


# --- the order of Failover and Exclusive ----------------------------------------------------------------------------------


async def test_a_cancelled_batch_of_a_consumer_is_delivered_again_in_order(env: VirtualEnvironment) -> None:
    await fill(env, *[b"k"] * 10)
    async with queue_of(env, Mode.FAILOVER) as queue:
        one = queue.consumer("one")
        task = asyncio.create_task(one.batch_receive(BatchPolicy(timeout=10.0)))
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait([task])
        assert await offsets(one, 10) == list(range(10))


@pytest.mark.parametrize("in_batch", [False, True])
async def test_deliveries_that_are_given_back_are_delivered_again_in_order(
    env: VirtualEnvironment, in_batch: bool
) -> None:
    await fill(env, *[b"k"] * 6)
    async with queue_of(env, Mode.FAILOVER) as queue:

        async def one(delivery: Delivery) -> None:
            async with delivery:
                await asyncio.sleep(100.0)

        async def four() -> None:
            async with await queue.batch_receive(BatchPolicy(max_records=4, timeout=5.0)) as batch:
                for delivery in batch:
                    await one(delivery)

        works = [four()] if in_batch else [one(await queue.receive()) for _ in range(4)]
        tasks = [asyncio.create_task(work) for work in works]
        await asyncio.sleep(1.0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert await offsets(queue, 6) == list(range(6))


async def test_records_that_were_counted_in_advance_after_a_crash_and_are_delivered_again(
    env: VirtualEnvironment,
) -> None:
    """A record after the one that failed has been counted, and is not acquired any more."""
    await fill(env, *[b"k"] * 3)
    options: dict[str, Any] = {"mode": Mode.FAILOVER, "dead_letter": DeadLetter(1), "nack_backoff": 1.0}
    async with opened(env, "ann", config={"close_timeout": 1.0}, **options) as queue:
        await queue.receive()
        await asyncio.sleep(1.0)
        cut_off(env, "ann")
    async with opened(env, "bob", **options) as queue:
        first, _second = await queue.receive(), await queue.receive()
        await first.nack(delay=1.0)
        await asyncio.sleep(5.0)
        assert await offsets(queue, 1) == [0]


# --- room and slots ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comes_back", [False, True])
async def test_records_follow_when_parked_ones_have_found_their_consumer(
    env: VirtualEnvironment, comes_back: bool
) -> None:
    await fill(env, *LOW[:8], *HIGH[:8])
    async with queue_of(env, Mode.KEY_SHARED, receiver_queue=4) as queue:
        low = queue.consumer("low", key_ranges=[(0, 32767)], receiver_queue=1)
        high = queue.consumer("high", key_ranges=[(32768, 65535)])
        waiting = asyncio.create_task(high.receive())
        await asyncio.sleep(1.0)
        began = asyncio.get_running_loop().time()
        if comes_back:
            await low.aclose()
            queue.consumer("low", key_ranges=[(0, 32767)])
        else:
            for _ in range(8):
                await (await low.receive()).ack()
        await waiting
        assert asyncio.get_running_loop().time() - began < 5.0


async def test_a_failed_record_without_a_consumer_delays_no_other(env: VirtualEnvironment) -> None:
    """Its key is in a gap of the hash ranges."""
    await fill(env, LOW[0], HIGH[0])
    done: list[bytes | None] = []

    async def fails_once(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise ValueError("once")
        done.append(delivery.key)

    async with queue_of(env, Mode.KEY_SHARED) as queue:
        low = queue.consumer("low", key_ranges=[(0, 32767)], concurrency=2)
        high = queue.consumer("high", key_ranges=[(32768, 65535)], concurrency=2)
        runs = [asyncio.create_task(low.run(fails_once))]
        await asyncio.sleep(0.5)
        await low.aclose()
        runs.append(asyncio.create_task(high.run(fails_once)))
        await asyncio.sleep(60.0)
        assert done == [HIGH[0]]
    await asyncio.gather(*runs)


async def test_a_failed_record_in_the_inbox_of_a_busy_consumer_delays_no_other(
    env: VirtualEnvironment,
) -> None:
    await fill(env, *[b"k"] * 8)
    done: list[int] = []

    def handler(seconds: float) -> Any:
        async def handle(delivery: Delivery) -> None:
            if delivery.attempt == 1 and delivery.record.offset > 0:
                raise ValueError("once")
            await asyncio.sleep(seconds)
            done.append(delivery.record.offset)

        return handle

    async with queue_of(env, Mode.SHARED) as queue:
        slow, fast = queue.consumer("slow", concurrency=1), queue.consumer("fast", concurrency=2)
        runs = [asyncio.create_task(slow.run(handler(1000.0))), asyncio.create_task(fast.run(handler(0.0)))]
        await asyncio.sleep(120.0)
        for task in runs:
            task.cancel()
        await asyncio.wait(runs)
    assert len(done) >= 2  # of 1, 3, 5 and 7, which `fast` had and has room for


# --- on demand ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["handler", "renewed", "paused"])
async def test_a_queue_without_demand_is_not_stuck_while_it_works(env: VirtualEnvironment, how: str) -> None:
    """`receiver_queue=0`, and no task waits for a record for longer than `max_poll_interval`."""
    await fill(env, *[b"k"] * 10)
    config = ConsumerConfig(max_poll_interval=30.0, auto_offset_reset="earliest")
    done: list[int] = []

    async def work(delivery: Delivery) -> None:
        await asyncio.sleep(100.0)
        done.append(delivery.record.offset)

    async with queue_of(env, Mode.SHARED, receiver_queue=0, concurrency=1, config=config) as queue:
        if how == "handler":
            running = asyncio.create_task(queue.run(work))
            await asyncio.sleep(350.0)
            assert done == [0, 1, 2]
            running.cancel()
            await asyncio.wait([running])
            return
        delivery = await queue.receive()
        if how == "paused":
            queue.pause()
        for _ in range(10):
            await asyncio.sleep(10.0)
            assert how == "paused" or await delivery.renew()
        assert await delivery.ack()
