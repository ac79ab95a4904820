"""Transactions and `read_committed` on a real Kafka: the responses of the broker, and our groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncgroup import Claim, ClientConfig, Cluster, ConsumerConfig, ConsumerGroup, Handler, Session
from asyncgroup.model import TopicPartition
from asyncgroup.offsets.fetch_offsets import fetch_offsets
from asyncgroup.wire import messages as m
from tests.broker.client import Client
from tests.group.parts import consumer_of
from tests.interop.test_foreign_clients import WAIT, in_thread
from tests.real.support import RunningKafka, new_topic
from tests.stories.transactions import STORIES, TransactionRequests

KIP_890 = 5
"""The version of EndTxn that bumps the producer epoch."""


@pytest.mark.parametrize(("story", "expected"), STORIES, ids=[story.__name__ for story, _ in STORIES])
async def test_story(
    story: Callable[[TransactionRequests], Awaitable[list[Any]]],
    expected: list[Any],
    apache_kafka: RunningKafka,
):
    host, port = apache_kafka.bootstrap_servers.split(",")[0].rsplit(":", 1)
    client = Client(*await asyncio.open_connection(host, int(port)), "test")
    try:
        ranges = (await client.ask(m.ApiVersionsRequest("tests", "1"), 3)).api_keys
        if {one.api_key: one.max_version for one in ranges}[m.EndTxnRequest.API_KEY] < KIP_890:
            pytest.skip("the expected responses are those of Kafka 4, with KIP-890")
        requests = TransactionRequests(client)
        await requests.prepare()
        assert await story(requests) == expected
    finally:
        await client.close()


class RecordingHandler(Handler):
    """Records the values and claims it gets."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.news = asyncio.Event()
        self.claims: list[Claim] = []

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        self.claims.append(claim)
        async for record in claim:
            self.values.append(record.value)
            claim.mark(record)
            self.news.set()

    async def until(self, *values: bytes) -> None:
        """Wait until there are as many values, and check that they are these."""
        async with asyncio.timeout(WAIT):
            while len(self.values) < len(values):
                self.news.clear()
                await self.news.wait()
        assert self.values == list(values)


def new_confluent_producer(servers: str, name: str) -> Any:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(WAIT)
    return producer


def produce_transaction(producer: Any, topic: str, *values: bytes) -> None:
    """Begin a transaction, produce its records and wait until they are in the log; leave it open."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT) == 0


async def until_committed(cluster: Cluster, group_id: str, tp: TopicPartition, offset: int) -> None:
    async with asyncio.timeout(WAIT):
        while True:
            found = await fetch_offsets(cluster._inner, group_id, [tp], lane="control")
            if tp in found and found[tp].offset == offset:
                return
            await asyncio.sleep(0.1)


async def test_a_group_reads_committed_records_only(apache_kafka: RunningKafka):
    """A committed, an aborted and an open transaction: the claim waits for the last one, then reads to the log's end."""
    servers = apache_kafka.bootstrap_servers
    async with Cluster(servers, ClientConfig(client_id="admin")) as cluster:
        topic = await new_topic(cluster, "committed")
        group_id = f"g-{topic}"
        producer = await in_thread(new_confluent_producer, servers, f"tx-{topic}")
        await in_thread(produce_transaction, producer, topic, b"a", b"b")
        await in_thread(producer.commit_transaction, WAIT)  # 0, 1, marker 2
        await in_thread(produce_transaction, producer, topic, b"lost", b"lost")
        await in_thread(producer.abort_transaction, WAIT)  # 3, 4, marker 5
        await in_thread(produce_transaction, producer, topic, b"c")  # 6
        handler = RecordingHandler()
        config = ConsumerConfig(
            auto_offset_reset="earliest", isolation_level="read_committed", auto_commit_interval=0.2
        )
        async with ConsumerGroup(servers, group_id, config) as group:
            running = asyncio.create_task(group.run(topic, handler))
            await handler.until(b"a", b"b")
            (claim,) = handler.claims
            async with asyncio.timeout(WAIT):
                while consumer_of(claim).last_stable_offset < 6:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            assert handler.values == [b"a", b"b"]
            assert (claim.high_watermark, claim.position, claim.lag) == (7, 6, 0)
            await until_committed(cluster, group_id, TopicPartition(topic, 0), 6)
            await in_thread(producer.commit_transaction, WAIT)  # marker 7
            await handler.until(b"a", b"b", b"c")
            await until_committed(cluster, group_id, TopicPartition(topic, 0), 8)
            await group.aclose()
            await running


def transform_in_transaction(servers: str, topic: str, producer: Any) -> Any:
    """Consume two records, produce two and send the offset, in a transaction that is left open."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"g-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    try:
        values = []
        while len(values) < 2:
            message = consumer.poll(WAIT)
            assert message is not None
            assert message.error() is None
            values.append(message.value())
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value.upper(), partition=0)
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT)
        assert producer.flush(WAIT) == 0
        return [(position.partition, position.offset) for position in positions]
    finally:
        consumer.close()


async def test_pending_transactional_offsets_delay_the_fetch(apache_kafka: RunningKafka):
    """confluent-kafka consumes and produces in a transaction; our group continues after the transaction's offset."""
    servers = apache_kafka.bootstrap_servers
    async with Cluster(servers, ClientConfig(client_id="admin")) as cluster:
        topic = await new_topic(cluster, "committed")
        tp = TopicPartition(topic, 0)
        producer = await in_thread(new_confluent_producer, servers, f"tx-{topic}")
        await in_thread(produce_transaction, producer, topic, b"a", b"b")
        await in_thread(producer.commit_transaction, WAIT)
        ((_, position),) = await in_thread(transform_in_transaction, servers, topic, producer)
        assert position in (2, 3)  # before or after the marker
        assert await fetch_offsets(cluster._inner, f"g-{topic}", [tp], lane="control") == {}
        waiting = asyncio.create_task(
            fetch_offsets(cluster._inner, f"g-{topic}", [tp], lane="control", require_stable=True)
        )
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await in_thread(producer.commit_transaction, WAIT)
        async with asyncio.timeout(WAIT):
            assert (await waiting)[tp].offset == position
        handler = RecordingHandler()
        config = ConsumerConfig(auto_offset_reset="earliest", isolation_level="read_committed")
        async with ConsumerGroup(servers, f"g-{topic}", config) as group:
            running = asyncio.create_task(group.run(topic, handler))
            await handler.until(b"A", b"B")
            await group.aclose()
            await running
