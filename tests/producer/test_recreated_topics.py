"""A topic is deleted and created again while records wait for it: they fail, and do not get into the new topic."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import BrokerError, DeliveryFailedError, ErrorCode
from asyncgroup.producer import Producer
from asyncgroup.wire import messages as m
from tests.producer.support import TOPIC, now, produced, stored, writing
from tests.stories.holding import limit_version


def recreate(cluster: EmbeddedCluster, partitions: int = 2) -> None:
    cluster.delete_topic(TOPIC)
    cluster.create_topic(TOPIC, partitions, replication_factor=1)


def is_recreated(error: BaseException | None) -> bool:
    return (
        isinstance(error, BrokerError)
        and error.code == ErrorCode.UNKNOWN_TOPIC_ID
        and "deleted and created again" in str(error)
        and f"{TOPIC}-" in str(error)
    )


async def test_waiting_batches_fail_and_later_ones_are_written() -> None:
    async with EmbeddedCluster(nodes=2, seed=1) as cluster:
        cluster.create_topic(TOPIC, 2, replication_factor=1)
        async with Producer(cluster.bootstrap_servers) as producer:
            await producer.send(TOPIC, b"old", partition=0)
            await producer.send(TOPIC, b"old", partition=1)
            await cluster.stop_node(cluster.leader(TOPIC, 0))
            futures = [producer.send_nowait(TOPIC, b"waits %d" % n, partition=0) for n in range(3)]
            await producer.enqueue(TOPIC, b"waits", partition=0)
            await asyncio.sleep(5)
            assert not any(future.done() for future in futures)
            recreate(cluster)
            await asyncio.sleep(5)
            assert all(is_recreated(future.exception()) for future in futures)
            with pytest.raises(DeliveryFailedError, match="UNKNOWN_TOPIC_ID"):
                await producer.flush()
            places = [await producer.send(TOPIC, b"new", partition=n) for n in (0, 1)]
            assert [place.offset for place in places] == [0, 0]
            assert stored(cluster) == [b"new", b"new"]


async def test_records_written_after_the_metadata_changed_are_kept_apart() -> None:
    """The batch of a recreated topic is open when a record for the new one comes."""
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 1)
        config = ProducerConfig(linger=30.0, delivery_timeout=100.0)
        async with Producer(cluster.bootstrap_servers, config) as producer:
            await producer.send(TOPIC, b"old")
            lingering = producer.send_nowait(TOPIC, b"lingers")
            recreate(cluster, 1)
            await producer.cluster.refresh()
            later = producer.send_nowait(TOPIC, b"new")
            await producer.flush()
            assert is_recreated(lingering.exception())
            assert (await later).offset == 0
            assert stored(cluster) == [b"new"]


@pytest.mark.parametrize("highest", [13, 12])
async def test_a_batch_in_flight_is_not_sent_again(highest: int) -> None:
    """Version 13 has topic ids; an older one, with the name, would write into the new topic."""

    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 1)
        limit_version(cluster, m.ProduceRequest.API_KEY, highest)
        async with Producer(cluster.bootstrap_servers) as producer:
            await producer.send(TOPIC, b"old")
            fault = cluster.faults.on("Produce").hold().error(ErrorCode.NOT_ENOUGH_REPLICAS)
            first = producer.send_nowait(TOPIC, b"in flight")
            await asyncio.sleep(1)
            second = producer.send_nowait(TOPIC, b"also in flight, or queued")
            recreate(cluster, 1)
            await producer.cluster.refresh()
            third = producer.send_nowait(TOPIC, b"new")
            await asyncio.sleep(1)
            fault.release()
            await asyncio.wait([first, second, third])
            assert is_recreated(first.exception())
            assert is_recreated(second.exception())
            assert (await third).offset == 0
            assert stored(cluster) == [b"new"]
            versions = {asked.version for asked in produced(cluster)}
            assert versions == {highest}
            assert now() < 60


async def test_only_the_topic_that_was_recreated_is_affected() -> None:
    async with writing(nodes=1, partitions=1) as (cluster, producer):
        cluster.create_topic("other", 1)
        for topic in (TOPIC, "other"):
            await producer.send(topic, b"old")
        fault = cluster.faults.on("Produce", times=None).error(ErrorCode.NOT_ENOUGH_REPLICAS)
        futures = [producer.send_nowait(topic, b"x") for topic in (TOPIC, "other")]
        await asyncio.sleep(1)
        recreate(cluster, 1)
        await producer.cluster.refresh()
        fault.cancel()
        await asyncio.wait(futures)
        assert is_recreated(futures[0].exception())
        assert (await futures[1]).offset == 1


async def test_a_topic_that_grows_is_the_same_topic() -> None:
    async with writing(nodes=1, partitions=1) as (cluster, producer):
        await producer.send(TOPIC, b"old")
        fault = cluster.faults.on("Produce").hold()
        future = producer.send_nowait(TOPIC, b"x")
        await asyncio.sleep(1)
        cluster.create_partitions(TOPIC, 3)
        await producer.cluster.refresh()
        await producer.send(TOPIC, b"y", partition=2)
        fault.release()
        assert (await future).offset == 1
