"""The clients that read and write: each in a process of its own, told by a JSON object, printing its figures.

None but asyncgroup has a group: the mock cluster lets a group wait for three seconds, which is no matter of rates.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.meter import Meter

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
    """Time and CPU of writing; the first record, written before, has made the connections."""

    def __init__(self) -> None:
        self._begun, self._cpu = time.perf_counter(), time.process_time()

    def figures(self, settings: Settings) -> dict[str, float]:
        return {
            "counted": settings.records,
            "seconds": time.perf_counter() - self._begun,
            "cpu_seconds": time.process_time() - self._cpu,
        }


# -- aiokafka ------------------------------------------------------------------------------------------------


async def aiokafka_read(given: dict[str, Any]) -> dict[str, float]:
    """`getmany()`, which gives all that is there."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    settings = Settings(**given)
    meter = Meter(settings.records, settings.limit)
    meter.begin()
    async with AIOKafkaConsumer(
        bootstrap_servers=settings.bootstrap_servers,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
    ) as consumer:
        consumer.assign([TopicPartition(settings.topic, number) for number in range(settings.partitions)])
        while not meter.finished:
            if count := sum(map(len, (await consumer.getmany(timeout_ms=1000)).values())):
                meter.took(count, 0)
    return meter.figures()


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
        watch = _Stopwatch()
        for number in range(settings.records):
            await producer.send(settings.topic, value, partition=number % settings.partitions)
        await producer.flush()
        return watch.figures(settings)


# -- confluent-kafka -----------------------------------------------------------------------------------------


def confluent_read(given: dict[str, Any]) -> dict[str, float]:
    """`consume()` of several records at once."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings = Settings(**given)
    meter = Meter(settings.records, settings.limit)
    meter.begin()
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
        while not meter.finished:
            messages = consumer.consume(BATCH_RECORDS, 0.1)
            if messages and messages[0].error() is not None:
                raise KafkaException(messages[0].error())
            if messages:
                meter.took(len(messages), 0)
    finally:
        consumer.close()
    return meter.figures()


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
    watch = _Stopwatch()
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
    return watch.figures(settings)


# -- asyncgroup ----------------------------------------------------------------------------------------------


async def asyncgroup_read(given: dict[str, Any]) -> dict[str, float]:
    """A group's claims, as asyncgroup has no consumer without one: one member, whose joining is not counted."""
    from uuid import uuid4

    from benchmarks.clients import Settings as ClientSettings
    from benchmarks.clients.own import batches

    settings = Settings(**given)
    meter = Meter(settings.records, settings.limit)
    meter.begin()
    told = ClientSettings(
        bootstrap_servers=settings.bootstrap_servers,
        topic=settings.topic,
        group_id=f"reader-{uuid4().hex[:8]}",
        partitions=settings.partitions,
        records=settings.records,
        limit=settings.limit,
    )
    await batches(told, meter)
    return meter.figures()


async def asyncgroup_write(given: dict[str, Any]) -> dict[str, float]:
    """`enqueue()`, each record to the next partition, then `flush()`."""
    from asyncgroup import ProducerConfig
    from asyncgroup.producer import Producer

    settings = Settings(**given)
    value = bytes(settings.size)
    config = ProducerConfig(batch_size=BATCH_BYTES, linger=LINGER)
    async with Producer(settings.bootstrap_servers, config) as producer:
        await producer.send(settings.topic, value, partition=0)
        watch = _Stopwatch()
        for number in range(settings.records):
            await producer.enqueue(settings.topic, value, partition=number % settings.partitions)
        await producer.flush()
        return watch.figures(settings)
