"""A client with everything in use, on brokers that cut, move and keep silent, closed in random order: only our errors, nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from asyncgroup import Delivery, WorkQueue
from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.wire.message_id import EARLIEST
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.profiles import thinned
from tests.pulsar.consumer.broker import Broker
from tests.pulsar.producer.broker import Broker as ProducerBroker

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

KINDS = (("t", "a", "shared"), ("p", "b", "exclusive"), ("t", "c", "failover"), ("p", "d", "key_shared"))
"""Topic, subscription and type of the consumers; `p` has partitions."""
CONFIG = {"partitions_update_interval": 1.0, "operation_timeout": 2.0, "connections_max_idle": 1.0}

Call = Callable[[], Awaitable[object]]


class Scene:
    """A client for consumers and one for a producer, and tasks that call everything again and again."""

    def __init__(self, broker: Broker, producers: ProducerBroker, rng: random.Random) -> None:
        self._broker = broker
        self._producers = producers
        self._random = rng
        self._client = PulsarClient(broker.url, PulsarConfig(**CONFIG))  # type: ignore[arg-type]
        self._sending = PulsarClient(producers.url, PulsarConfig(memory_limit=500, **CONFIG))  # type: ignore[arg-type]
        self._consumers: list[PulsarTopicConsumer] = []
        self._producer: PulsarProducer
        self._queue: WorkQueue
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        rng, config = self._random, {"initial_position": "earliest", "close_timeout": 1.0}
        await self._client.__aenter__()
        await self._sending.__aenter__()
        for topic, subscription, kind in KINDS:
            size = rng.choice([0, 2, 50])
            made = PulsarConsumerConfig(receiver_queue_size=size, **config)  # type: ignore[arg-type]
            consumer = self._client.subscribe(topic, subscription, type=kind, config=made)
            self._consumers.append(await consumer.__aenter__())
        self._producer = await self._sending.producer("t").__aenter__()
        source = PulsarSource(self._client, "q", "p", close_timeout=1.0)
        mode = rng.choice(["shared", "key_shared", "exclusive"])
        self._queue = WorkQueue(source, mode=mode, initial_position="earliest", nack_backoff=0.05)
        await self._queue.__aenter__()

    def start(self) -> None:
        producer, queue = self._producer, self._queue
        calls: list[Call] = [
            lambda: producer.send(b"v" * 200),
            lambda: producer.enqueue(b"v" * 400),
            producer.flush,
            lambda: self._client.partitions("p"),
            lambda: queue.seek("earliest"),
        ]
        for each in self._consumers:
            calls += [lambda each=each: self._receive(each), lambda each=each: each.receive_batch(3)]
            calls += [each.flush, each.last_message_ids, lambda each=each: each.seek(EARLIEST)]
        self._tasks = [asyncio.create_task(self._repeat(call)) for call in calls]
        self._tasks.append(asyncio.create_task(queue.run(self._handle)))
        self._tasks.append(asyncio.create_task(self._disturb()))

    async def _repeat(self, call: Call) -> None:
        while True:
            with suppress(TimeoutError, AsyncGroupError):
                async with asyncio.timeout(self._random.uniform(0.1, 3)):
                    await call()
            await asyncio.sleep(self._random.uniform(0, 0.1))

    async def _receive(self, consumer: PulsarTopicConsumer) -> None:
        message = await consumer.receive()
        if self._random.random() < 0.5:
            consumer.ack(message)
        else:
            consumer.nack(message, self._random.uniform(0, 1))

    async def _handle(self, _delivery: Delivery) -> None:
        await asyncio.sleep(self._random.uniform(0, 0.1))
        if self._random.random() < 0.2:
            raise ValueError("it fails")

    async def _disturb(self) -> None:
        broker, rng = self._broker, self._random
        while True:
            await asyncio.sleep(rng.uniform(0, 0.3))
            match rng.randrange(8):
                case 0:
                    broker.cut()
                case 1:
                    broker.unload(rng.choice(["t", "p-partition-0"]))
                case 2:
                    self._producers.cut()
                case 3:
                    broker.partitions["p"] = min(6, broker.partitions["p"] + 1)
                case 4:
                    broker.silent = not broker.silent
                case 5:
                    broker.holds_acks = not broker.holds_acks
                case _:
                    topic = rng.choice(["t", "p-partition-0", "p-partition-1"])
                    broker.add(topic, *[b"v"] * rng.randrange(1, 4))

    async def close(self) -> None:
        """Close everything, one soon after the other; each close ends, with nothing but our errors."""
        closes: list[Call] = [
            *(each.aclose for each in self._consumers),
            *(self._client.aclose, self._sending.aclose, self._producer.aclose, self._queue.aclose),
        ]
        self._random.shuffle(closes)
        closing = []
        for close in closes:
            closing.append(asyncio.ensure_future(close()))
            await asyncio.sleep(self._random.choice([0, 0, 0.1, 0.5]))
        ended, unfinished = await asyncio.wait(closing, timeout=60)
        assert not unfinished
        await asyncio.sleep(0.5)
        await cancel_and_wait(*self._tasks)
        for each in (*ended, *self._tasks):
            error = None if each.cancelled() else each.exception()
            assert error is None or isinstance(error, AsyncGroupError), repr(error)


@pytest.mark.parametrize("seed", thinned(range(36)))
async def test_everything_is_closed(broker: Broker, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    rng, before = random.Random(seed), asyncio.all_tasks()
    broker.partitions["p"] = 3
    async with ProducerBroker(port=6651) as producers:
        scene = Scene(broker, producers, rng)
        await scene.open()
        scene.start()
        await asyncio.sleep(rng.uniform(0.5, 5))
        await scene.close()
        await asyncio.sleep(3)
        left = [task for task in asyncio.all_tasks() - before if "Broker._serve" not in repr(task)]
        assert not left
        assert not broker.links
        assert all(link.writer.is_closing() for link in producers.links)
    raised = [record for record in caplog.records if record.exc_info and record.exc_info[0] is not ValueError]
    assert not raised
