"""Cases with confluent-kafka: librdkafka's consumer, blocking and with a thread pool for asyncio."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.aio import AIOConsumer

from benchmarks.clients import (
    AUTO_COMMIT_SECONDS,
    BATCH_RECORDS,
    BUFFER_BYTES,
    FETCH_MAX_BYTES,
    FETCH_MAX_WAIT,
    PARTITION_MAX_BYTES,
    Settings,
)
from benchmarks.meter import Laps, Meter

__all__ = ["aio_consume", "aio_poll", "consume", "poll"]

POLL_SECONDS = 0.1
"""`consume` waits until its batch is full or for this time; without a limit it would never return the last batch."""


def _config(settings: Settings) -> dict[str, Any]:
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "group.id": settings.group_id,
        "auto.offset.reset": "earliest",
        "isolation.level": settings.isolation,
        "enable.auto.commit": True,
        "auto.commit.interval.ms": int(AUTO_COMMIT_SECONDS * 1000),
        "fetch.max.bytes": FETCH_MAX_BYTES,
        "max.partition.fetch.bytes": PARTITION_MAX_BYTES,
        "fetch.wait.max.ms": int(FETCH_MAX_WAIT * 1000),
        "check.crcs": True,  # as all other clients do
        # by default librdkafka stops fetching at 100,000 messages and checks again after 1 s: 160,000 records/s
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": BUFFER_BYTES >> 10,
        "fetch.queue.backoff.ms": 10,
    }


def _touch(messages: list[Any]) -> int:
    """Return the bytes of keys and values; raise the error that a message reports instead of data."""
    size = 0
    for message in messages:
        if message.error() is not None:
            raise KafkaException(message.error())
        size += len(message.key() or b"") + len(message.value() or b"")
    return size


def consume(settings: Settings, meter: Meter) -> None:
    """Batches of up to `BATCH_RECORDS` messages, by `consume`."""
    consumer = Consumer(_config(settings))
    consumer.subscribe([settings.topic])
    try:
        while not meter.finished:
            if messages := consumer.consume(BATCH_RECORDS, POLL_SECONDS):
                meter.add(len(messages), _touch(messages))
    finally:
        consumer.close()


def poll(settings: Settings, meter: Meter) -> None:
    """One message at a time, by `poll`."""
    consumer = Consumer(_config(settings))
    consumer.subscribe([settings.topic])
    laps = Laps(meter, settings.records)
    left, size = laps.first, 0
    try:
        while left:
            message = consumer.poll(POLL_SECONDS)
            if message is None:
                continue
            if message.error() is not None:
                raise KafkaException(message.error())
            size += len(message.key() or b"") + len(message.value() or b"")
            left -= 1
            if not left:
                left, size = laps.next(size), 0
    finally:
        consumer.close()


async def aio_consume(settings: Settings, meter: Meter) -> None:
    """Batches of up to `BATCH_RECORDS` messages, by the `consume` of `AIOConsumer`."""
    consumer = AIOConsumer(_config(settings))
    try:
        await consumer.subscribe([settings.topic])
        while not meter.finished:
            if messages := await consumer.consume(BATCH_RECORDS, POLL_SECONDS):
                meter.add(len(messages), _touch(messages))
    finally:
        await consumer.close()


async def aio_poll(settings: Settings, meter: Meter) -> None:
    """One message at a time, by the `poll` of `AIOConsumer`."""
    consumer = AIOConsumer(_config(settings))
    laps = Laps(meter, settings.records)
    left, size = laps.first, 0
    try:
        await consumer.subscribe([settings.topic])
        while left:
            message = await consumer.poll(POLL_SECONDS)
            if message is None:
                continue
            if message.error() is not None:
                raise KafkaException(message.error())
            size += len(message.key() or b"") + len(message.value() or b"")
            left -= 1
            if not left:
                left, size = laps.next(size), 0
    finally:
        await consumer.close()
