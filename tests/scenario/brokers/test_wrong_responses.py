"""Responses that decode but have wrong values: only asyncgroup errors are raised, and the client recovers afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from asyncgroup import (
    Claim,
    Cluster,
    Consumer,
    ConsumerConfig,
    ConsumerGroup,
    Handler,
    Producer,
    ProducerConfig,
    Session,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import OffsetManager
from tests.profiles import soak, thinned
from tests.scenario.brokers.wrong_responses import ResponseMutator

TOPIC = "orders"
PARTITIONS = 4
WRONG_SECONDS = 30.0
"""Seconds with wrong responses."""

SEEDS = [*thinned(range(4)), *soak(range(100, 500))]


PROTOCOLS: Final[dict[str, dict[str, Any]]] = {
    "classic": {"heartbeat_interval": 1.0},
    "consumer": {"group_protocol": "consumer"},
}


def config(protocol: str = "classic") -> ConsumerConfig:
    return ConsumerConfig(
        **PROTOCOLS[protocol],
        auto_offset_reset="earliest",
        auto_commit_interval=0.5,
        request_timeout=10.0,
        metadata_refresh_interval=20.0,
    )


class Reader(Handler):
    """Tracks the last offset of each partition."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    async def consume_claim(self, _session: Session, claim: Claim) -> None:
        async for record in claim:
            self.seen[record.partition] = record.offset
            claim.mark(record)


async def read(cluster: EmbeddedCluster, reader: Reader, ends: dict[int, int], protocol: str) -> None:
    """Read in a group until the last records have arrived; start another group if one fails."""
    while reader.seen != ends:
        with contextlib.suppress(AsyncGroupError):
            async with ConsumerGroup(cluster.bootstrap_servers, "g", config(protocol)) as group:
                running = asyncio.create_task(group.run(TOPIC, reader))
                try:
                    while reader.seen != ends and not running.done():
                        await asyncio.wait([running], timeout=1.0)
                        assert repr(group)
                        assert str(group.health())
                finally:
                    running.cancel()
                    await asyncio.wait([running])
                if not running.cancelled():
                    running.result()
        await asyncio.sleep(1)


async def write(cluster: EmbeddedCluster, end: float) -> None:
    settings = ProducerConfig(request_timeout=5.0, delivery_timeout=10.0)
    with contextlib.suppress(AsyncGroupError):
        async with Producer(cluster.bootstrap_servers, settings) as producer:
            while asyncio.get_running_loop().time() < end:
                with contextlib.suppress(AsyncGroupError):
                    await producer.send(TOPIC, b"x")
                await asyncio.sleep(0.3)


async def read_without_group(cluster: EmbeddedCluster) -> None:
    """Use a consumer without a group, and fetch the offsets of another group."""
    with contextlib.suppress(AsyncGroupError, TimeoutError):
        async with Consumer(cluster.bootstrap_servers, config()) as consumer, asyncio.timeout(10):
            await consumer.topics()
            await consumer.partitions(TOPIC)
            async for _ in await consumer.partition(TOPIC, 1, "earliest"):
                pass
    with contextlib.suppress(AsyncGroupError):
        async with Cluster(cluster.bootstrap_servers, config()) as client:
            offsets = OffsetManager(client, "other")
            for number in range(PARTITIONS):
                with contextlib.suppress(AsyncGroupError):
                    await offsets.fetch([TopicPartition(TOPIC, number)])


@contextlib.asynccontextmanager
async def mutated_cluster(
    mutator: ResponseMutator, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EmbeddedCluster]:
    monkeypatch.setattr("asyncgroup.broker.net.connection.encode_response", mutator.encode)
    async with EmbeddedCluster(3, seed=1, history_limit=0) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        await write_to_each(cluster, 10)
        yield cluster


async def write_to_each(cluster: EmbeddedCluster, count: int) -> None:
    async with Producer(cluster.bootstrap_servers) as producer:
        for number in range(count * PARTITIONS):
            await producer.send(TOPIC, b"x", partition=number % PARTITIONS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", SEEDS)
async def test_the_client_recovers_from_wrong_responses(
    seed: int, protocol: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    # versions count as long as the connection, and a member with the consumer protocol needs topic ids in metadata
    unchanged = ["ApiVersionsResponse"] if protocol == "consumer" else []
    mutator = ResponseMutator(rng, rng.choice([2, 4, 10]), unchanged)
    loop = asyncio.get_running_loop()
    async with mutated_cluster(mutator, monkeypatch) as cluster:
        mutator.active = rng.random() < 0.8
        reader, ends = Reader(), {-1: -1}
        reading = asyncio.create_task(read(cluster, reader, ends, protocol))
        others = [write(cluster, loop.time() + WRONG_SECONDS), read_without_group(cluster)]
        async with asyncio.TaskGroup() as tasks:
            for other in others:
                tasks.create_task(other)
            await asyncio.sleep(1)
            mutator.active = True
            await asyncio.sleep(WRONG_SECONDS)
            mutator.active = False
        assert mutator.changes
        await write_to_each(cluster, 1)
        ends.clear()
        ends.update({n: cluster.partition(TOPIC, n).log_end_offset - 1 for n in range(PARTITIONS)})
        async with asyncio.timeout(120):
            await reading
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    # wrong record data may raise an exception in the handler, which is logged
    assert [message for message in errors if "consume_claim" not in message] == []
