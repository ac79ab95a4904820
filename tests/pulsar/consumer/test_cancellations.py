"""Each public coroutine, cancelled at each of its awaits: no message is lost, no permit, and nothing is left of the call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from asyncgroup import Delivery, WorkQueue
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.wire.message_id import EARLIEST
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.pulsar.cancelling import WHEN, cancelled_at
from tests.pulsar.consumer.broker import Broker
from tests.pulsar.producer.broker import Broker as ProducerBroker

pytestmark = pytest.mark.virtual(max_virtual_time=36_000)

PARTITIONS = ("t-partition-0", "t-partition-1")


def left(before: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """Return the tasks that were started since, without those of a broker's connections."""
    return [task for task in asyncio.all_tasks() - before if "Broker._serve" not in repr(task)]


# --- consumers ------------------------------------------------------------------------------------------------------------


async def received(call: Awaitable[PulsarMessage | list[PulsarMessage]], found: list[bytes | None]) -> None:
    got = await call
    found += [message.value for message in (got if isinstance(got, list) else [got])]


CALLS: dict[str, Callable[[PulsarTopicConsumer, list[bytes | None]], Coroutine[Any, Any, Any]]] = {
    "receive": lambda consumer, found: received(consumer.receive(), found),
    "anext": lambda consumer, found: received(anext(aiter(consumer)), found),
    "receive_batch": lambda consumer, found: received(consumer.receive_batch(2), found),
    "flush": lambda consumer, _: consumer.flush(),
    "last_message_ids": lambda consumer, _: consumer.last_message_ids(),
    "seek": lambda consumer, _: consumer.seek(EARLIEST),
}


async def all_received(consumer: PulsarTopicConsumer, found: list[bytes | None]) -> None:
    """Receive and acknowledge what there is."""
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            async for message in consumer:
                found.append(message.value)
                consumer.ack(message)
    await consumer.flush()


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("queue", [0, 3])
@pytest.mark.parametrize("call", CALLS)
async def test_calls_of_a_consumer(broker: Broker, call: str, queue: int, when: str) -> None:
    """Every message is received once, and then the broker has the permits that the consumer has counted."""
    broker.partitions["t"] = len(PARTITIONS)
    config = PulsarConsumerConfig(initial_position="earliest", receiver_queue_size=queue)
    is_cancelled, number = True, -1
    async with PulsarClient(broker.url) as client:
        while is_cancelled or number < 2:
            number += 1
            values = [b"%d.%d" % (number, each) for each in range(6)]
            async with client.subscribe("t", f"s{number}", type="shared", config=config) as consumer:
                await all_received(consumer, [])
                broker.add(PARTITIONS[0], b"first")
                consumer.ack(await consumer.receive())
                asyncio.get_running_loop().call_later(1, add_all, broker, values)
                found: list[bytes | None] = []
                is_cancelled = await cancelled_at(number, when, CALLS[call](consumer, found))
                await asyncio.sleep(2)
                await all_received(consumer, found)
                own = [value for value in found if value in values]
                assert sorted(set(own)) == values, f"cancelled at await {number}"
                assert len(own) == 6
                await asyncio.sleep(1)
                for part in consumer.partitions:
                    there = broker.consumer(part.topic.local_name, f"s{number}")
                    assert (part.permits.open, part.permits.queued) == (there.permits, 0)
                    assert part.permits.waiting == 0


def add_all(broker: Broker, values: list[bytes]) -> None:
    for number, value in enumerate(values):
        broker.add(PARTITIONS[number % 2], value)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", ["__aenter__", "unsubscribe", "aclose"])
async def test_the_life_of_a_consumer(broker: Broker, call: str, when: str) -> None:
    """The broker has no consumer afterwards, and there is no task."""
    broker.partitions["t"] = len(PARTITIONS)
    is_cancelled, number = True, -1
    while is_cancelled or number < 4:
        number += 1
        before = asyncio.all_tasks()
        async with PulsarClient(broker.url) as client:
            consumer = client.subscribe("t", f"s{number}")
            if call != "__aenter__":
                await consumer.__aenter__()
            is_cancelled = await cancelled_at(number, when, getattr(consumer, call)())
            if call != "__aenter__" or not is_cancelled:
                await consumer.aclose()
            await asyncio.sleep(0.1)
            assert not any(each.consumers for each in broker.subscriptions.values()), f"at await {number}"
        await asyncio.sleep(0.1)
        assert not left(before)


# --- producers ------------------------------------------------------------------------------------------------------------


async def sent_and(producer: PulsarProducer, call: str) -> None:
    await producer.enqueue(b"v")
    await getattr(producer, call)()


SENDS: dict[str, Callable[[PulsarProducer], Coroutine[Any, Any, Any]]] = {
    "__aenter__": lambda producer: producer.__aenter__(),
    "send": lambda producer: producer.send(b"v"),
    "enqueue": lambda producer: producer.enqueue(b"v"),
    "enqueue without room": lambda producer: producer.enqueue(b"v" * 900),
    "flush": lambda producer: sent_and(producer, "flush"),
    "aclose": lambda producer: sent_and(producer, "aclose"),
}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", SENDS)
async def test_calls_of_a_producer(call: str, when: str) -> None:
    """Nothing is pending afterwards, all room is free, and the producer goes on."""
    is_cancelled, number = True, -1
    async with ProducerBroker() as broker:
        broker.partitions["t"] = len(PARTITIONS)
        while is_cancelled or number < 3:
            number += 1
            before = asyncio.all_tasks()
            async with PulsarClient(broker.url, PulsarConfig(memory_limit=1000)) as client:
                producer = client.producer("t", PulsarProducerConfig(batching_max_delay=0.05))
                if call != "__aenter__":
                    await producer.__aenter__()
                    broker.holds_receipts = True
                    producer.send_nowait(b"v" * 900)
                asyncio.get_running_loop().call_later(1, broker.release)
                is_cancelled = await cancelled_at(number, when, SENDS[call](producer))
                await asyncio.sleep(3)
                if call not in ("__aenter__", "aclose"):
                    assert producer.pending_messages == 0, f"cancelled at await {number}"
                    await producer.send(b"v" * 900)  # all room is free
                await producer.aclose()
                assert not any(link.producers for link in broker.links)
            await asyncio.sleep(0.1)
            assert not left(before)


# --- work queues ----------------------------------------------------------------------------------------------------------


async def handled_batch(queue: WorkQueue, found: list[bytes | None]) -> None:
    async with await queue.batch_receive() as batch:
        found += [delivery.value for delivery in batch]


async def ended(queue: WorkQueue, found: list[bytes | None], how: str) -> None:
    delivery = await queue.receive()
    if how == "nack":
        await delivery.nack()
        return
    found.append(delivery.value)
    await delivery.ack(durable=how == "durable")


QUEUE_CALLS: dict[str, Callable[[WorkQueue, list[bytes | None]], Coroutine[Any, Any, Any]]] = {
    "ack": lambda queue, found: ended(queue, found, "ack"),
    "durable ack": lambda queue, found: ended(queue, found, "durable"),
    "nack": lambda queue, found: ended(queue, found, "nack"),
    "batch_receive": handled_batch,
    "seek": lambda queue, _: queue.seek("earliest"),
}


def queue_on(broker: Broker, subscription: str, mode: str) -> WorkQueue:
    return WorkQueue(
        PulsarSource(broker.url, subscription, "t"),
        mode=mode,
        initial_position="earliest",
        nack_backoff=0.1,
        ack_group_time=0.01,
    )


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("mode", ["shared", "key_shared", "exclusive"])
@pytest.mark.parametrize("call", QUEUE_CALLS)
async def test_calls_of_a_work_queue(broker: Broker, call: str, mode: str, when: str) -> None:
    """Every message is handled, and acknowledged at the broker."""
    is_cancelled, number = True, -1
    while is_cancelled or number < 4:
        number += 1
        before = asyncio.all_tasks()
        values = [b"%d.%d" % (number, each) for each in range(4)]
        found: list[bytes | None] = []

        async def handle(delivery: Delivery, found: list[bytes | None] = found) -> None:
            found.append(delivery.value)

        async with queue_on(broker, f"s{number}", mode) as queue:
            for value in values:
                broker.add("t", value)
            is_cancelled = await cancelled_at(number, when, QUEUE_CALLS[call](queue, found))
            run = asyncio.create_task(queue.run(handle))
            await asyncio.sleep(20)
            await queue.aclose()
            await run
        assert set(values) <= set(found), f"cancelled at await {number}"
        subscription = broker.subscription("t", f"s{number}")
        assert not any(subscription.remaining(each) for each in range(len(subscription.topic)))
        await asyncio.sleep(0.1)
        assert not left(before)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", ["__aenter__", "aclose"])
async def test_the_life_of_a_work_queue(broker: Broker, call: str, when: str) -> None:
    is_cancelled, number = True, -1
    while is_cancelled or number < 8:
        number += 1
        before = asyncio.all_tasks()
        queue = queue_on(broker, f"s{number}", "shared")
        if call == "aclose":
            await queue.__aenter__()
        is_cancelled = await cancelled_at(number, when, getattr(queue, call)())
        if call == "aclose" or not is_cancelled:
            await queue.aclose()
        await asyncio.sleep(0.1)
        assert not any(each.consumers for each in broker.subscriptions.values()), f"at await {number}"
        assert not left(before)
