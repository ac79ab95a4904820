"""Random faults: several consumers of a subscription, with lost connections, unloads, negative acknowledgements and pauses.

Each message is delivered and acknowledged in the end. None is delivered after the broker has confirmed its acknowledgement, and
in subscriptions with an order each redelivery is of a whole tail.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from tests.profiles import thinned
from tests.pulsar.consumer.broker import Broker
from tests.pulsar.consumer.support import batch_body, metadata

TOPIC = "t"


class Story:
    """One subscription with its consumers, and what each test checks of it."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.rng = random.Random(seed)
        self.kind = self.rng.choice(["shared", "exclusive", "failover", "key_shared"])
        self.in_order = self.kind in ("exclusive", "failover")
        self.count = 1 if self.kind == "exclusive" else self.rng.randrange(1, 4)
        self.index_acks = self.rng.random() < 0.7
        self.settings = PulsarConsumerConfig(
            initial_position="earliest",
            receiver_queue_size=self.rng.choice([0, 1, 3, 20]),
            ack_group_time=self.rng.choice([0, 0.1]),
            ack_group_size=self.rng.choice([2, 1000]),
            index_acks=self.index_acks,
            chunk_expiry=0,
        )
        self.written: list[bytes] = []
        self.confirmed: set[bytes] = set()
        self.delivered: set[bytes] = set()

    def write(self) -> None:
        """Store an entry: a message, a batch, or a value in chunks, whose chunks others may come between."""
        count = self.rng.choice([1, 1, 3, 7])
        values = [b"%d" % (len(self.written) + index) for index in range(count)]
        self.written += values
        if self.rng.random() < 0.2:
            for chunk in self.chunks(values[0] * 3):
                self.broker.store(TOPIC, *chunk)
            values = values[1:]
        if values:
            meta = metadata(num_messages_in_batch=len(values))
            if len(values) == 1 and self.rng.random() < 0.5:
                self.broker.store(TOPIC, metadata(), values[0])
            else:
                self.broker.store(TOPIC, meta, batch_body(values))

    def chunks(self, value: bytes) -> list[tuple[MessageMetadata, bytes]]:
        size = len(value) // 3
        fields = {
            "uuid": value.decode(),
            "num_chunks_from_msg": 3,
            "total_chunk_msg_size": len(value),
            "uncompressed_size": len(value),
        }
        parts = [value[index * size : (index + 1) * size] for index in range(3)]
        return [(metadata(chunk_id=index, **fields), part) for index, part in enumerate(parts)]

    def value_of(self, message: PulsarMessage) -> bytes:
        found = message.value
        assert found is not None
        return found[: len(found) // 3] if message.first_chunk_id is not None else found

    async def work(self, consumer: PulsarTopicConsumer) -> None:
        """Receive, and acknowledge or not."""
        rng = self.rng
        while True:
            if rng.random() < 0.3:
                messages = await consumer.receive_batch(max_messages=rng.choice([2, 10]), max_wait=0.5)
            else:
                try:
                    async with asyncio.timeout(rng.choice([0.01, 1, 100])):
                        messages = [await consumer.receive()]
                except TimeoutError:
                    continue
            for message in messages:
                value = self.value_of(message)
                assert value not in self.confirmed, "delivered after its acknowledgement was confirmed"
                self.delivered.add(value)
            await asyncio.sleep(rng.choice([0, 0, 0.2]))
            await self.end(consumer, messages)

    async def end(self, consumer: PulsarTopicConsumer, messages: list[PulsarMessage]) -> None:
        rng = self.rng
        acked = []
        for message in messages:
            step = rng.random()
            if step < 0.1:
                consumer.nack(message, rng.choice([0, 0.5, 3]))
            elif step < 0.15:
                pass  # it comes again on the next connection
            elif step < 0.3 and self.in_order:
                continue
            else:
                consumer.ack(message)
                acked.append(self.value_of(message))
        if rng.random() < 0.2:
            try:
                await consumer.flush()
            except AsyncGroupError:
                return
            # without index acks a batch is delivered again until its last message is acknowledged, and another consumer may
            # have got the message before
            if self.index_acks and self.count == 1:
                self.confirmed.update(acked)

    async def disturb(self) -> None:
        broker, rng = self.broker, self.rng
        for _ in range(rng.randrange(5, 30)):
            await asyncio.sleep(rng.choice([0, 0.01, 0.2, 2]))
            match rng.randrange(7):
                case 0:
                    broker.cut()
                case 1:
                    broker.unload(TOPIC)
                case 2:
                    broker.holds_acks = not broker.holds_acks
                case 3:
                    code = rng.choice([None, 1])
                    broker.refuse_ack = lambda _, code=code: code  # type: ignore[misc]
                case 4 if self.kind == "failover" and broker.subscriptions:
                    broker.subscription(TOPIC).rotate()
                case _:
                    self.write()
        broker.holds_acks = False
        broker.refuse_ack = lambda _: None

    @property
    def is_done(self) -> bool:
        subscription = self.broker.subscription(TOPIC)
        return len(subscription.acked) == len(self.broker.topics[TOPIC])

    async def finish(self) -> None:
        """Consumers that lost messages on purpose get them again with each connection."""
        for _ in range(2_000):
            if self.is_done:
                return
            self.broker.cut()
            await asyncio.sleep(30)
        raise AssertionError(f"not acknowledged: {self.broker.subscription(TOPIC).acked}")


@asynccontextmanager
async def story_of(broker: Broker, seed: int) -> AsyncIterator[Story]:
    story = Story(broker, seed)
    config = PulsarConfig(operation_timeout=5, retry_backoff_max=1)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            story.write()
        count = story.count
        tasks = []
        for _ in range(count):
            client = await stack.enter_async_context(PulsarClient(broker.url, config))
            client._inner.rng.seed(seed)
            consumer = await stack.enter_async_context(
                client.subscribe(TOPIC, "s", type=story.kind, config=story.settings)
            )
            tasks.append(asyncio.create_task(story.work(consumer)))
        try:
            yield story
        finally:
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome


@pytest.mark.virtual(max_virtual_time=1_000_000)
@pytest.mark.parametrize("seed", thinned(range(240), 24))
async def test_every_message_is_delivered_and_acknowledged(broker: Broker, seed: int) -> None:
    async with story_of(broker, seed) as story:
        await story.disturb()
        await story.finish()
        assert story.delivered == set(story.written)
