"""`WorkQueue.seek`: open deliveries are lost, and reading goes on elsewhere, also after a restart."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from asyncgroup import ConfigError, ErrorCode, OffsetLookupError, Producer, TopicPartition, WorkQueue
from asyncgroup.errors import ClosedError
from asyncgroup.workqueue import AckOutcome, Delivery, Mode
from tests.stories.queue_members import send
from tests.stories.virtual import VirtualEnvironment

FIRST = TopicPartition("orders", 0)


async def fill(env: VirtualEnvironment, count: int) -> None:
    async with Producer(env.bootstrap_servers) as producer:
        for number in range(count):
            await producer.send("orders", b"%d" % number, partition=0, timestamp=1_000_000 + 1000 * number)


def queue_of(env: VirtualEnvironment, **options: Any) -> WorkQueue:
    return WorkQueue(env.bootstrap_servers, "g", "orders", initial_position="earliest", **options)


async def offsets(queue: WorkQueue, count: int) -> list[int]:
    found = []
    for _ in range(count):
        delivery = await queue.receive()
        found.append(delivery.record.offset)
        await delivery.ack()
    return found


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.FAILOVER])
async def test_back_and_forth(env: VirtualEnvironment, mode: Mode) -> None:
    await fill(env, 20)
    async with queue_of(env, mode=mode) as queue:
        assert await offsets(queue, 10) == list(range(10))
        acquired = await queue.receive()
        await queue.seek({FIRST: 3})
        assert await acquired.ack() is AckOutcome.LOST
        assert await offsets(queue, 3) == [3, 4, 5]
        await queue.seek({("orders", 0): 14}, inclusive=False)
        assert await offsets(queue, 2) == [15, 16]
    async with queue_of(env, mode=mode) as queue:  # what lies before the last seek counts as acknowledged
        assert await offsets(queue, 3) == [17, 18, 19]


async def test_by_name_and_time(env: VirtualEnvironment) -> None:
    await fill(env, 10)
    async with queue_of(env) as queue:
        await offsets(queue, 4)
        await queue.seek("earliest")
        assert await offsets(queue, 2) == [0, 1]
        await queue.seek(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1_006_500))
        assert await offsets(queue, 2) == [7, 8]
        await queue.seek("latest")
        await asyncio.sleep(5.0)
        assert queue.statistics().queued == 0
        await queue.seek(datetime(2100, 1, 1, tzinfo=UTC))  # no record is as new: the end
        await asyncio.sleep(5.0)
        assert queue.statistics().partitions[0].base == 10


async def test_a_partition_whose_offset_is_not_found(env: VirtualEnvironment) -> None:
    """The seek moves the other partitions; this one goes on where it is, and the error names it."""
    env.cluster.create_topic("bad", 1)
    env.cluster.produce("bad", b"0", b"1", partition=0)
    await fill(env, 4)
    async with WorkQueue(env.bootstrap_servers, "g", ["bad", "orders"], initial_position="earliest") as queue:
        await offsets(queue, 6)
        env.cluster.faults.on("ListOffsets", topic="bad", times=None).error(ErrorCode.LEADER_NOT_AVAILABLE)
        with pytest.raises(OffsetLookupError) as caught:
            await queue.seek("earliest")
        assert set(caught.value.errors) == {TopicPartition("bad", 0)}
        assert await offsets(queue, 4) == [0, 1, 2, 3]
        env.cluster.produce("bad", b"2", partition=0)
        assert await offsets(queue, 1) == [2]


async def test_bad_positions(env: VirtualEnvironment) -> None:
    async with queue_of(env) as queue:
        while not queue.statistics().partitions:
            await asyncio.sleep(0.1)
        for position, why in (
            (
                {("orders", 9): 1},
                "'orders-9' is not allowed: partitions that this consumer has: orders-0, orders-1",
            ),
            ({FIRST: -1}, "-1 is not allowed"),
            ("yesterday", "'yesterday' is not allowed"),
            (datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001
        ):
            with pytest.raises(ConfigError, match=why):
                await queue.seek(position)


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED, Mode.FAILOVER])
async def test_a_handler_that_needs_time_to_end(env: VirtualEnvironment, mode: Mode):
    """The seek cancels it, and what follows waits for its end: no record is in two handlers."""
    running: list[int] = []
    together: list[list[int]] = []

    async def handle(delivery: Delivery) -> None:
        running.append(delivery.record.offset)
        together.append(running.copy())
        try:
            await asyncio.sleep(20.0)
        finally:
            await asyncio.sleep(5.0)
            running.remove(delivery.record.offset)

    await send(env, (b"k", b"0"), (b"k", b"1"))
    async with queue_of(env, mode=mode) as queue:
        run = asyncio.create_task(queue.run(handle))
        await asyncio.sleep(5.0)
        await queue.seek("earliest")
        await asyncio.sleep(100.0)
        await queue.aclose()
        await run
    assert len(together) >= 3, "delivered again"
    assert all(len(each) == len(set(each)) for each in together)
    assert mode is Mode.SHARED or all(len(each) == 1 for each in together)


async def test_a_seek_right_after_entering(env: VirtualEnvironment):
    """It waits for the partitions, and so moves no partition before it has some."""
    await fill(env, 3)
    async with WorkQueue(env.bootstrap_servers, "g", "orders") as queue:
        await queue.seek("earliest")
        assert await offsets(queue, 3) == [0, 1, 2]
    async with queue_of(env) as queue:
        await queue.seek({FIRST: 1})
        assert await offsets(queue, 2) == [1, 2]


@pytest.mark.parametrize("key", ["orders", 0, ("orders",), FIRST._replace(partition=9)])
async def test_keys_of_a_seek(env: VirtualEnvironment, key: Any):
    async with queue_of(env) as queue:
        with pytest.raises(ConfigError, match="position="):
            await queue.seek({key: 1})


async def test_offsets_take_effect_at_the_call(env: VirtualEnvironment) -> None:
    """This is as with a claim's `seek`: a forgotten `await` loses nothing, and the call raises errors."""
    await fill(env, 10)
    async with queue_of(env) as queue:
        assert await offsets(queue, 2) == [0, 1]
        queue.seek({FIRST: 7})
        assert await offsets(queue, 1) == [7]
        queue.seek(4)
        assert await offsets(queue, 1) == [4]
        with pytest.raises(ConfigError, match="orders-9"):
            queue.seek({("orders", 9): 1})
        with pytest.raises(ConfigError, match="yesterday"):
            queue.seek("yesterday")  # type: ignore[arg-type]


async def test_a_lookup_that_is_not_awaited(env: VirtualEnvironment) -> None:
    """The seek happens, and its error goes to the readers of `errors`."""
    await fill(env, 5)
    async with queue_of(env) as queue:
        assert await offsets(queue, 5) == [0, 1, 2, 3, 4]
        errors = queue.errors()
        queue.seek("earliest")
        await asyncio.sleep(1.0)
        assert await offsets(queue, 1) == [0]
        env.cluster.faults.on("ListOffsets", times=None).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        queue.seek("earliest")
        assert isinstance(await anext(errors), OffsetLookupError)


async def test_a_queue_that_closes_during_a_seek(env: VirtualEnvironment) -> None:
    async with queue_of(env) as queue:
        await asyncio.sleep(5.0)
        env.cluster.faults.on("ListOffsets", times=None).delay(60.0)
        seeking = queue.seek("earliest")
        waiting = asyncio.create_task(seeking)
        await asyncio.sleep(1.0)
        await queue.aclose()
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            queue.seek("earliest")
