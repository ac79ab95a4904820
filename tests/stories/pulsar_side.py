"""PulsarSide: a Side (`queue_engines`) on a Pulsar, real or embedded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from asyncgroup import WorkQueue
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import now_ms
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.stories.queue_engines import Side

__all__ = ["PulsarSide", "side_of"]


class PulsarSide:
    """A topic of its own in a Pulsar, and a reader of its dead letters."""

    counts_deliveries = False
    quiet = 5.0
    slack = 30.0
    early_ms = 1_100  # the broker looks for delayed messages each second, and rounds

    def __init__(
        self, client: PulsarClient, topic: str, producer: PulsarProducer, *, transactions: bool = False
    ) -> None:
        self.topic = topic
        self._transactions = transactions  # of copies
        self._client = client
        self._producer = producer
        self._dead: list[tuple[bytes | None, dict[str, bytes | None]]] = []

    def time_of_day(self) -> int:
        """See Side."""
        return now_ms()

    def queue(self, **settings: Any) -> WorkQueue:
        """See Side."""
        copies = self._transactions and ("dead_letter" in settings or "retry" in settings)
        source = PulsarSource(self._client, "billing", self.topic, transactional_copies=copies)
        return WorkQueue(source, **{"initial_position": "earliest"} | settings)

    async def send(self, *values: bytes, key: bytes | None = None, deliver_at: int | None = None) -> None:
        """See Side."""
        for value in values:
            await self._producer.send(value, key=key, deliver_at=deliver_at)

    def dead_letters(self) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
        """See Side."""
        return self._dead

    async def read_dead_letters(self) -> None:
        """Read the dead letter topic."""
        topic, config = f"{self.topic}-billing-DLQ", PulsarConsumerConfig(initial_position="earliest")
        async with self._client.subscribe(topic, "test", config=config) as consumer:
            async for message in consumer:
                self._dead.append((message.value, dict(message.headers)))
                consumer.ack(message)


@asynccontextmanager
async def side_of(client: PulsarClient, *, transactions: bool = False) -> AsyncIterator[Side]:
    topic = f"persistent://public/default/orders-{uuid4().hex[:8]}"
    async with PulsarProducer(client, topic) as producer:
        side = PulsarSide(client, topic, producer, transactions=transactions)
        reading = start_task(side.read_dead_letters())
        try:
            yield side
        finally:
            await cancel_and_wait(reading)
