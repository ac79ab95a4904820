"""Consumers of a pattern while topics are created and deleted, and connections end, by random seeds, in virtual time."""

from __future__ import annotations

import asyncio
import random
import re

import pytest

from asyncgroup.model import clock_of_loop
from asyncgroup.pulsar import PulsarClient, PulsarProducer, PulsarProducerConfig, PulsarTopicConsumer
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.pulsar_broker.internals import runtime_of

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

STEPS = 60
TOPICS = 6


class Run:
    """What happens in one run, and what has to arrive."""

    def __init__(self, seed: int, pulsar: EmbeddedPulsar, client: PulsarClient) -> None:
        self.rng = random.Random(seed)
        self.pulsar = pulsar
        self.client = client
        self.wanted: dict[str, list[bytes]] = {}
        self.found: dict[str, list[bytes | None]] = {}
        self._number = 0

    async def step(self) -> None:
        """Create, delete or write to a topic, or cut all connections."""
        name = f"orders-{self.rng.randrange(TOPICS)}"
        action = self.rng.choice(["create", "delete", "produce", "produce", "produce", "cut", "unload"])
        if action == "create" and name not in self.wanted:
            self.pulsar.create_topic(name, self.rng.choice([0, 0, 2]))
            self.wanted[name] = []
        elif action == "delete" and name in self.wanted:
            self.pulsar.delete_topic(name)
            del self.wanted[name]
            self.found.pop(name, None)
        elif action == "produce" and name in self.wanted:
            await self._produce(name)
        elif action == "cut":
            for node in runtime_of(self.pulsar).nodes.values():
                node.cut()
        elif action == "unload" and name in self.wanted:
            self.pulsar.unload(name)
        await asyncio.sleep(self.rng.choice([0, 0.01, 0.3, 3]))

    async def _produce(self, name: str) -> None:
        config = PulsarProducerConfig(batching=self.rng.random() < 0.5)
        values = [b"%d" % (self._number + number) for number in range(self.rng.randrange(1, 5))]
        self._number += len(values)
        async with PulsarProducer(self.client, name, config, clock=clock_of_loop()) as producer:
            await asyncio.gather(*(producer.send(value, key=value.decode()) for value in values))
        self.wanted[name] += values

    async def consume(self, consumer: PulsarTopicConsumer) -> None:
        """Keep and acknowledge all messages; those of topics that were deleted do not count."""
        async for message in consumer:
            name = message.topic.rpartition("/")[2]
            self.found.setdefault(name, []).append(message.value)
            consumer.ack(message)

    def is_complete(self) -> bool:
        """Whether all messages of the topics that there are have arrived."""
        return all(set(values) <= set(self.found.get(name, [])) for name, values in self.wanted.items())


@pytest.mark.parametrize("period", [60, 5])
@pytest.mark.parametrize("seed", range(6))
async def test_each_message_of_each_topic_arrives(seed: int, period: int) -> None:
    pattern = "orders-.*" if period == 60 else f"orders-(.*|{'x' * 50})"
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1", "10.0.0.2"], port=6650) as pulsar,
        PulsarClient(pulsar.service_url) as client,
        client.subscribe(re.compile(pattern), "s", type="shared") as consumer,
    ):
        run = Run(seed, pulsar, client)
        consuming = asyncio.create_task(run.consume(consumer))
        for _ in range(STEPS):
            await run.step()
        await asyncio.sleep(130)
        assert run.is_complete(), (run.wanted, run.found)
        topics = {f"persistent://public/default/{name}" for name in run.wanted}
        assert set(consumer.topics) == topics
        assert {topic.partition("-partition-")[0] for topic in await client.topics()} == topics
        assert not consumer.errors()
        consuming.cancel()
