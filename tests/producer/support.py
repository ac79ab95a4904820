"""Helpers of the producer tests against an embedded cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.model import RecordMetadata
from asyncgroup.producer import Producer

TOPIC = "orders"
QUICK: dict[str, Any] = {"linger": 0.0, "retry_backoff": 0.1, "retry_backoff_max": 1.0}


def now() -> float:
    """Return the loop's time in seconds."""
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def writing(
    nodes: int = 3, partitions: int = 6, *, clock: Any = lambda: 1_700_000_000_000, **config: Any
) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    """Yield an embedded cluster with topic `orders`, and a producer connected to it."""
    async with EmbeddedCluster(nodes=nodes, seed=1) as cluster:
        cluster.create_topic(TOPIC, partitions)
        settings = ProducerConfig(**{"linger": 0.0, **config})
        async with Producer(
            cluster.bootstrap_servers, settings, clock=clock, rng=random.Random(1)
        ) as producer:
            yield cluster, producer


def stored(cluster: EmbeddedCluster, partition: int | None = None, topic: str = TOPIC) -> list[bytes | None]:
    """Return the values in the log."""
    return [record.value for record in cluster.records(topic, partition)]


def produced(cluster: EmbeddedCluster) -> list[Any]:
    """Return the Produce requests that the cluster received."""
    return cluster.history.of("Produce")


async def fill_memory(
    cluster: EmbeddedCluster, producer: Producer, *, delay: float
) -> tuple[asyncio.Future[RecordMetadata], asyncio.Task[RecordMetadata]]:
    """Send a record that is answered after `delay`, and a second one that waits for its memory, of 400 bytes in all."""
    await producer.send(TOPIC, b"warm up", partition=0)
    cluster.faults.on("Produce").delay(delay)
    first = producer.send_nowait(TOPIC, b"." * 300, partition=1)
    return first, asyncio.create_task(producer.send(TOPIC, b"." * 300, partition=1))
