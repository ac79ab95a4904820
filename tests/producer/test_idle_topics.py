"""Topics without records for `metadata_max_idle` are forgotten (Java's metadata.max.idle.ms, KIP-526)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.producer import Producer
from tests.producer.support import stored
from tests.stories.virtual import now

SETTINGS: dict[str, Any] = {"linger": 0.0, "metadata_refresh_interval": 60.0}


def asked(cluster: EmbeddedCluster, since: float = 0.0) -> set[str]:
    """Return the topics in Metadata requests since loop time `since`."""
    found = [each for each in cluster.history.of("Metadata") if each.time >= since]
    return {topic.name for each in found for topic in each.request.topics or []}


async def test_a_deleted_topic_that_is_not_used_stays_deleted() -> None:
    """With auto.create.topics.enable, each metadata refresh of the producer would recreate it."""
    async with EmbeddedCluster(auto_create_topics=True) as cluster:
        async with Producer(cluster.bootstrap_servers, ProducerConfig(**SETTINGS)) as producer:
            await producer.send("old", b"x")
            await asyncio.sleep(400)
            cluster.delete_topic("old")
            since = now()
            for _ in range(60):
                await producer.send("used", b"x")
                await asyncio.sleep(60)
            assert asked(cluster, since) == {"used"}
            with pytest.raises(Exception, match="old"):
                cluster.topic("old")
            await producer.send("old", b"again")
            assert stored(cluster, topic="old") == [b"again"]


@pytest.mark.parametrize("idle", [5.0, 300.0])
async def test_a_topic_is_forgotten_after_metadata_max_idle(idle: float) -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", 1)
        settings = ProducerConfig(linger=0.0, metadata_refresh_interval=idle / 50, metadata_max_idle=idle)
        async with Producer(cluster.bootstrap_servers, settings) as producer:
            for _ in range(5):
                await producer.send("t", b"x")
                await asyncio.sleep(idle * 0.9)
            last = now() - idle * 0.9
            await asyncio.sleep(idle)
            times = [each.time for each in cluster.history.of("Metadata") if each.request.topics]
            assert last + idle * 0.97 <= max(times) <= last + 1.2 * idle, (
                "metadata is refreshed 50 times per metadata_max_idle"
            )
            assert not producer._inner.accumulator.queues
            assert (await producer.send("t", b"y")).offset == 5


async def test_a_topic_with_records_in_flight_is_kept() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", 1)
        settings = ProducerConfig(
            **SETTINGS, metadata_max_idle=5.0, delivery_timeout=600.0, request_timeout=500.0
        )
        async with Producer(cluster.bootstrap_servers, settings) as producer:
            await producer.send("t", b"a")
            held = cluster.faults.on("Produce", nth=1).hold()
            sending = asyncio.create_task(producer.send("t", b"b"))
            await asyncio.sleep(100)
            since = now()
            await asyncio.sleep(61)
            assert asked(cluster, since) == {"t"}
            held.release()
            assert (await sending).offset == 1
            await asyncio.sleep(70)
            since = now()
            await asyncio.sleep(61)
            assert asked(cluster, since) == set()


async def test_topics_tracked_by_others_on_a_shared_cluster_are_kept() -> None:
    from asyncgroup import Cluster

    async with EmbeddedCluster() as broker:
        broker.create_topic("t", 1)
        config = ProducerConfig(**SETTINGS)
        async with Cluster(broker.bootstrap_servers, config) as cluster:
            cluster.track(["t"])
            async with Producer(cluster, config) as producer:
                await producer.send("t", b"x")
                await asyncio.sleep(600)
                since = now()
                await asyncio.sleep(61)
                assert asked(broker, since) == {"t"}
            cluster.untrack(["t"])


async def test_metadata_max_idle_and_its_kafka_property() -> None:
    made = ProducerConfig.from_properties({"metadata.max.idle.ms": "60000"}).config
    assert made.metadata_max_idle == 60.0
    assert ProducerConfig().metadata_max_idle == 300.0
