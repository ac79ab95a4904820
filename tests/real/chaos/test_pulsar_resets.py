"""Consumers on a real Pulsar whose connections are reset fifty times under load: nothing is lost, and no permit."""

from __future__ import annotations

import asyncio
import random
import uuid
from contextlib import AsyncExitStack

import pytest

from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from tests.apache_pulsar import RunningPulsar
from tests.stories.proxy import TcpProxy

pytestmark = [pytest.mark.real, pytest.mark.full]

MESSAGES = 5_000
RESETS = 50
PARTITIONS = 2
LIMIT = 60.0
NACKED = 20
"""Of as many messages one is negatively acknowledged at its first delivery."""


async def write(server: RunningPulsar, topic: str) -> None:
    """Send numbers with keys, a few at a time, in batches of one key."""
    config = PulsarProducerConfig(key_based_batching=True, batching_max_delay=0.005)
    async with PulsarProducer(server.service_url, topic, config) as producer:
        for number in range(MESSAGES):
            await producer.enqueue(b"%d" % number, key=b"key-%d" % (number % 50))
            if number % 20 == 0:
                await asyncio.sleep(0.02)
        await producer.flush()


async def work(consumer: PulsarTopicConsumer, seen: set[bytes | None]) -> None:
    """Acknowledge every message, some of them at their second delivery."""
    nacked: set[bytes | None] = set()
    async for message in consumer:
        if int(message.value or b"0") % NACKED == 0 and message.value not in nacked:
            nacked.add(message.value)
            consumer.nack(message, 0.05)
        else:
            seen.add(message.value)
            consumer.ack(message)


async def reset(proxies: list[TcpProxy], rng: random.Random) -> None:
    """Reset the connections of one client after the other, while it has some."""
    done = 0
    while done < RESETS:
        await asyncio.sleep(rng.uniform(0.02, 0.15))
        done += bool(rng.choice(proxies).reset_all())


class Watched:
    """A topic, and what its broker knows of the consumers."""

    def __init__(self, server: RunningPulsar, topic: str, consumers: list[PulsarTopicConsumer]) -> None:
        self._admin = server.admin
        self._topic = topic
        self._consumers = consumers

    async def differences(self) -> list[str]:
        """Return what is not acknowledged, and where the permits of a consumer are not those that the broker has of it."""
        found = []
        for number in range(PARTITIONS):
            stats = (await self._admin.stats(f"{self._topic}-partition-{number}"))["subscriptions"]["s"]
            found += [
                f"{stats[name]} {name}" for name in ("msgBacklog", "unackedMessages") if stats.get(name)
            ]
            there = {each["consumerName"]: each["availablePermits"] for each in stats["consumers"]}
            here = {
                str(each.config.consumer_name): part.permits.open
                for each in self._consumers
                for part in each.partitions
                if part.partition == number
            }
            if here != there:
                found.append(f"permits in partition {number}: {here}, and by the broker {there}")
        return found

    async def settled(self) -> None:
        """Wait until there are none."""
        async with asyncio.timeout(LIMIT):
            while found := await self.differences():
                print(found)
                await asyncio.sleep(0.3)


@pytest.mark.parametrize(
    ("kind", "count"), [("shared", 2), ("key_shared", 2), ("failover", 2), ("exclusive", 1)]
)
async def test_fifty_resets_under_load(apache_pulsar: RunningPulsar, kind: str, count: int) -> None:
    rng, topic = random.Random(), f"persistent://public/default/resets-{uuid.uuid4().hex[:8]}"
    await apache_pulsar.admin.create_partitioned_topic(topic, PARTITIONS)
    await apache_pulsar.admin.create_subscription(topic, "s", "earliest")
    seen: set[bytes | None] = set()
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(TcpProxy()) for _ in range(count)]
        consumers = []
        for number, proxy in enumerate(proxies):
            config = PulsarConfig(connector=proxy.connect, retry_backoff_max=0.5)
            client = await stack.enter_async_context(PulsarClient(apache_pulsar.service_url, config))
            made = PulsarConsumerConfig(
                consumer_name=f"c{number}", receiver_queue_size=100, ack_group_time=0.02
            )
            consumer = client.subscribe(topic, "s", type=kind, config=made)
            consumers.append(await stack.enter_async_context(consumer))
        tasks = [start_task(work(each, seen)) for each in consumers]
        try:
            await asyncio.gather(write(apache_pulsar, topic), reset(proxies, rng))
            async with asyncio.timeout(LIMIT):
                while len(seen) < MESSAGES:
                    await asyncio.sleep(0.1)
            await Watched(apache_pulsar, topic, consumers).settled()
        finally:
            await cancel_and_wait(*tasks)
    assert seen == {b"%d" % number for number in range(MESSAGES)}
