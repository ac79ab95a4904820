"""Test support: fill partitions of an embedded cluster, and read them with the fetchers of a client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from asyncgroup.broker import EmbeddedCluster, Exchange
from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetcher import Fetcher
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.lifecycle import BackgroundTasks
from asyncgroup.model import TopicPartition
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import append
from tests.broker.internals import complete_delayed_operations, partition_in

__all__ = ["PARTITIONS", "Client", "caught_up", "client", "fetches", "fill", "now", "read"]

PARTITIONS = 6


def now() -> float:
    return asyncio.get_running_loop().time()


def fill(
    brokers: EmbeddedCluster, topic: str, partition: int, batches: int, records: int = 1, size: int = 1
) -> None:
    """Append batches of `records` records of `size` bytes each to a partition's log, as a Produce request would."""
    place = partition_in(brokers, topic, partition)
    for _ in range(batches):
        builder = BatchBuilder("none", 1 << 30)
        for _ in range(records):
            assert builder.append(1000, b"k", b"v" * size)
        append(place.log, builder.build(), place.leader_epoch)
    complete_delayed_operations(brokers, place)


class Client:
    """The fetchers of one client, with their own background tasks."""

    def __init__(self, cluster: ClusterClient, config: ConsumerConfig, tasks: BackgroundTasks) -> None:
        self.cluster, self.config = cluster, config
        self.errors: list[Exception] = []
        self.fetchers = Fetcher(cluster, config, tasks.spawn, self.errors.append)

    def consumer(self, topic: str, partition: int, offset: int = 0) -> PartitionConsumer:
        """Return a partition consumer that is not fetched yet."""
        return PartitionConsumer(
            TopicPartition(topic, partition), offset, self.config, self.fetchers.budget, self.cluster.hooks
        )

    def read(self, topic: str, *partitions: int, offset: int = 0) -> list[PartitionConsumer]:
        """Return partition consumers that are being fetched."""
        consumers = [self.consumer(topic, partition, offset) for partition in partitions]
        for consumer in consumers:
            self.fetchers.add(consumer)
        return consumers


@contextlib.asynccontextmanager
async def client(
    brokers: EmbeddedCluster, topics: Iterable[str] = ("orders",), **config: Any
) -> AsyncIterator[Client]:
    """Run a client of `brokers` whose metadata has `topics`."""
    full = ConsumerConfig(client_id="reader", **config)
    async with ClusterClient(brokers.bootstrap_servers, full) as cluster:
        cluster.random.seed(1)
        cluster.track(topics)
        await cluster.refresh()
        tasks = BackgroundTasks("client")
        await tasks.start()
        made = Client(cluster, full, tasks)
        made.fetchers.start()
        try:
            yield made
        finally:
            await tasks.stop()


def fetches(brokers: EmbeddedCluster, node: int | None = None) -> list[Exchange]:
    """Return the Fetch requests of the reader so far."""
    return brokers.history.of("Fetch", client_id="reader", node=node)


async def read(consumer, count: int) -> list[int]:
    return [(await anext(consumer)).offset for _ in range(count)]


async def caught_up(consumer) -> None:
    """Wait until the partition's fetch waits at the broker: all its records were fetched."""
    while consumer.high_watermark < 0 or not consumer._inner.reserved:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
