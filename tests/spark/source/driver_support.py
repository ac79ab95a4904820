"""Helpers of the tests of the driver: settings, records, a group's offsets."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver.broker_lookups import BrokerLookups
from asyncgroup.spark.source.driver.group_committer import GroupCommitter
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


class VirtualQuery:
    """A query whose calls are coroutines of the running loop, so that it can run in virtual time. Close with `aclose`.

    `initial` and `prepare` are Spark's first calls; `batch` is `latestOffset` and `partitions`.
    """

    def __init__(self, cluster: EmbeddedCluster, **options: Any) -> None:
        defaults: dict[str, Any] = {"strategy": Subscribe((TOPIC,)), "starting": Earliest()}
        self._settings = ReadSettings(cluster.bootstrap_servers, ConsumerConfig(), **defaults | options)
        self.progress = StreamProgress(self._settings)
        self.lookups = BrokerLookups(self._settings)
        self._commits: GroupCommitter | None = None
        self.progress._client = self  # type: ignore[assignment]

    async def __aenter__(self) -> Self:
        await self.lookups.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._commits is not None:
            await self._commits.aclose()
        await self.lookups.aclose()

    def commits(self) -> GroupCommitter | None:
        """Return the committer, as `BrokerClient` does."""
        if self._commits is None and self._settings.group_id is not None:
            self._commits = GroupCommitter(self.lookups, self._settings)
        return self._commits

    async def prepare(self) -> None:
        """Start Trigger.AvailableNow."""
        await self.progress._ends.prepare_available_now(self.lookups)

    async def initial(self) -> dict[TopicPartition, int]:
        """Return where the query starts."""
        self.progress._initial = await self.progress._find_initial(self.lookups)
        return self.progress._initial

    async def end(self, start: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the end of the next batch."""
        return await self.progress._find_end(self.lookups, start, limited=True)

    async def ranges(
        self, start: dict[TopicPartition, int], end: dict[TopicPartition, int]
    ) -> list[OffsetRange]:
        """Return the ranges that a batch reads."""
        tasks = await self.progress._find_tasks(self.lookups, start, end)
        return sorted(piece for task in tasks for piece in task)

    async def batch(
        self, start: dict[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], list[OffsetRange]]:
        """Return the end of the next batch, and its ranges."""
        end = await self.end(start)
        return end, await self.ranges(start, end)
