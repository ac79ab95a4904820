"""Consumers and producers for the broker benchmark; each function runs in a separate process (`benchmarks.worker`).

Only asyncgroup's consumer joins a group. The others assign partitions, as librdkafka's mock cluster delays each join by
three seconds, which says nothing about throughput.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from benchmarks.run_group import run_until

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
"""Read and write function of each client, by distribution; `module:function`, as `benchmarks.worker` expects."""

PARTITION_FETCH_BYTES: Final = 1 << 20
GROUP_FETCH_BYTES: Final = 1 << 18
BATCH_BYTES: Final = 64 << 10
LINGER: Final = 0.005
BATCH_RECORDS: Final = 500
"""The batch size of confluent-kafka's `consume`."""
STEP: Final = 1000
"""Records that confluent-kafka writes between two calls of `poll`, which runs delivery callbacks."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a client: it reads or writes `records` records of `size` bytes, in all `partitions` of `topic`.

    It stops after `limit` seconds.
    """

    bootstrap_servers: str
    topic: str
    partitions: int
    records: int
    size: int
    limit: float


class _Stopwatch:
    """Counts records; measures time and CPU time from its creation to the last record, or for `limit` seconds.

    Create it before a consumer, so that prefetching is measured, but after the first record of a producer, so that
    opening connections is not.
    """

    def __init__(self, settings: Settings) -> None:
        self._target = settings.records
        self._limit = settings.limit
        self._started_at = time.perf_counter()
        self._cpu = time.process_time()
        self._figures: dict[str, float] = {}
        self._records = 0

    @property
    def is_running(self) -> bool:
        """Whether the last record is still to come."""
        return not self._figures

    def add(self, records: int) -> bool:
        """Count records that were read or written; return `is_running`."""
        self._records += records
        seconds = time.perf_counter() - self._started_at
        if self.is_running and (self._records >= self._target or seconds > self._limit):
            cpu = time.process_time() - self._cpu
            self._figures = {"records": self._records, "seconds": seconds, "cpu_seconds": cpu}
        return self.is_running

    def figures(self) -> dict[str, float]:
        """Return records, seconds and CPU seconds."""
        return self._figures


# -- aiokafka ------------------------------------------------------------------------------------------------


async def aiokafka_read(given: dict[str, Any]) -> dict[str, float]:
    """Read with `getmany()`, which returns all buffered records."""
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
                watch.add(count)
    return watch.figures()


async def aiokafka_write(given: dict[str, Any]) -> dict[str, float]:
    """Write with `send()`, partitions in turn, then `flush()`."""
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
        watch.add(settings.records)
        return watch.figures()


# -- confluent-kafka -----------------------------------------------------------------------------------------


def confluent_read(given: dict[str, Any]) -> dict[str, float]:
    """Read batches with `consume()`."""
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
            "check.crcs": True,  # as all other clients do
            # by default librdkafka stops fetching at 100,000 messages and checks again after 1 s
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
                watch.add(len(messages))
    finally:
        consumer.close()
    return watch.figures()


def confluent_write(given: dict[str, Any]) -> dict[str, float]:
    """Write with `produce()`, partitions in turn, then `flush()`."""
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
            except BufferError:  # librdkafka's queue is full
                producer.poll(0.01)
        if number % STEP == 0:
            producer.poll(0)
    if left := producer.flush(settings.limit):
        raise RuntimeError(f"{left} records were not written")
    watch.add(settings.records)
    return watch.figures()


# -- asyncgroup ----------------------------------------------------------------------------------------------


async def asyncgroup_read(given: dict[str, Any]) -> dict[str, float]:
    """Read batches in a group of one member: only a group reads several partitions at once in asyncgroup.

    It fetches fewer bytes per partition than the other clients, so that all partitions fit into a response: kfake omits
    those that don't fit from a full fetch response, which asyncgroup, like Java's client, treats as an error.
    """
    from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Session

    settings = Settings(**given)
    finished = asyncio.Event()

    async def read(session: Session, claim: Claim) -> None:
        async for batch in claim.batches():
            claim.mark(batch)
            if not watch.add(len(batch)):
                finished.set()
        await session.wait_ended()

    config = ConsumerConfig(auto_offset_reset="earliest", max_partition_fetch_bytes=GROUP_FETCH_BYTES)
    watch = _Stopwatch(settings)
    async with ConsumerGroup(settings.bootstrap_servers, f"reader-{uuid4().hex[:8]}", config) as group:
        await run_until(finished, group, settings.topic, read)
    return watch.figures()


async def asyncgroup_write(given: dict[str, Any]) -> dict[str, float]:
    """Write with `enqueue()`, partitions in turn, then `flush()`."""
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
        watch.add(settings.records)
        return watch.figures()
