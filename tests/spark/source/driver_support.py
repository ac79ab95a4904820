"""Helpers of the tests of the driver: settings, records, a group's offsets."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncgroup import Producer
from asyncgroup.config import ConsumerConfig
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.driver.progress import StreamProgress
from asyncgroup.spark.source.options.settings import Earliest, ReadSettings, Subscribe
from asyncgroup.testing import KafkaServer

TOPIC = "orders"


def tp(partition: int, topic: str = TOPIC) -> TopicPartition:
    return TopicPartition(topic, partition)


def offsets(*by_partition: int, topic: str = TOPIC) -> dict[TopicPartition, int]:
    """Return offsets of the topic's partitions 0, 1, …"""
    return {tp(number, topic): offset for number, offset in enumerate(by_partition)}


def settings(kafka: KafkaServer, **options: Any) -> ReadSettings:
    """Return settings of a query that reads the whole topic, with short pauses between retries."""
    defaults: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "config": ConsumerConfig(retry_backoff=0.02, retry_backoff_max=0.1),
        "strategy": Subscribe((TOPIC,)),
        "starting": Earliest(),
        "offset_retry_interval": 0.05,
    }
    return ReadSettings(**defaults | options)


def produce(
    kafka: KafkaServer,
    count: int,
    partition: int = 0,
    *,
    topic: str = TOPIC,
    size: int = 1,
    at: int | None = None,
) -> None:
    """Produce `count` more records; `at` is their timestamp in ms."""

    async def send() -> None:
        async with Producer(kafka.bootstrap_servers) as producer:
            for _ in range(count):
                await producer.enqueue(topic, b"v" * size, partition=partition, timestamp=at)
            await producer.flush()

    asyncio.run(send())


def committed(kafka: KafkaServer, group: str) -> dict[TopicPartition, int]:
    """Return the group's committed offsets."""
    return {place: value.offset for place, value in kafka.group(group).offsets.items()}


class Queries:
    """The queries of one test, stopped at its end."""

    def __init__(self, kafka: KafkaServer) -> None:
        self._kafka = kafka
        self._running: list[StreamProgress] = []

    def __call__(self, **options: Any) -> StreamProgress:
        self._running.append(StreamProgress(settings(self._kafka, **options)))
        return self._running[-1]

    def end(self) -> None:
        """Stop all queries."""
        for progress in self._running:
            progress.stop()
