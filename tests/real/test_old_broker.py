"""An old broker, Kafka 3.9: the negotiated versions, and group, commits, offsets and producer with them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from asyncgroup import Cluster, Consumer, Producer
from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.errors import UnsupportedVersionError
from asyncgroup.group.classic.group_members import describe_members
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from tests.stories import membership
from tests.stories.environment import Environment
from tests.stories.real import RealEnvironment


@pytest.mark.parametrize(
    "story",
    [membership.two_joiners, membership.static_leader_restarts],
    ids=lambda story: story.__name__,
)
async def test_story(story: Callable[[Environment], Awaitable[None]], kafka_39: ApacheKafka, tmp_path: Path):
    async with RealEnvironment(kafka_39.bootstrap_servers, tmp_path) as env:
        await story(env)


async def test_each_api_uses_the_newest_version_of_both(kafka_39: ApacheKafka) -> None:
    async with ClusterClient(kafka_39.bootstrap_servers) as cluster:
        connection = await cluster.network.connection(1)
        newest = {
            m.FetchRequest: 17,
            m.MetadataRequest: 12,
            m.OffsetCommitRequest: 9,
            m.OffsetFetchRequest: 9,
            m.ListOffsetsRequest: 9,
            m.JoinGroupRequest: 9,
            m.ProduceRequest: 11,
        }
        assert {cls: connection.version_for(cls) for cls in newest} == newest
        connection.versions.pop(m.ConsumerGroupHeartbeatRequest.API_KEY)
        with pytest.raises(
            UnsupportedVersionError,
            match=r"ConsumerGroupHeartbeat: node 1 \(127.* does not offer it, .* 0-1",
        ):
            await cluster.network.request(1, m.ConsumerGroupHeartbeatRequest())


async def test_a_group_without_members(kafka_39: ApacheKafka) -> None:
    """Found by the matrix: exclusive work queues did not open, as this release answers UNSUPPORTED_VERSION."""
    async with ClusterClient(kafka_39.bootstrap_servers) as cluster:
        assert await describe_members(cluster, f"none-{uuid.uuid4().hex[:8]}", lane="control") == []


async def test_offsets_by_time_and_a_compressed_batch(kafka_39: ApacheKafka) -> None:
    name = f"timed-{uuid.uuid4().hex[:8]}"
    async with Cluster(kafka_39.bootstrap_servers, ProducerConfig()) as cluster:
        topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        topic.configs = [m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="-1")]
        await cluster.request(
            cluster.view.controller_id, m.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        )
        await cluster.topics([name])
        first = 1_700_000_000_000
        async with Producer(cluster, ProducerConfig(compression_type="zstd", linger=0.01)) as producer:
            sends = (producer.send(name, b"%d" % n, timestamp=first + 1000 * n) for n in range(10))
            await asyncio.gather(*sends)
    async with Consumer(kafka_39.bootstrap_servers, ConsumerConfig()) as consumer:
        at = datetime.fromtimestamp(first / 1000 + 6, UTC)
        partition = await consumer.partition(name, 0, at)
        seen = []
        async with asyncio.timeout(20):
            async for record in partition:
                seen.append(record.value)
                if len(seen) == 4:
                    break
        assert seen == [b"6", b"7", b"8", b"9"]
        assert partition.high_watermark == 10
