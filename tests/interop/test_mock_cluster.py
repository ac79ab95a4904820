"""This package's clients on the mock cluster of librdkafka, which answers unknown versions of ApiVersions in a format of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer as ConfluentProducer

from asyncgroup import Cluster, Consumer, ConsumerConfig, ConsumerGroup, Producer


@pytest.fixture
def servers() -> Iterator[str]:
    owner = ConfluentProducer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    brokers = owner.list_topics(timeout=30).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del owner


async def test_records_pass_through_the_mock_cluster(servers: str) -> None:
    config = ConsumerConfig(auto_offset_reset="earliest", group_protocol="consumer")
    async with asyncio.timeout(60), Cluster(servers) as cluster:
        async with Producer(cluster) as producer:
            await producer.send("orders", b"one", partition=0)
        async with Consumer(cluster) as consumer:
            read = await anext(aiter(await consumer.partition("orders", 0, "earliest")))
        async with ConsumerGroup(cluster, "billing", config) as group:
            async for record in group.records("orders"):
                assert (read.value, record.value) == (b"one", b"one")
                group.mark(record)
                await group.commit()
                break
