"""Several consumers of one work queue in one process: priorities, permits, hash ranges."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncgroup import ConfigError, Producer, UsageError, WorkQueue
from asyncgroup.hashing.key_ranges import key_hash
from asyncgroup.workqueue import Delivery, DeliveryState, Mode, QueueConsumer
from tests.stories.virtual import VirtualEnvironment


@contextlib.asynccontextmanager
async def queue_of(
    env: VirtualEnvironment, mode: Mode = Mode.SHARED, **options: Any
) -> AsyncIterator[WorkQueue]:
    given = {"initial_position": "earliest", "nack_backoff": 1.0} | options
    async with WorkQueue(env.bootstrap_servers, "g", "orders", mode=mode, **given) as queue:
        yield queue


async def fill(env: VirtualEnvironment, count: int, keys: int = 10) -> None:
    async with Producer(env.bootstrap_servers) as producer:
        for number in range(count):
            await producer.send("orders", b"%d" % number, key=b"k%d" % (number % keys), partition=0)


async def take(consumer: QueueConsumer, count: int) -> list[Delivery]:
    return [await consumer.receive() for _ in range(count)]


async def test_a_lower_priority_gets_what_the_higher_ones_have_no_permits_for(
    env: VirtualEnvironment,
) -> None:
    await fill(env, 10)
    async with queue_of(env) as queue:
        first = queue.consumer("first", receiver_queue=2)
        second = queue.consumer("second", receiver_queue=2)
        lower = queue.consumer("lower", priority=1, receiver_queue=3)
        got = {each.name: await take(each, each._local.permits) for each in (lower, first, second)}
        offsets = {name: [delivery.record.offset for delivery in taken] for name, taken in got.items()}
        assert offsets == {"first": [0, 2], "second": [1, 3], "lower": [4, 5, 6]}


async def test_each_record_is_handled_once_and_slow_consumers_do_not_delay_others(
    env: VirtualEnvironment,
) -> None:
    await fill(env, 60)
    done: list[tuple[str, int]] = []

    def handler(name: str, seconds: float) -> Any:
        async def handle(delivery: Delivery) -> None:
            await asyncio.sleep(seconds)
            done.append((name, delivery.record.offset))

        return handle

    async with queue_of(env) as queue:
        fast, slow = (
            queue.consumer("fast", receiver_queue=5),
            queue.consumer("slow", receiver_queue=5, concurrency=1),
        )
        runs = [
            asyncio.create_task(fast.run(handler("fast", 0.1))),
            asyncio.create_task(slow.run(handler("slow", 20.0))),
        ]
        while len(done) < 50:
            await asyncio.sleep(1.0)
        await slow.aclose()
        while len({offset for _, offset in done}) < 60:
            await asyncio.sleep(1.0)
        assert queue.statistics().counts.acked == 60
    await asyncio.gather(*runs)
    assert sorted(offset for _, offset in done) == list(range(60))
    assert sum(name == "slow" for name, _ in done) <= 3


async def test_hash_ranges_share_out_the_keys_and_a_slow_one_parks_only_its_own(
    env: VirtualEnvironment,
) -> None:
    await fill(env, 40)
    async with queue_of(env, Mode.KEY_SHARED) as queue:
        low = queue.consumer("low", key_ranges=[(0, 32767)], receiver_queue=1)
        high = queue.consumer("high", key_ranges=[(32768, 65535)])
        expected = [n for n in range(40) if key_hash(b"k%d" % (n % 10)) > 32767]
        seen: list[int] = []
        for _ in expected:
            delivery = await high.receive()
            seen.append(delivery.record.offset)
            await delivery.ack()
        assert sorted(seen) == expected
        mine = await low.receive()
        assert key_hash(mine.key or b"") <= 32767
        assert queue.statistics().queued > 0
        await low.aclose()  # its keys have no consumer now; what it has acquired may still be ended
        assert bool(await mine.ack())
        with pytest.raises(ConfigError, match=r"\[0, 9\] belongs to|overlap"):
            queue.consumer("third", key_ranges=[(0, 40000)])
        low = queue.consumer("low", key_ranges=[(0, 32767)])
        for _ in range(40 - len(expected) - 1):
            await (await low.receive()).ack()
        assert queue.statistics().queued == 0


async def test_the_ack_timeout_counts_from_the_hand_out_of_the_consumer(env: VirtualEnvironment) -> None:
    await fill(env, 3)
    async with queue_of(env, ack_timeout=10.0) as queue:
        consumer = queue.consumer("one", receiver_queue=10)
        first = await consumer.receive()
        await asyncio.sleep(8.0)
        second = await consumer.receive()
        await asyncio.sleep(4.0)
        assert (first.state, second.state) == (DeliveryState.EXPIRED, DeliveryState.ACQUIRED)
        third = await consumer.receive()
        await asyncio.sleep(7.0)
        assert (second.state, third.state) == (DeliveryState.EXPIRED, DeliveryState.ACQUIRED)


async def test_a_queue_is_read_by_itself_or_by_its_consumers(env: VirtualEnvironment) -> None:
    await fill(env, 3)
    async with queue_of(env) as queue:
        queue.consumer("one")
        for call in (queue.receive(), queue.batch_receive(), queue.run(_handle)):
            with pytest.raises(UsageError, match=r"it has consumers \(queue\.consumer\(\)\), read those"):
                await call
        with pytest.raises(UsageError, match="it has consumers"):
            aiter(queue)
    async with queue_of(env) as queue:
        await (await anext(aiter(queue))).ack()
        with pytest.raises(UsageError, match="the queue itself is read already"):
            queue.consumer("one")
    async with queue_of(env, Mode.FAILOVER) as queue:
        queue.consumer("one")
        with pytest.raises(ConfigError, match="for several consumers of one queue"):
            queue.consumer("two")


async def _handle(delivery: Delivery) -> None:
    raise AssertionError(delivery)


async def test_a_closed_queue_ends_its_consumers_and_loses_nothing_of_their_inboxes(
    env: VirtualEnvironment,
) -> None:
    await fill(env, 20)
    async with queue_of(env) as queue:
        consumer = queue.consumer("one", receiver_queue=10)
        for _ in range(5):
            await (await consumer.receive()).ack()
    assert [delivery async for delivery in consumer] == []
    async with queue_of(env) as queue:
        rest = [(await queue.receive()).record.offset for _ in range(15)]
    assert rest == list(range(5, 20))


async def test_a_close_by_another_task_waits_for_what_a_consumer_has_acquired(
    env: VirtualEnvironment,
) -> None:
    await fill(env, 2)
    async with queue_of(env) as queue:
        consumer = queue.consumer("one", receiver_queue=1)
        took = asyncio.Event()

        async def work() -> bool:
            delivery = await consumer.receive()
            took.set()
            await asyncio.sleep(5.0)
            return bool(await delivery.ack())

        working = asyncio.create_task(work())
        await took.wait()
        await queue.aclose()
        assert working.done()
        assert await working
