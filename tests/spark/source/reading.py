"""Helpers that fill logs, and read ranges step by step like a worker process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.executor.worker_cluster import WorkerCluster
from asyncgroup.spark.source.options.settings import Earliest, ReadSettings, Subscribe, TopicIds
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import append
from tests.broker.internals import complete_delayed_operations, controller_of, partition_in

TOPIC = "orders"
TIME = 1_700_000_000_000


def batch(
    first: int,
    count: int,
    *,
    size: int = 20,
    codec: str = "none",
    headers: bool = False,
    keys: int = 1 << 30,
    first_key: int = 0,
) -> bytes:
    """Return a record batch with records numbered from `first` on, whose keys repeat after `keys` records."""
    builder = BatchBuilder(codec, 1 << 30)
    for number in range(first, first + count):
        headers_of_record = [("n", b"%d" % number)] if headers and number % 2 else []
        assert builder.append(
            TIME + number,
            b"k%d" % (first_key + number % keys),
            (b"%d " % number).ljust(size, b"."),
            headers_of_record,
        )
    return builder.build()


def fill(
    cluster: EmbeddedCluster,
    count: int,
    *,
    partition: int = 0,
    per_batch: int = 10,
    topic: str = TOPIC,
    **how: Any,
) -> None:
    """Append records in batches of `per_batch`."""
    place = partition_in(cluster, topic, partition)
    first = place.log.end_offset
    for base in range(first, first + count, per_batch):
        data = batch(base, min(per_batch, first + count - base), **how)
        append(place.log, data, place.leader_epoch)
    complete_delayed_operations(cluster, place)


def part(start: int, end: int, partition: int = 0, topic: str = TOPIC) -> OffsetRange:
    """Return a range of the topic."""
    return OffsetRange(topic, partition, start, end)


def settings(servers: str, *, config: dict[str, Any] | None = None, **options: Any) -> ReadSettings:
    """Return the settings of a query."""
    return ReadSettings(servers, ConsumerConfig(**(config or {})), Subscribe((TOPIC,)), Earliest(), **options)


class Worker:
    """A worker on the test's own loop; `steps` counts the waits."""

    def __init__(self, servers: str, **options: Any) -> None:
        self.settings = settings(servers, **options)
        self.home = WorkerCluster(self.settings)
        self.topic_ids: TopicIds = {}
        """The topic ids of the ranges, as passed by the driver."""
        self.pause = 0.0
        """Seconds between each wait and the reading."""
        self.steps = 0

    async def batches(
        self, *ranges: OffsetRange, between: Callable[[int], Any] | None = None
    ) -> AsyncIterator[Any]:
        """Return the Arrow batches; `between(number)` is awaited after each wait."""
        home = self.home
        await home.open(self.settings.poll_timeout)
        home.acquire(asyncio.get_running_loop().time())
        reader = home.reader(self.settings, ranges, self.topic_ids)
        try:
            while not reader.is_done:
                await reader.advance()
                if self.pause:
                    await asyncio.sleep(self.pause)
                for made in reader.read():
                    yield made
                self.steps += 1
                if between is not None and asyncio.iscoroutine(work := between(self.steps)):
                    await work
            for made in reader.flush():
                yield made
        finally:
            await home.release(reader)

    async def rows(
        self, *ranges: OffsetRange, between: Callable[[int], Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return all rows."""
        return [row async for made in self.batches(*ranges, between=between) for row in made.to_pylist()]

    async def offsets(self, *ranges: OffsetRange, between: Callable[[int], Any] | None = None) -> list[int]:
        """Return all offsets of ranges of one partition."""
        return [row["offset"] for row in await self.rows(*ranges, between=between)]


@asynccontextmanager
async def worker(cluster: EmbeddedCluster, **options: Any) -> AsyncIterator[Worker]:
    """Open a worker, and close it at the end."""
    one = Worker(cluster.bootstrap_servers, **options)
    try:
        yield one
    finally:
        await one.home.aclose()


def by_partition(rows: Iterable[dict[str, Any]]) -> dict[int, list[int]]:
    """Return the offsets of rows by partition, in the order of the rows."""
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


def fetches(cluster: EmbeddedCluster) -> int:
    """Return the number of Fetch requests that the brokers have received."""
    return len(cluster.history.of("Fetch"))


def topic_ids(cluster: EmbeddedCluster) -> TopicIds:
    """Return the present topic ids of the topic's partitions."""
    topic = controller_of(cluster).topics[TOPIC]
    return {TopicPartition(TOPIC, number): topic.id for number in range(len(topic.partitions))}


def now() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()
