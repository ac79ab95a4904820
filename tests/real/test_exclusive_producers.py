"""Exclusive producers on a real Kafka: one holds the lock, one is refused, one waits."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import ExclusiveProducer, ProducerLockHeld
from asyncgroup.cluster import Cluster
from tests.real.support import RunningKafka, new_topic

pytestmark = pytest.mark.full

WAIT = 60.0


async def test_one_at_a_time(apache_kafka: RunningKafka) -> None:
    servers = apache_kafka.bootstrap_servers
    async with Cluster(servers) as cluster:
        topic = await new_topic(cluster, "exclusive")
    order: list[str] = []

    async def second() -> None:
        async with ExclusiveProducer(servers, topic, wait=True) as producer:
            order.append("second")
            assert (await producer.send(topic, b"second")).offset == 1

    async with ExclusiveProducer(servers, topic) as producer:
        waiting = asyncio.create_task(second())
        with pytest.raises(ProducerLockHeld):
            await asyncio.wait_for(ExclusiveProducer(servers, topic).__aenter__(), WAIT)
        order.append("first")
        assert (await producer.send(topic, b"first")).offset == 0
    await asyncio.wait_for(waiting, WAIT)
    assert order == ["first", "second"]
