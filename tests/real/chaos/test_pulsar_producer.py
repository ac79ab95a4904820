"""A producer on Pulsar whose connections are reset and whose broker is killed: what was acknowledged is stored, in order."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter, defaultdict

import pytest

from asyncgroup.errors import QueueFull
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.testing.apache_pulsar import ApachePulsar
from tests.stories.proxy import TcpProxy

pytestmark = pytest.mark.full

MESSAGES = 6_000
KEYS = 20
PARTITIONS = 2
RESETS = 15
PAUSE = 0.01
READ_LIMIT = 60.0
DUPLICATE = (-1, -1)
"""The ledger and entry of a receipt for a message that the broker has already."""


async def send_all(producer: PulsarProducer) -> dict[int, MessageId]:
    """Send numbers with keys; return the ids of their receipts."""
    sent: dict[int, asyncio.Future[MessageId]] = {}
    for number in range(MESSAGES):
        while number not in sent:
            try:
                sent[number] = producer.send_nowait(b"%d" % number, key=b"key-%d" % (number % KEYS))
            except QueueFull:
                await asyncio.sleep(PAUSE)
        if number % 10 == 0:
            await asyncio.sleep(PAUSE)
    return {number: await future for number, future in sent.items()}


async def disturb(pulsar: ApachePulsar, proxy: TcpProxy, rng: random.Random) -> None:
    """Reset the connections again and again, and kill the broker once."""
    for number in range(RESETS):
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        proxy.reset_all()
        if number == RESETS // 2:
            await asyncio.to_thread(pulsar.kill)
            await asyncio.to_thread(pulsar.start)


async def read_all(client: PulsarClient, topic: str) -> list[tuple[int, MessageId]]:
    """Return all messages of a topic, in the order of each partition."""
    found: list[tuple[int, MessageId]] = []
    config = PulsarConsumerConfig(initial_position="earliest")
    async with client.subscribe(topic, "check", config=config) as consumer:
        try:
            while True:
                # what is stored after a long silence is looked for among the missing ones
                limit = READ_LIMIT if len({number for number, _ in found}) < MESSAGES else 2.0
                async with asyncio.timeout(limit):
                    message = await consumer.receive()
                found.append((int(message.value or b"-1"), message.message_id))
        except TimeoutError:
            return found


@pytest.mark.parametrize("deduplicates", [True, False])
async def test_a_producer_through_resets_and_a_kill_of_the_broker(
    pulsar_to_break: ApachePulsar, deduplicates: bool
) -> None:
    admin, rng = pulsar_to_break.admin, random.Random()
    namespace = f"public/producer-{uuid.uuid4().hex[:8]}"
    topic = f"persistent://{namespace}/orders"
    await admin.create_namespace(namespace)
    await admin.set_policy(namespace, "deduplication", value=deduplicates)
    await admin.create_partitioned_topic(topic, PARTITIONS)
    await admin.create_subscription(topic, "check", "earliest")
    config = PulsarProducerConfig(producer_name="writer", send_timeout=0, max_pending_messages=500)
    async with TcpProxy() as proxy:
        connections = PulsarConfig(connector=proxy.connect, retry_backoff_max=2.0)
        async with PulsarClient(pulsar_to_break.service_url, connections) as client:
            async with PulsarProducer(client, topic, config) as producer:
                disturbing = start_task(disturb(pulsar_to_break, proxy, rng))
                try:
                    receipts = await send_all(producer)
                    await disturbing
                finally:
                    await cancel_and_wait(disturbing)
    async with PulsarClient(pulsar_to_break.service_url) as client:
        found = await read_all(client, topic)
    stored = Counter(number for number, _ in found)
    assert stored.keys() == set(range(MESSAGES)), sorted(set(range(MESSAGES)) - stored.keys())[:10]
    first: defaultdict[int, list[int]] = defaultdict(list)
    for number in dict.fromkeys(number for number, _ in found):
        first[number % KEYS].append(number)
    assert all(numbers == sorted(numbers) for numbers in first.values())
    ids = defaultdict(set)
    for number, message_id in found:
        ids[number].add(message_id)
    wrong = {
        number: each for number, each in receipts.items() if each[:2] != DUPLICATE and each not in ids[number]
    }
    assert not wrong, dict(list(wrong.items())[:5])
    if deduplicates:
        assert set(stored.values()) == {1}, [number for number, count in stored.items() if count > 1][:10]
    print(
        f"{len(found)} stored, receipts of duplicates: {sum(each[:2] == DUPLICATE for each in receipts.values())}"
    )
