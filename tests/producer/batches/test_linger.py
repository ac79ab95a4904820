"""How long a record waits for others: with a caller that awaits its result, and without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup import Interceptor
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.producer import Producer
from tests.producer.support import TOPIC, now, produced, stored, writing


@asynccontextmanager
async def by_default(**config: Any) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    """Yield a cluster of one node and a producer whose `linger` is None; it knows the topic and has an id."""
    async with writing(nodes=1, **{"linger": None, **config}) as (cluster, producer):
        for partition in range(3):
            await producer.send(TOPIC, b"warm up", partition=partition)
        cluster.history.clear()
        yield cluster, producer


def batches(cluster: EmbeddedCluster) -> list[list[int]]:
    """Return the partitions of each Produce request."""
    return [
        [part.index for topic in each.request.topic_data for part in topic.partition_data]
        for each in produced(cluster)
    ]


async def test_a_caller_that_waits_does_not_wait_for_others() -> None:
    async with by_default() as (cluster, producer):
        start = now()
        for number in range(100):
            await producer.send(TOPIC, b"%d" % number, partition=0)
        assert now() == start
        assert len(produced(cluster)) == 100
        assert stored(cluster, 0)[1:] == [b"%d" % number for number in range(100)]


async def test_callers_of_a_turn_share_a_request() -> None:
    async with by_default() as (cluster, producer):

        async def call() -> None:
            for _ in range(10):
                await producer.send(TOPIC, b"x", partition=0)

        start = now()
        await asyncio.gather(*(call() for _ in range(20)))
        assert now() == start
        assert len(produced(cluster)) == 10


@pytest.mark.parametrize(("delay", "sent_after"), [(0.002, 0.002), (1.0, 0.006)])
async def test_it_lingers_while_a_request_of_its_partition_is_in_flight(
    delay: float, sent_after: float
) -> None:
    """Until its response, and no longer than 5 ms."""
    async with by_default() as (cluster, producer):
        cluster.faults.on("Produce").delay(delay)
        start = now()
        first = asyncio.create_task(producer.send(TOPIC, b"first", partition=0))
        await asyncio.sleep(0.001)
        second = asyncio.create_task(producer.send(TOPIC, b"second", partition=0))
        third = asyncio.create_task(producer.send(TOPIC, b"third", partition=0))
        other = asyncio.create_task(producer.send(TOPIC, b"other", partition=1))
        await asyncio.gather(first, second, third, other)
        assert batches(cluster) == [[0], [1], [0]]
        assert produced(cluster)[-1].time == pytest.approx(start + max(delay, sent_after))


async def test_records_of_which_nothing_is_awaited_linger() -> None:
    async with by_default() as (cluster, producer):
        start = now()
        await producer.enqueue(TOPIC, b"x", partition=0)
        await producer.enqueue_all([(TOPIC, b"y", None, (), 1, None)])
        future = producer.send_nowait(TOPIC, b"z", partition=2)
        await future
        assert now() == pytest.approx(start + 0.005)
        (partitions,) = batches(cluster)
        assert sorted(partitions) == [0, 1, 2]


async def test_a_caller_that_waits_takes_the_lingering_records_of_its_partition_along() -> None:
    async with by_default() as (cluster, producer):
        start = now()
        for partition in (0, 1):
            await producer.enqueue(TOPIC, b"x", partition=partition)
        await producer.send(TOPIC, b"y", partition=0)
        assert now() == start
        assert batches(cluster) == [[0]]
        assert stored(cluster, 0)[1:] == [b"x", b"y"]


@pytest.mark.parametrize("interceptors", [(), (Interceptor(),)])
async def test_without_a_key_and_with_interceptors(interceptors: tuple[Interceptor, ...]) -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, 3)
        async with Producer(cluster.bootstrap_servers, interceptors=interceptors) as producer:
            await producer.send(TOPIC, b"warm up")
            start = now()
            for _ in range(20):
                await producer.send(TOPIC, b"x")
            assert now() == start
            await producer.send_nowait(TOPIC, b"x")
            assert now() == pytest.approx(start + 0.005)


async def test_an_explicit_linger_holds_for_all() -> None:
    async with by_default(linger=0.25) as (cluster, producer):
        start = now()
        await producer.send(TOPIC, b"x", partition=0)
        assert now() == pytest.approx(start + 0.25)
        assert batches(cluster) == [[0]]


async def test_records_of_a_topic_that_is_looked_up() -> None:
    async with by_default() as (cluster, producer):
        cluster.create_topic("other", 1)
        start = now()
        await producer.send("other", b"x")
        assert now() == start


async def test_the_linger_of_a_configuration() -> None:
    assert ProducerConfig().effective_linger == 0.005
    assert ProducerConfig(linger=0.0).effective_linger == 0.0
    assert ProducerConfig(chunking=True).effective_linger == 0.0
    config, _ = ProducerConfig.from_properties({"linger.ms": "5"})
    assert config.linger == 0.005
    config, _ = ProducerConfig.from_properties({"acks": "all"})
    assert config.linger is None
