"""A simulated program that transforms messages in transactions: it sends one for each that it acknowledges, or neither."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar import (
    PulsarClient,
    PulsarConsumerConfig,
    PulsarMessage,
    PulsarProducer,
    PulsarProducerConfig,
    PulsarTopicConsumer,
)
from asyncgroup.pulsar.transactions.errors import PulsarTransactionConflict
from tests.simulate_pulsar.oracle import place_of
from tests.simulate_pulsar.plan import RESULTS, ConsumerSpec
from tests.simulate_pulsar.program import PulsarProgram
from tests.simulate_pulsar.queue_member import InjectedFailure
from tests.simulation.story import Violation

if TYPE_CHECKING:
    from tests.simulate_pulsar.world import PulsarWorld

__all__ = ["SimTransformer"]


class SimTransformer(PulsarProgram):
    """The program of a consumer and a producer that take part in transactions."""

    def __init__(self, world: PulsarWorld, spec: ConsumerSpec, host: str) -> None:
        super().__init__(world, spec.name, host)
        self.spec = spec
        self.subscription = world.plan.setting.subscriptions[spec.subscription]
        self.oracle = world.oracles[spec.subscription]
        self.is_calm = False
        """Whether it aborts no more."""

    async def work(self, client: PulsarClient) -> None:
        """Transform until it is to stop."""
        spec, kind = self.spec, self.subscription.kind
        config = PulsarConsumerConfig(
            consumer_name=self.name,
            initial_position="earliest",
            receiver_queue_size=max(spec.queue_size, 1),
            receiver_queue_bytes=spec.queue_bytes,
            max_pending_chunked=0,
            priority_level=spec.priority,
        )
        sends = PulsarProducerConfig(send_timeout=0.0, batching=self.rng.random() < 0.7, close_timeout=6.0)
        producer = PulsarProducer(client, RESULTS, sends, clock=self.world.now_ms, rng=self.rng)
        consumer = client.subscribe(self.subscription.topic, spec.subscription, type=kind, config=config)
        async with consumer, producer:
            self.write("transforms")
            work = self._transform(client, consumer, producer)
            await self._until_stopping(asyncio.create_task(work, name=f"{self.name} transforms"))

    async def _transform(
        self, client: PulsarClient, consumer: PulsarTopicConsumer, producer: PulsarProducer
    ) -> None:
        while True:
            messages = await consumer.receive_batch(max_messages=self.rng.choice([1, 5, 20]), max_wait=0.05)
            for message in messages:
                self._receive(message)
            left = list(messages)
            try:
                async with client.transaction(timeout=self.rng.choice([3.0, 20.0])) as txn:
                    for message in messages:
                        place = ",".join(map(str, place_of(message)))
                        result = f"{self.oracle.of(message).topic},{place}".encode()
                        await producer.enqueue(result, transaction=txn)
                        consumer.ack(message, transaction=txn)
                        left.remove(message)
                    await self._pause()
            except InjectedFailure:
                self.world.story.count("aborted transactions")
            except AsyncGroupError as error:
                self.world.story.count("transactions that failed")
                self.write(f"transaction failed: {type(error).__name__}: {error}")
                # the others come again by the abort, unless the broker has refused their acknowledgement
                for message in messages if isinstance(error, PulsarTransactionConflict) else left:
                    consumer.nack(message, 0.1)
                await asyncio.sleep(0.1)
            else:
                self.world.story.count("transactions")
                self._committed(messages)

    def _receive(self, message: PulsarMessage) -> None:
        if self.is_dead:
            raise asyncio.CancelledError
        try:
            self.oracle.of(message).receive(self.name, message, is_exact=False)
        except Violation as violation:
            self.fail(violation)

    async def _pause(self) -> None:
        if self.spec.work_seconds:
            await asyncio.sleep(self.spec.work_seconds * self.rng.uniform(0.2, 1.5))
        await self.gate.wait()
        if not self.is_calm and self.rng.random() < self.spec.nacks:
            raise InjectedFailure

    def _committed(self, messages: list[PulsarMessage]) -> None:
        if not self.is_dead:
            for message in messages:
                self.oracle.of(message).confirm(place_of(message))
