"""Consumers that share batches acknowledge in transactions and without, and leave: each message is acknowledged in the end, none by mistake."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.transactions.errors import PulsarTransactionAborted
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar

pytestmark = [pytest.mark.virtual(max_virtual_time=7200), pytest.mark.full]

MESSAGES = 40


class Worker:
    """A program that joins and leaves a subscription, and acknowledges some of what it gets."""

    def __init__(self, client: PulsarClient, dice: random.Random, acked: set[bytes]) -> None:
        self.client = client
        self.dice = dice
        self.acked = acked
        """What the programs have acknowledged, so that it need not come again."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            config = PulsarConsumerConfig(
                initial_position="earliest",
                nack_delay=0.1,
                index_acks=self.dice.random() < 0.8,
                ack_group_time=self.dice.choice([0.0, 0.1]),
                receiver_queue_size=self.dice.choice([1, 100]),
            )
            async with self.client.subscribe("in", "s", type="shared", config=config) as consumer:
                for _ in range(self.dice.randint(1, 8)):
                    await self.work(consumer)
            await asyncio.sleep(self.dice.uniform(0.0, 1.0))

    async def work(self, consumer: PulsarTopicConsumer) -> None:
        try:
            async with asyncio.timeout(1.0):
                messages = await consumer.receive_batch(self.dice.randint(1, 6), max_wait=0.05)
        except TimeoutError:
            return
        wanted = [message for message in messages if self.dice.random() < 0.7]
        for message in messages:
            if message not in wanted:
                consumer.nack(message)
        if self.dice.random() < 0.5:
            for message in wanted:
                consumer.ack(message)
            await consumer.flush()
            self.note(wanted)
        elif wanted:
            await self.transact(consumer, wanted)

    async def transact(self, consumer: PulsarTopicConsumer, messages: list[PulsarMessage]) -> None:
        try:
            async with self.client.transaction(timeout=20) as txn:
                for message in messages:
                    consumer.ack(message, transaction=txn)
                await asyncio.sleep(self.dice.uniform(0.0, 2.0))
                if self.dice.random() < 0.5:
                    raise LookupError
        except (LookupError, PulsarTransactionAborted):
            return
        self.note(messages)

    def note(self, messages: list[PulsarMessage]) -> None:
        self.acked |= {message.value or b"" for message in messages}


@pytest.mark.parametrize("seed", range(20))
async def test_none_is_lost(seed: int) -> None:
    acked: set[bytes] = set()
    async with EmbeddedPulsar(hosts=["10.0.0.1"], port=6650, topics={"in": 0}) as pulsar:
        pulsar.create_subscription("in", "s")
        clients = [PulsarClient(pulsar.service_url) for _ in range(3)]
        async with clients[0], clients[1], clients[2]:
            config = PulsarProducerConfig(batching_max_messages=5, batching_max_delay=1.0)
            async with clients[0].producer("in", config) as producer:
                for number in range(MESSAGES):
                    await producer.enqueue(b"%d" % number)

            def is_over() -> bool:
                return len(acked) == MESSAGES and not pulsar.subscription("in", "s").backlog

            async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
                for number, client in enumerate(clients):
                    worker = Worker(client, random.Random(f"{seed} {number}"), acked)
                    tasks.create_task(worker.run(is_over))
    assert len(acked) == MESSAGES
