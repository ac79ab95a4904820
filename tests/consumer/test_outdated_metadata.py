"""Metadata with an older leader epoch than the position: a resumed broker names itself as the leader.

Found with real brokers: a member began at a committed offset, a former leader that had just been resumed answered
OFFSET_OUT_OF_RANGE, and 1,915 records were delivered again; `latest` would have skipped as many.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import ErrorCode
from asyncgroup.model import TopicPartition
from tests.consumer.brokers import Client, client, fetches, fill, now, read

FORMER, LEADER = 1, 2


@pytest_asyncio.fixture
async def place() -> AsyncIterator[EmbeddedCluster]:
    """Node 2 is the leader of `orders-0` with ten records, in a later epoch than node 1 was."""
    async with EmbeddedCluster(2, host="10.0.0.1", seed=1) as cluster:
        cluster.create_topic("orders", 1)
        for node in (LEADER, FORMER, LEADER):
            cluster.move_leader("orders", 0, node)
        fill(cluster, "orders", 0, batches=10)
        yield cluster


def stale(cluster: EmbeddedCluster, times: int | None) -> None:
    """Let the next `times` responses about the topic name the former leader, which has no records."""

    def name_former(response: Any) -> None:
        for topic in response.topics:
            for partition in topic.partitions:
                partition.leader_id, partition.leader_epoch = FORMER, partition.leader_epoch - 1

    def lost(response: Any) -> None:
        for topic in response.responses:
            for partition in topic.partitions:
                partition.error_code, partition.records = ErrorCode.OFFSET_OUT_OF_RANGE, None

    cluster.faults.on("Metadata", topic="orders", times=times).mutate(name_former)
    cluster.faults.on("Fetch", topic="orders", node=FORMER, times=None).mutate(lost).optional()


def resumed(reader: Client, offset: int, epoch: int) -> PartitionConsumer:
    """Continue at a committed offset; the record before it has this leader epoch."""
    consumer = PartitionConsumer(
        TopicPartition("orders", 0),
        offset,
        reader.config,
        reader.fetchers.budget,
        reader.cluster.hooks,
        leader_epoch=epoch,
    )
    reader.fetchers.add(consumer)
    return consumer


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_a_leader_of_an_older_epoch_than_the_position_is_not_fetched_from(
    place: EmbeddedCluster, policy: str
) -> None:
    epoch = place.partition("orders", 0).leader_epoch
    stale(place, times=4)
    async with client(place, auto_offset_reset=policy) as reader:
        consumer = resumed(reader, 5, epoch)
        begun = now()
        assert await read(consumer, 5) == [5, 6, 7, 8, 9]
        assert now() - begun < 2
        assert fetches(place, node=FORMER) == []


async def test_earlier_failures_do_not_shorten_the_wait(place: EmbeddedCluster) -> None:
    """For half a minute no broker knows the topic; then one names the former leader."""

    def forgotten(response: Any) -> None:
        for topic in response.topics:
            topic.error_code, topic.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []

    epoch = place.partition("orders", 0).leader_epoch
    unknown = place.faults.on("Metadata", topic="orders", times=None)
    unknown.mutate(forgotten)
    async with client(place, auto_offset_reset="latest") as reader:
        consumer = resumed(reader, 5, epoch)
        await asyncio.sleep(30)
        unknown.cancel()
        stale(place, times=2)
        assert await read(consumer, 5) == [5, 6, 7, 8, 9]
        assert fetches(place, node=FORMER) == []


async def test_metadata_that_stays_older_is_accepted_after_a_while(place: EmbeddedCluster) -> None:
    """A committed epoch may come from a deleted topic of the same name: the leader does not know it, so the policy decides."""
    async with client(place, auto_offset_reset="earliest") as reader:
        consumer = resumed(reader, 5, place.partition("orders", 0).leader_epoch + 7)
        begun = now()
        assert await asyncio.wait_for(read(consumer, 10), 60) == list(range(10))
        assert 10 <= now() - begun < 30
