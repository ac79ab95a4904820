"""Many consumers, subscriptions and connections at once at one embedded Pulsar: nothing is lost, and none is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.pulsar_broker.internals import runtime_of

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

TYPES = ("shared", "key_shared", "failover", "shared")
PER_TOPIC = 10
"""Subscriptions of a topic."""


class Crowd:
    """Clients with one connection each: two consumers of each subscription, the others are producers."""

    def __init__(self, pulsar: EmbeddedPulsar, stack: AsyncExitStack, subscriptions: int) -> None:
        self.pulsar = pulsar
        self.topics = [f"t{number}" for number in range(max(1, subscriptions // PER_TOPIC))]
        self.subscriptions = subscriptions
        self.received: Counter[tuple[str, bytes | None]] = Counter()
        self.producers: list[PulsarProducer] = []
        self.consumers: list[PulsarTopicConsumer] = []
        self._stack = stack

    async def _client(self) -> PulsarClient:
        return await self._stack.enter_async_context(PulsarClient(self.pulsar.service_url))

    async def consume(self, number: int) -> None:
        subscription = number % self.subscriptions
        topic, name = self.topics[subscription % len(self.topics)], f"s{subscription}"
        client = await self._client()
        config = PulsarConsumerConfig(initial_position="earliest", receiver_queue_size=100)
        kind = TYPES[subscription % len(TYPES)]
        consumer = client.subscribe(topic, name, type=kind, config=config)
        self.consumers.append(await self._stack.enter_async_context(consumer))

    async def produce(self, number: int) -> None:
        topic = self.topics[number % len(self.topics)]
        producer = (await self._client()).producer(topic)
        self.producers.append(await self._stack.enter_async_context(producer))

    async def receive(self, consumer: PulsarTopicConsumer) -> None:
        async for message in consumer:
            consumer.ack(message)
            self.received[consumer.subscription, message.value] += 1

    async def send(self) -> None:
        values = enumerate(self.producers)
        await asyncio.gather(*(each.send(b"%d" % number, key=f"k{number}") for number, each in values))


@pytest.mark.parametrize(
    ("consumers", "subscriptions", "connections"),
    [
        pytest.param(60, 30, 150, id="few"),
        pytest.param(1000, 500, 5000, id="many", marks=pytest.mark.soak),
    ],
)
async def test_a_crowd(consumers: int, subscriptions: int, connections: int) -> None:
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650, history_limit=0) as pulsar,
        AsyncExitStack() as stack,
    ):
        crowd = Crowd(pulsar, stack, subscriptions)
        for number in range(consumers):
            await crowd.consume(number)
        for number in range(connections - consumers):
            await crowd.produce(number)
        reading = [asyncio.create_task(crowd.receive(each)) for each in crowd.consumers]
        await crowd.send()
        expected = (connections - consumers) * subscriptions // len(crowd.topics)
        async with asyncio.timeout(600):
            while crowd.received.total() < expected:
                await asyncio.sleep(0.1)
        assert set(crowd.received.values()) == {1}
        await asyncio.gather(*(each.flush() for each in crowd.consumers))
        for topic in runtime_of(pulsar).namespaces.topics.values():
            assert {each.backlog for each in topic.subscriptions.values()} == {0}
        assert not any(each.errors() for each in crowd.consumers)
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
