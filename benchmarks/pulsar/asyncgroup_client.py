"""asyncgroup: `enqueue` and `flush`, `receive` and `ack`, and a work queue."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncgroup.pulsar import PulsarClient, PulsarConsumerConfig, PulsarProducer, PulsarTopicConsumer
from asyncgroup.workqueue import Delivery, Mode, WorkQueue
from benchmarks.pulsar.cases import QUEUES
from benchmarks.pulsar.load import Load

__all__ = ["run", "run_batches"]


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """Run a case; return the figures."""
    load = Load(given)
    case = load.settings.case
    if case in QUEUES:
        await _handle(load)
        return load.figures()
    async with PulsarClient(load.settings.service_url) as client:
        if case in ("receive", "memory"):
            await (_receive if case == "receive" else _fill)(load, client)
        else:
            async with PulsarProducer(client, load.settings.topic) as producer:
                await (_call if case == "latency" else _produce)(load, producer)
    return load.figures()


async def _produce(load: Load, producer: PulsarProducer) -> None:
    await producer.send(load.value)
    value = load.value
    load.begin()
    if load.settings.case == "produce":
        for _ in range(load.settings.messages):
            await producer.enqueue(value)
    else:
        for key in load.all_keys():
            await producer.enqueue(value, key=key)
    await producer.flush()
    load.end(load.settings.messages)


async def _call(load: Load, producer: PulsarProducer) -> None:
    await load.call(producer.send)


def _consumer(load: Load, client: PulsarClient) -> PulsarTopicConsumer:
    config = PulsarConsumerConfig(initial_position="earliest")
    return client.subscribe(load.settings.topic, load.settings.subscription, type="shared", config=config)


async def _receive(load: Load, client: PulsarClient) -> None:
    async with _consumer(load, client) as consumer:
        first = await consumer.receive()
        load.begin()
        consumer.ack(first)
        for _ in range(load.settings.messages - 1):
            message = await consumer.receive()
            load.bytes += len(message.value or b"")
            consumer.ack(message)
        await consumer.flush()
        load.end(load.settings.messages - 1)


async def run_batches(given: dict[str, Any]) -> dict[str, Any]:
    """Receive several messages at a time."""
    load = Load(given)
    async with PulsarClient(load.settings.service_url) as client, _consumer(load, client) as consumer:
        consumer.ack(await consumer.receive())
        load.begin()
        left = load.settings.messages - 1
        while left > 0:
            messages = await consumer.receive_batch(max_messages=500)
            for message in messages:
                load.bytes += len(message.value or b"")
                consumer.ack(message)
            left -= len(messages)
        await consumer.flush()
        load.end(load.settings.messages - 1)
    return load.figures()


async def _fill(load: Load, client: PulsarClient) -> None:
    load.before_filling()
    async with _consumer(load, client) as consumer:
        await consumer.receive()  # now the client knows how large messages are, and asks for as many as fit
        await load.fill()


async def _handle(load: Load) -> None:
    done = asyncio.Event()
    left = load.settings.messages
    settings = load.settings

    async def handle(delivery: Delivery) -> None:
        nonlocal left
        if left == settings.messages:
            load.begin()
        load.bytes += len(delivery.record.value or b"")
        left -= 1
        if not left:
            done.set()

    source = (settings.service_url, settings.subscription, settings.topic)
    mode = Mode.KEY_SHARED if settings.case == "queue-keys" else Mode.SHARED
    async with WorkQueue(*source, mode=mode, initial_position="earliest") as queue:
        running = asyncio.create_task(queue.run(handle))
        waiting = asyncio.create_task(done.wait())
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not done.is_set():
            waiting.cancel()
            running.result()
        await queue.aclose()  # sends the last acknowledgements
        load.end(settings.messages - 1)
        await running
