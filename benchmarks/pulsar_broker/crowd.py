"""The measured clients, in one process: each has its own connection, as a consumer of a subscription or as a producer."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from asyncgroup.pulsar import (
    PulsarClient,
    PulsarConfig,
    PulsarConsumerConfig,
    PulsarProducer,
    PulsarTopicConsumer,
)
from benchmarks.broker.file_limit import raise_file_limit

__all__ = ["CrowdSettings", "run"]

AT_ONCE: Final = 100
"""Clients that connect at the same time."""


@dataclass(frozen=True, kw_only=True)
class CrowdSettings:
    """What is measured. Each topic has an equal part of subscriptions and producers, each subscription of consumers."""

    service_url: str
    prefix: str
    topics: int
    subscriptions: int
    consumers: int
    connections: int
    messages: int
    size: int

    @property
    def deliveries(self) -> int:
        """The number of messages that are delivered."""
        return self.messages * self.subscriptions // self.topics


class _Crowd:
    def __init__(self, settings: CrowdSettings, stack: AsyncExitStack) -> None:
        self.settings = settings
        self.left = settings.deliveries
        self.done = asyncio.Event()
        self.producers: list[PulsarProducer] = []
        self.consumers: list[PulsarTopicConsumer] = []
        self._stack = stack
        self._room = asyncio.Semaphore(AT_ONCE)

    async def connect(self) -> None:
        settings = self.settings
        await asyncio.gather(*(self._consume(number) for number in range(settings.consumers)))
        producers = range(settings.connections - settings.consumers)
        await asyncio.gather(*(self._produce(number) for number in producers))

    def _topic(self, number: int) -> str:
        return f"{self.settings.prefix}-{number % self.settings.topics}"

    async def _client(self) -> PulsarClient:
        config = PulsarConfig(operation_timeout=120.0, connect_timeout=60.0)
        return await self._stack.enter_async_context(PulsarClient(self.settings.service_url, config))

    async def _consume(self, number: int) -> None:
        subscription = number % self.settings.subscriptions
        async with self._room:
            client = await self._client()
            config = PulsarConsumerConfig(initial_position="earliest")
            consumer = client.subscribe(
                self._topic(subscription), f"s{subscription}", type="shared", config=config
            )
            self.consumers.append(await self._stack.enter_async_context(consumer))

    async def _produce(self, number: int) -> None:
        async with self._room:
            producer = (await self._client()).producer(self._topic(number))
            self.producers.append(await self._stack.enter_async_context(producer))

    async def receive(self, consumer: PulsarTopicConsumer) -> None:
        async for message in consumer:
            consumer.ack(message)
            self.left -= 1
            if not self.left:
                self.done.set()

    async def send(self, producer: PulsarProducer, count: int) -> None:
        value = bytes(self.settings.size)
        for _ in range(count):
            await producer.enqueue(value)
        await producer.flush()


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """Connect all, send and receive all messages; return the figures."""
    raise_file_limit()
    settings = CrowdSettings(**given)
    began = time.perf_counter()
    async with AsyncExitStack() as stack:
        crowd = _Crowd(settings, stack)
        await crowd.connect()
        reading = [asyncio.create_task(crowd.receive(each)) for each in crowd.consumers]
        start, cpu = time.perf_counter(), time.process_time()
        share = settings.messages // len(crowd.producers)
        await asyncio.gather(*(crowd.send(each, share) for each in crowd.producers))
        await crowd.done.wait()
        await asyncio.gather(*(each.flush() for each in crowd.consumers))
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        for task in reading:
            task.cancel()
    return {"connecting": start - began, "seconds": seconds, "cpu_seconds": cpu_seconds}
