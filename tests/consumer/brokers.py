"""Partitions on an embedded cluster, filled by hand, and the fetchers of a client that reads them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from asyncgroup.broker import EmbeddedCluster, Exchange
from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetchers import Fetchers
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.lifecycle import BackgroundTasks
from asyncgroup.model import TopicPartition
from asyncgroup.wire.records import BatchBuilder

__all__ = ["PARTITIONS", "Client", "caught_up", "client", "fetches", "fill", "now", "read"]

PARTITIONS = 6


def now() -> float:
    return asyncio.get_running_loop().time()


def fill(
    brokers: EmbeddedCluster, topic: str, partition: int, batches: int, records: int = 1, size: int = 1
) -> None:
    """Append so many batches of `records` records of `size` bytes each, as a producer's request would."""
    place = brokers.partition(topic, partition)
    for _ in range(batches):
        builder = BatchBuilder("none", 1 << 30)
        for _ in range(records):
            assert builder.append(1000, b"k", b"v" * size)
        place.log.append(builder.build(), place.leader_epoch)
    brokers.nodes[place.leader].appended(place)


class Client:
    """Fetchers on a cluster, in a task group of their own."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig, tasks: BackgroundTasks) -> None:
        self.cluster, self.config = cluster, config
        self.errors: list[Exception] = []
        self.fetchers = Fetchers(cluster, config, tasks.spawn, self.errors.append)

    def consumer(self, topic: str, partition: int, offset: int = 0) -> PartitionConsumer:
        """A partition consumer that is not fetched yet."""
        return PartitionConsumer(
            TopicPartition(topic, partition), offset, self.config, self.fetchers.budget, self.cluster.hooks
        )

    def read(self, topic: str, *partitions: int, offset: int = 0) -> list[PartitionConsumer]:
        """Partition consumers that are fetched from now on."""
        consumers = [self.consumer(topic, partition, offset) for partition in partitions]
        for consumer in consumers:
            self.fetchers.add(consumer)
        return consumers


@contextlib.asynccontextmanager
async def client(
    brokers: EmbeddedCluster, topics: Iterable[str] = ("orders",), **config: Any
) -> AsyncIterator[Client]:
    """A running client of `brokers` that knows `topics`."""
    full = ConsumerConfig(client_id="reader", **config)
    async with Cluster(brokers.bootstrap_servers, full) as cluster:
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
    """What the reader has asked for so far."""
    return brokers.history.of("Fetch", client_id="reader", node=node)


async def read(consumer, count: int) -> list[int]:
    return [(await anext(consumer)).offset for _ in range(count)]


async def caught_up(consumer) -> None:
    """Wait until the partition's fetch is parked at the broker: it has been asked for and has nothing more."""
    while consumer.high_water_mark < 0 or not consumer.reserved:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
