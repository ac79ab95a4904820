"""The clients that read and write: each in a process of its own, told by a JSON object, printing its figures.

None but asyncgroup has a group: the mock cluster lets a group wait for three seconds, which is no matter of rates.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

__all__ = [
    "CLIENTS",
    "Settings",
    "aiokafka_read",
    "aiokafka_write",
    "asyncgroup_read",
    "asyncgroup_write",
    "confluent_read",
    "confluent_write",
]

CLIENTS: Final = {
    "aiokafka": ("benchmarks.broker.clients:aiokafka_read", "benchmarks.broker.clients:aiokafka_write"),
    "confluent-kafka": (
        "benchmarks.broker.clients:confluent_read",
        "benchmarks.broker.clients:confluent_write",
    ),
    "asyncgroup": ("benchmarks.broker.clients:asyncgroup_read", "benchmarks.broker.clients:asyncgroup_write"),
}
"""For each client what reads and what writes, as `benchmarks.worker` wants it; names are those of distributions."""

PARTITION_FETCH_BYTES: Final = 1 << 20
GROUP_FETCH_BYTES: Final = 1 << 18
BATCH_BYTES: Final = 64 << 10
LINGER: Final = 0.005
BATCH_RECORDS: Final = 500
"""Records that confluent-kafka is asked for at once."""
STEP: Final = 1000
"""Records that are written between two moments for the loop, or for the callbacks."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a client is told: `records` of `size` bytes, to read from or write to all `partitions` of `topic`."""

    bootstrap_servers: str
    topic: str
    partitions: int
    records: int
    size: int
    limit: float


class _Stopwatch:
    """Counts records; time and CPU begin when it is made and end with the last record, or after `limit` seconds.

    A reader's is made before its client, so that nothing is read ahead of it; a writer's when a first record is
    written, which has made the connections.
    """

    def __init__(self, settings: Settings) -> None:
        self._wanted, self._limit = settings.records, settings.limit
        self._begun, self._cpu = time.perf_counter(), time.process_time()
        self._figures: dict[str, float] = {}
        self._records = 0

    @property
    def is_running(self) -> bool:
        """Whether more records are wanted."""
        return not self._figures

    def took(self, records: int) -> bool:
        """So many records came or went; whether more are wanted."""
        self._records += records
        seconds = time.perf_counter() - self._begun
        if self.is_running and (self._records >= self._wanted or seconds > self._limit):
            cpu = time.process_time() - self._cpu
            self._figures = {"records": self._records, "seconds": seconds, "cpu_seconds": cpu}
        return self.is_running

    def figures(self) -> dict[str, float]:
        """Records, seconds and CPU seconds."""
        return self._figures


# -- aiokafka ------------------------------------------------------------------------------------------------


async def aiokafka_read(given: dict[str, Any]) -> dict[str, float]:
    """`getmany()`, which gives all that is there."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    settings = Settings(**given)
    watch = _Stopwatch(settings)
    async with AIOKafkaConsumer(
        bootstrap_servers=settings.bootstrap_servers,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
    ) as consumer:
        consumer.assign([TopicPartition(settings.topic, number) for number in range(settings.partitions)])
        while watch.is_running:
            if count := sum(map(len, (await consumer.getmany(timeout_ms=1000)).values())):
                watch.took(count)
    return watch.figures()


async def aiokafka_write(given: dict[str, Any]) -> dict[str, float]:
    """`send()`, each record to the next partition, then `flush()`."""
    from aiokafka import AIOKafkaProducer

    settings = Settings(**given)
    value = bytes(settings.size)
    async with AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap_servers,
        acks="all",
        max_batch_size=BATCH_BYTES,
        linger_ms=round(LINGER * 1000),
    ) as producer:
        await producer.send_and_wait(settings.topic, value, partition=0)
        watch = _Stopwatch(settings)
        for number in range(settings.records):
            await producer.send(settings.topic, value, partition=number % settings.partitions)
        await producer.flush()
        watch.took(settings.records)
        return watch.figures()


# -- confluent-kafka -----------------------------------------------------------------------------------------


def confluent_read(given: dict[str, Any]) -> dict[str, float]:
    """`consume()` of several records at once."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings = Settings(**given)
    watch = _Stopwatch(settings)
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": PARTITION_FETCH_BYTES,
            "check.crcs": True,  # as all the others do
            # by default it stops at 100,000 messages and then looks again only after a second
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition(settings.topic, number, 0) for number in range(settings.partitions)])
    try:
        while watch.is_running:
            messages = consumer.consume(BATCH_RECORDS, 0.1)
            if messages and messages[0].error() is not None:
                raise KafkaException(messages[0].error())
            if messages:
                watch.took(len(messages))
    finally:
        consumer.close()
    return watch.figures()


def confluent_write(given: dict[str, Any]) -> dict[str, float]:
    """`produce()`, each record to the next partition, then `flush()`."""
    from confluent_kafka import Producer

    settings = Settings(**given)
    value = bytes(settings.size)
    producer = Producer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "acks": "all",
            "batch.size": BATCH_BYTES,
            "linger.ms": LINGER * 1000,
            "queue.buffering.max.messages": 200_000,
        }
    )
    producer.produce(settings.topic, value, partition=0)
    producer.flush(settings.limit)
    watch = _Stopwatch(settings)
    for number in range(settings.records):
        while True:
            try:
                producer.produce(settings.topic, value, partition=number % settings.partitions)
                break
            except BufferError:  # its queue is full
                producer.poll(0.01)
        if number % STEP == 0:
            producer.poll(0)
    if left := producer.flush(settings.limit):
        raise RuntimeError(f"{left} records were not written")
    watch.took(settings.records)
    return watch.figures()


# -- asyncgroup ----------------------------------------------------------------------------------------------


async def asyncgroup_read(given: dict[str, Any]) -> dict[str, float]:
    """A group of one member that hands over batches, as asyncgroup has no consumer of several partitions without one.

    It asks for less of a partition than the others, so that an answer has room for all of them: kfake leaves out those
    that find none, which Kafka never does in a fetch session, and which asyncgroup as Java's client takes for an error.
    """
    from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Session

    settings = Settings(**given)
    finished = asyncio.Event()

    async def read(session: Session, claim: Claim) -> None:
        async for batch in claim.batches():
            claim.mark(batch)
            if not watch.took(len(batch)):
                finished.set()
        await session.wait_ended()

    config = ConsumerConfig(auto_offset_reset="earliest", max_partition_fetch_bytes=GROUP_FETCH_BYTES)
    watch = _Stopwatch(settings)
    async with ConsumerGroup(settings.bootstrap_servers, f"reader-{uuid4().hex[:8]}", config) as group:
        running = asyncio.create_task(group.run(settings.topic, read))
        waiting = asyncio.create_task(finished.wait())
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        await group.aclose()
        waiting.cancel()
        await running
    return watch.figures()


async def asyncgroup_write(given: dict[str, Any]) -> dict[str, float]:
    """`enqueue()`, each record to the next partition, then `flush()`."""
    from asyncgroup import ProducerConfig
    from asyncgroup.producer import Producer

    settings = Settings(**given)
    value = bytes(settings.size)
    config = ProducerConfig(batch_size=BATCH_BYTES, linger=LINGER)
    async with Producer(settings.bootstrap_servers, config) as producer:
        await producer.send(settings.topic, value, partition=0)
        watch = _Stopwatch(settings)
        for number in range(settings.records):
            await producer.enqueue(settings.topic, value, partition=number % settings.partitions)
        await producer.flush()
        watch.took(settings.records)
        return watch.figures()
