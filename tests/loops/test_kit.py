"""The fixtures of the pytest plugin in tests on uvloop, and in tests that start tasks eagerly."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.testing import KafkaServer
from tests.loops.stories import CLASSIC, LIMIT

pytestmark = [pytest.mark.asyncio(loop_factories=["eager", "uvloop"]), pytest.mark.kafka(topics={"t": 2})]


async def write_and_read(kafka: EmbeddedCluster | KafkaServer, topic: str) -> None:
    """Send a record to each of two partitions, and read both with a group."""
    config = ConsumerConfig(auto_offset_reset="earliest", **CLASSIC)
    values = set[bytes | None]()
    async with (
        asyncio.timeout(LIMIT),
        Producer(kafka.bootstrap_servers) as producer,
        ConsumerGroup(kafka.bootstrap_servers, topic, config) as group,
    ):
        for partition in range(2):
            await producer.send(topic, b"%d" % partition, partition=partition)
        async for record in group.records(topic):
            values.add(record.value)
            if len(values) == 2:
                break
    assert {record.value for record in kafka.records(topic)} == values == {b"0", b"1"}


async def test_a_cluster_on_the_loop_of_the_test(kafka_cluster: EmbeddedCluster) -> None:
    await write_and_read(kafka_cluster, "t")


async def test_a_cluster_in_a_thread(kafka_server: KafkaServer) -> None:
    await write_and_read(kafka_server, "t")


async def test_a_cluster_of_the_session(
    session_kafka_server: KafkaServer, request: pytest.FixtureRequest
) -> None:
    topic = f"kit-{'uvloop' if 'uvloop' in request.node.name else 'eager'}"
    session_kafka_server.create_topic(topic, 2)
    await write_and_read(session_kafka_server, topic)
