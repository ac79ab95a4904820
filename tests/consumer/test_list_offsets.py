"""list_offsets: offsets by name and by time, from several leaders, with retriable errors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.list_offsets import EARLIEST, LATEST, is_retriable_error
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.list_offsets import list_offsets, list_offsets_once
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.model import TopicPartition
from tests.consumer.brokers import fill

TPS = [TopicPartition("orders", partition) for partition in range(6)]


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(3, host="10.0.0.1", seed=1) as cluster:
        cluster.create_topic("orders", len(TPS))
        for tp in TPS:
            fill(cluster, *tp, batches=tp.partition, records=2)
        yield cluster


@contextlib.asynccontextmanager
async def cluster_of(brokers: EmbeddedCluster, **config: Any) -> AsyncIterator[ClusterClient]:
    async with ClusterClient(
        brokers.bootstrap_servers, ConsumerConfig(client_id="reader", **config)
    ) as cluster:
        yield cluster


async def test_ends_of_all_partitions_with_one_request_per_leader(brokers: EmbeddedCluster) -> None:
    async with cluster_of(brokers) as cluster:
        assert await list_offsets(cluster, dict.fromkeys(TPS, LATEST)) == {tp: 2 * tp.partition for tp in TPS}
        assert await list_offsets(cluster, dict.fromkeys(TPS, EARLIEST)) == dict.fromkeys(TPS, 0)
        leaders = {brokers.leader(*tp) for tp in TPS}
        assert len(brokers.history.of("ListOffsets")) == 2 * len(leaders)
        assert await list_offsets(cluster, {}) == {}


async def test_a_time_after_the_last_record_gives_the_end(brokers: EmbeddedCluster) -> None:
    """The records have the timestamp 1000."""
    async with cluster_of(brokers) as cluster:
        wanted = {TPS[4]: 1000, TPS[5]: 1001, TPS[3]: EARLIEST, TPS[0]: 5}
        assert await list_offsets(cluster, wanted) == {TPS[4]: 0, TPS[5]: 10, TPS[3]: 0, TPS[0]: 0}


async def test_a_retriable_error_is_retried_for_its_partitions_only(brokers: EmbeddedCluster) -> None:
    brokers.faults.on("ListOffsets", nth=1, times=2).error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    async with cluster_of(brokers) as cluster:
        assert len(await list_offsets(cluster, dict.fromkeys(TPS, LATEST))) == len(TPS)
        asked = [
            partition.partition_index
            for exchange in brokers.history.of("ListOffsets")
            for topic in exchange.request.topics
            for partition in topic.partitions
        ]
        assert len(asked) < 2 * len(TPS), "successful partitions are not requested again"


async def test_a_lost_connection_is_retried(brokers: EmbeddedCluster) -> None:
    brokers.faults.on("ListOffsets").disconnect()
    async with cluster_of(brokers) as cluster:
        assert len(await list_offsets(cluster, dict.fromkeys(TPS, LATEST))) == len(TPS)


async def test_a_moved_leader_is_found(brokers: EmbeddedCluster) -> None:
    async with cluster_of(brokers) as cluster:
        await list_offsets(cluster, {TPS[1]: LATEST})
        brokers.move_leader("orders", 1, brokers.leader("orders", 1) % 3 + 1)
        assert await list_offsets(cluster, {TPS[1]: LATEST}) == {TPS[1]: 2}


@pytest.mark.parametrize("tries", [0, 2])
async def test_a_persistent_error_is_raised_after_metadata_retry_max(
    brokers: EmbeddedCluster, tries: int
) -> None:
    """Found by review: there was one retry more than `metadata_retry_max`."""
    fault = brokers.faults.on("ListOffsets", times=None).error(ErrorCode.LEADER_NOT_AVAILABLE)
    async with cluster_of(brokers, metadata_retry_max=tries) as cluster:
        with pytest.raises(BrokerError, match=r"offset of orders-2: LEADER_NOT_AVAILABLE"):
            await list_offsets(cluster, {TPS[2]: LATEST})
        assert fault.hits == 1 + tries


async def test_a_final_error_is_raised_at_once_and_before_a_retriable_one(brokers: EmbeddedCluster) -> None:
    node = brokers.leader("orders", 0)
    brokers.faults.on("ListOffsets", node=node).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    brokers.faults.on("ListOffsets", times=None).error(ErrorCode.LEADER_NOT_AVAILABLE)
    async with cluster_of(brokers) as cluster:
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await list_offsets(cluster, dict.fromkeys(TPS, LATEST))
        assert len(brokers.history.of("ListOffsets")) <= 3


async def test_an_unknown_partition_is_named(brokers: EmbeddedCluster) -> None:
    async with cluster_of(brokers, metadata_retry_max=1) as cluster:
        with pytest.raises(BrokerError, match=r"orders-77.*does not exist"):
            await list_offsets(cluster, {TopicPartition("orders", 77): LATEST})


@pytest.mark.parametrize(("isolation", "level"), [("read_uncommitted", 0), ("read_committed", 1)])
async def test_the_isolation_level_is_sent(brokers: EmbeddedCluster, isolation: Any, level: int) -> None:
    async with cluster_of(brokers) as cluster:
        await list_offsets(cluster, dict.fromkeys(TPS, LATEST), isolation)
        asked = brokers.history.of("ListOffsets", client_id="reader")
        assert {exchange.request.isolation_level for exchange in asked} == {level}


async def test_list_offsets_once_returns_an_offset_or_an_error_per_partition(
    brokers: EmbeddedCluster,
) -> None:
    async with cluster_of(brokers) as cluster:
        await cluster.topics(["orders"])
        node = brokers.leader("orders", 0)
        brokers.faults.on("ListOffsets", node=node).error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        wanted = dict.fromkeys([*TPS, TopicPartition("orders", 77)], LATEST)
        found = await list_offsets_once(cluster, wanted)
        offsets, problems = found.offsets, found.problems
        assert offsets == {tp: 2 * tp.partition for tp in TPS if brokers.leader(*tp) != node}
        assert offsets.keys() | problems.keys() == wanted.keys()
        assert is_retriable_error(problems[TPS[0]])
        assert "LEADER_NOT_AVAILABLE" in str(problems[TopicPartition("orders", 77)])
        assert len(brokers.history.of("ListOffsets", client_id="reader")) == 3


async def test_partitions_that_were_not_requested_are_ignored(brokers: EmbeddedCluster) -> None:
    """Found with wrong responses: an offset for another partition ended the lookup with a KeyError."""

    def another(response: Any) -> None:
        response.topics[0].partitions[0].partition_index = 99

    async with cluster_of(brokers, metadata_retry_max=1) as cluster:
        brokers.faults.on("ListOffsets", times=2).mutate(another)
        with pytest.raises(BrokerError, match=r"offset of orders-1: .*the response does not contain it"):
            await list_offsets(cluster, {TPS[1]: LATEST})
        assert await list_offsets(cluster, {TPS[1]: 999}) == {TPS[1]: 0}
