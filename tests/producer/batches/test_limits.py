"""Limits besides buffer memory: records, records and bytes of a partition, a budget of several producers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import ClosedError, ConfigError, InvalidRecordError, QueueFull
from asyncgroup.memory.buffer_memory import BufferMemory
from asyncgroup.memory.pending_limits import PartitionLimits
from asyncgroup.model import RecordMetadata, TopicPartition
from asyncgroup.producer import MemoryBudget, Producer
from tests.producer.support import TOPIC, now, stored, writing

TP = TopicPartition("t", 0)
BYTES: dict[str, Any] = {"max_pending_bytes_per_partition": 700}
RECORDS: dict[str, Any] = {"max_pending_records_per_partition": 2}
LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"max_pending_records": 2}, r"max_pending_records=2: 2 records in use"),
    (RECORDS, r"orders-1: max_pending_records_per_partition=2: 2 records in use"),
    (BYTES, r"orders-1: max_pending_bytes_per_partition=700: 642 bytes in use"),
    ({"buffer_bytes": 700}, r"buffer_bytes=700: 642 bytes in use"),
    ({"buffer_bytes": 700, **RECORDS}, r"in use"),
]


@asynccontextmanager
async def held(**config: Any) -> AsyncIterator[tuple[EmbeddedCluster, Producer, Callable[[], None]]]:
    """Yield a producer whose Produce requests are held until the returned function is called, for a known topic."""
    async with writing(**config) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        fault = cluster.faults.on("Produce", times=None).hold()
        try:
            yield cluster, producer, fault.release
        finally:
            fault.release()


def nowait(producer: Producer, partition: int = 1) -> asyncio.Future[RecordMetadata]:
    return producer.send_nowait(TOPIC, b"." * 300, partition=partition)


@pytest.mark.parametrize(("config", "message"), LIMITS)
async def test_each_limit(config: dict[str, Any], message: str) -> None:
    async with held(**config) as (cluster, producer, release):
        futures = [nowait(producer) for _ in range(2)]
        with pytest.raises(QueueFull, match=f"no room for 321 bytes: .*{message}"):
            nowait(producer)
        calls: list[Coroutine[Any, Any, Any]] = [
            producer.send(TOPIC, b"." * 300, partition=1),
            producer.enqueue(TOPIC, b"." * 300, partition=1),
        ]
        waiting = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(1)
        assert not any(task.done() for task in waiting)
        release()
        await asyncio.gather(*futures, *waiting)
        await producer.flush()
        assert len(stored(cluster, 1)) == 4
        assert "0 of" in repr(producer)


@pytest.mark.parametrize("config", [RECORDS, BYTES])
async def test_a_full_partition_does_not_hold_up_others(config: dict[str, Any]) -> None:
    async with held(buffer_bytes=2000, **config) as (_, producer, release):
        futures = [nowait(producer), nowait(producer)]
        stuck = [asyncio.create_task(producer.send(TOPIC, b"." * 300, partition=1)) for _ in range(50)]
        await asyncio.sleep(1)
        futures.append(nowait(producer, partition=2))
        assert len({producer.send_nowait(TOPIC, b"x", key=b"k")}) == 1
        release()
        await asyncio.gather(*futures, *stuck)


async def test_records_without_a_key_go_to_partitions_with_room() -> None:
    async with held(partitions=3, max_pending_records_per_partition=2) as (_, producer, release):
        futures = [producer.send_nowait(TOPIC, b"x") for _ in range(6)]
        with pytest.raises(QueueFull, match="max_pending_records_per_partition"):
            producer.send_nowait(TOPIC, b"x")
        release()
        places = [future.partition for future in await asyncio.gather(*futures)]
        assert sorted(places) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("config", [config for config, _ in LIMITS])
async def test_a_cancelled_caller_gives_back_what_it_held(config: dict[str, Any]) -> None:
    async with held(**config) as (cluster, producer, release):
        futures = [nowait(producer) for _ in range(2)]
        waiting = [asyncio.create_task(producer.send(TOPIC, b"." * 301, partition=1)) for _ in range(8)]
        await asyncio.sleep(1)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert "0 callers" in repr(producer)
        release()
        await asyncio.gather(*futures)
        assert "0 of" in repr(producer)
        await asyncio.gather(nowait(producer), nowait(producer))
        assert stored(cluster, 1) == [b"." * 300] * 4, "what was cancelled was not accepted"


async def test_a_record_that_is_not_accepted_gives_back_its_room() -> None:
    async with writing(max_pending_records_per_partition=1, partitioner="manual") as (_, producer):
        for _ in range(3):
            with pytest.raises(InvalidRecordError, match="manual"):
                await producer.send(TOPIC, b"x")
            with pytest.raises(InvalidRecordError, match="value='text'"):
                await producer.send(TOPIC, "text", partition=0)  # type: ignore[arg-type]
            await producer.send(TOPIC, b"x", partition=0)


async def test_records_that_wait_for_the_metadata_count_when_they_are_routed() -> None:
    async with writing(max_pending_records_per_partition=1) as (cluster, producer):
        cluster.faults.on("Metadata").delay(2.0)
        futures = [producer.send_nowait("other", b"x", key=b"k") for _ in range(3)]
        cluster.create_topic("other", 3)
        fault = cluster.faults.on("Produce").hold()
        await asyncio.sleep(10)
        with pytest.raises(QueueFull, match="max_pending_records_per_partition=1: 3 records in use"):
            producer.send_nowait("other", b"x", key=b"k")
        fault.release()
        await asyncio.gather(*futures)
        await producer.send("other", b"x", key=b"k")


async def test_a_topic_that_becomes_known_while_a_caller_waits_for_memory() -> None:
    """Regression test: its record was not counted in its partition, and the sender failed when it was done."""
    async with writing(buffer_bytes=400, max_pending_records_per_partition=1) as (cluster, producer):
        cluster.create_topic("other", 1)
        cluster.faults.on("Metadata").delay(2.0)
        fault = cluster.faults.on("Produce").hold()
        first = producer.send_nowait("other", b"." * 300)
        waiting = [asyncio.create_task(producer.send("other", b"." * 300)) for _ in range(3)]
        await asyncio.sleep(5)
        fault.release()
        places = await asyncio.gather(first, *waiting)
        assert sorted(place.offset for place in places) == [0, 1, 2, 3]


async def test_closing_fails_callers_that_wait_for_a_partition() -> None:
    async with held(max_pending_records_per_partition=1) as (_, producer, release):
        first = nowait(producer)
        waiting = asyncio.create_task(producer.send(TOPIC, b"x", partition=1))
        await asyncio.sleep(1)
        closing = asyncio.create_task(producer.aclose())
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await producer.send(TOPIC, b"x", partition=1)
        release()
        await closing
        assert (await first).offset == 0


async def test_no_batch_lingers_while_a_caller_waits_for_its_partition() -> None:
    async with writing(linger=50.0, max_pending_records_per_partition=1, delivery_timeout=200.0) as (
        _,
        producer,
    ):
        await producer.send(TOPIC, b"x", partition=0)
        start = now()
        await asyncio.gather(*(producer.enqueue(TOPIC, b"x", partition=0) for _ in range(3)))
        assert now() < start + 1


# --- a budget of several producers ----------------------------------------------------------------------------------


@asynccontextmanager
async def sharing(
    budget: MemoryBudget, count: int = 2, **config: Any
) -> AsyncIterator[tuple[EmbeddedCluster, list[Producer]]]:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 2)
        settings = ProducerConfig(**{"linger": 0.0, **config})
        producers = [Producer(cluster.bootstrap_servers, settings, memory=budget) for _ in range(count)]
        for producer in producers:
            await producer.__aenter__()
            await producer.send(TOPIC, b"warm up", partition=0)
        try:
            yield cluster, producers
        finally:
            for producer in producers:
                await producer.aclose()


async def test_producers_share_a_budget_first_come_first_served() -> None:
    budget = MemoryBudget(700)
    async with sharing(budget) as (cluster, (one, other)):
        fault = cluster.faults.on("Produce", times=None).hold()
        futures = [nowait(one), nowait(one)]
        with pytest.raises(QueueFull, match="the memory budget's limit=700: 642 bytes in use"):
            nowait(other)
        order: list[int] = []

        async def write(number: int, producer: Producer) -> None:
            await producer.enqueue(TOPIC, b"." * 600, partition=1)
            order.append(number)

        waiting = [asyncio.create_task(write(n, (one, other)[n % 2])) for n in range(6)]
        await asyncio.sleep(1)
        assert repr(budget) == "<MemoryBudget 642 of 700 bytes, 6 callers waiting>"
        waiting[2].cancel()
        fault.release()
        await asyncio.wait([*futures, *waiting])
        assert order == [0, 1, 3, 4, 5]
        await asyncio.gather(one.flush(), other.flush())
        assert (budget.used, budget.waiting) == (0, 0)


async def test_closing_one_producer_leaves_the_waiters_of_others() -> None:
    budget = MemoryBudget(700)
    async with sharing(budget) as (cluster, (one, other)):
        fault = cluster.faults.on("Produce", times=None).hold()
        futures = [nowait(other), nowait(other)]
        mine, theirs = (
            asyncio.create_task(producer.send(TOPIC, b"." * 300, partition=1)) for producer in (one, other)
        )
        await asyncio.sleep(1)
        await one.aclose()
        assert isinstance(mine.exception(), ClosedError)
        assert not theirs.done()
        fault.release()
        await asyncio.gather(*futures, theirs)
        assert budget.used == 0


async def test_a_producer_does_not_linger_while_another_one_waits() -> None:
    budget = MemoryBudget(700)
    async with sharing(budget, linger=50.0, delivery_timeout=200.0) as (_, (one, other)):
        start = now()
        futures = [nowait(one), nowait(one)]
        await other.enqueue(TOPIC, b"." * 300, partition=1)
        assert now() < start + 1
        await asyncio.gather(*futures)


async def test_a_budget_of_another_type_is_refused() -> None:
    for limit in (0, -1, 1.0, None):
        with pytest.raises(ConfigError, match="limit="):
            MemoryBudget(limit)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"memory=.*None or a MemoryBudget"):
        Producer("localhost:9092", memory=700)  # type: ignore[arg-type]


# --- units ----------------------------------------------------------------------------------------------------------


async def test_a_release_wakes_only_the_waiters_that_fit() -> None:
    memory = BufferMemory(100)
    memory.try_reserve(100)
    waiting = [asyncio.create_task(memory.reserve(40)) for _ in range(1000)]
    await asyncio.sleep(0)
    memory.release(100)
    assert (memory.used, memory.waiting) == (80, 998)
    for task in waiting[2:]:
        task.cancel()
    await asyncio.wait(waiting)
    assert (memory.used, memory.waiting) == (80, 0)


async def test_limits_of_an_idle_partition_take_no_memory() -> None:
    limits = PartitionLimits(2, 100)
    assert limits.of(TP).try_reserve(60)
    assert limits.is_full(TP, 60)
    limits.release(TP, 60)
    assert repr(limits) == "<PartitionLimits 0 partitions, 0 callers waiting>"
