"""Dead letters with transactional copies while connections end, brokers restart and topics move: each is there exactly once.

Topics deduplicate: a copy whose receipt is lost is sent again in its transaction.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncgroup import Delivery, WorkQueue
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource

pytestmark = [pytest.mark.virtual(max_virtual_time=36_000), pytest.mark.full]

COUNT = 120
EARLIEST = PulsarConsumerConfig(initial_position="earliest")


async def disturb(pulsar: EmbeddedPulsar, rng: random.Random, *topics: str) -> None:
    """Do to the brokers what may happen to them, about each second."""
    brokers = list(pulsar.brokers)
    while True:
        await asyncio.sleep(rng.expovariate(1.0))
        match rng.randrange(4):
            case 0 | 1:
                pulsar.cut(rng.choice([None, *brokers]))
            case 2:
                pulsar.unload(rng.choice(topics), rng.choice([None, *brokers]))
            case _:
                await pulsar.restart_broker(rng.choice(brokers))


async def produce(client: PulsarClient, topic: str) -> None:
    config = PulsarProducerConfig(batching_max_messages=7, batching_max_delay=1.0)
    async with client.producer(topic, config) as producer:
        for number in range(COUNT):
            await producer.enqueue(b"%d" % number, key=f"k{number % 5}")
        await producer.flush()


async def collect(client: PulsarClient, topic: str) -> list[int]:
    """Return the values of a topic when no more come for a long time."""
    found: list[int] = []
    async with client.subscribe(topic, "check", config=EARLIEST) as consumer:
        try:
            while True:
                async with asyncio.timeout(120):
                    found.append(int((await consumer.receive()).value or b"-1"))
        except TimeoutError:
            return found


@pytest.mark.parametrize("seed", range(12))
async def test_dead_letters(seed: int) -> None:
    rng = random.Random(seed)
    mode = rng.choice(["failover", "shared", "key_shared", "exclusive"])

    async def handle(delivery: Delivery) -> None:
        await asyncio.sleep(rng.random())
        await delivery.reject("bad")

    async with EmbeddedPulsar(hosts=["10.0.0.1", "10.0.0.2"], port=6650, deduplication=True) as pulsar:
        async with PulsarClient(pulsar.service_url) as client:
            await produce(client, "in")
            source = PulsarSource(
                client, "s", "in", transactional_copies=True, dead_letter_subscription="check"
            )
            queue = WorkQueue(source, mode=mode, dead_letter=1, concurrency=20, initial_position="earliest")
            async with queue:
                running = asyncio.ensure_future(queue.run(handle))
                disturbing = asyncio.ensure_future(disturb(pulsar, rng, "in", "in-s-DLQ"))
                await asyncio.sleep(60)
                await cancel_and_wait(disturbing)
                await asyncio.sleep(120)
                assert not running.done()
            await asyncio.wait([running])
            found = await collect(client, "in-s-DLQ")
    assert sorted(found) == list(range(COUNT)), f"{mode}: {len(found)} of {COUNT}"
