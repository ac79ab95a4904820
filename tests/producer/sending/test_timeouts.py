"""Timeouts, unknown topics, and acks=0."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    BrokerError,
    DeliveryFailedError,
    ErrorCode,
    RequestTimedOut,
)
from asyncgroup.model import TopicPartition
from asyncgroup.producer import Producer
from asyncgroup.testing import Network
from tests.producer.support import TOPIC, now, stored, writing

# --- timeouts ------------------------------------------------------------------------------------------------------


async def test_no_response_until_delivery_timeout(network: Network) -> None:
    async with writing(nodes=1, delivery_timeout=40.0, request_timeout=15.0) as (_, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        network.blackhole("127.0.0.1", connect="accept")
        first, second = (producer.send_nowait(TOPIC, b"x", partition=partition) for partition in (0, 0))
        queued = asyncio.create_task(later(producer, 1.0))
        with pytest.raises(
            RequestTimedOut, match=r"records for orders-0: not acknowledged within delivery_timeout=40 s"
        ):
            await first
        assert now() == pytest.approx(40.0, abs=0.1)
        with pytest.raises(RequestTimedOut):
            await second
        with pytest.raises(RequestTimedOut):
            await queued
        assert now() == pytest.approx(41.0, abs=0.1), (
            "records queued behind a request in flight expire in time as well"
        )
        network.heal()


async def later(producer: Producer, seconds: float) -> Any:
    await asyncio.sleep(seconds)
    return await producer.send(TOPIC, b"later", partition=0)


async def test_the_timeout_error_contains_the_last_error() -> None:
    async with writing(nodes=1, delivery_timeout=31.0, request_timeout=30.0) as (cluster, producer):
        cluster.faults.on("Produce", times=None).error(ErrorCode.NOT_ENOUGH_REPLICAS)
        with pytest.raises(RequestTimedOut, match=r"\d+ attempts: .*NOT_ENOUGH_REPLICAS") as caught:
            await producer.send(TOPIC, b"x", partition=0)
        assert isinstance(caught.value.__cause__, BrokerError)
        assert now() == pytest.approx(31.0, abs=0.1)
        cluster.faults.clear()
        await producer.send(TOPIC, b"y", partition=0)


async def test_a_partition_without_a_leader() -> None:
    async with EmbeddedCluster(nodes=2, default_replication_factor=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 2)
        config = ProducerConfig(linger=0.0, delivery_timeout=31.0)
        async with Producer(cluster.bootstrap_servers, config) as producer:
            await producer.send(TOPIC, b"x", partition=0)
            node = cluster.leader(TOPIC, 0)
            await cluster.stop_node(node)
            await producer.cluster.refresh()
            cluster.history.clear()
            with pytest.raises(RequestTimedOut, match="0 attempts: its leader is unknown"):
                await producer.send(TOPIC, b"y", partition=0)
            assert 10 < len(cluster.history.of("Metadata")) < 40, "the metadata is refreshed with backoff"
            sending = asyncio.create_task(producer.send(TOPIC, b"z", partition=0))
            await asyncio.sleep(5)
            await cluster.start_node(node)
            await sending


async def test_a_deleted_topic_fails_queued_and_new_records() -> None:
    async with writing(nodes=1, delivery_timeout=31.0) as (cluster, producer):
        await producer.send(TOPIC, b"x", partition=0)
        cluster.delete_topic(TOPIC)
        with pytest.raises((RequestTimedOut, BrokerError)):
            await producer.send(TOPIC, b"y", partition=0)
        with pytest.raises(
            BrokerError, match=r"topic 'orders': UNKNOWN_TOPIC_OR_PARTITION \(3\): it does not exist"
        ):
            await producer.send(TOPIC, b"z", partition=0)
        cluster.create_topic(TOPIC, 2)
        assert (await producer.send(TOPIC, b"new", partition=1)).offset == 0


# --- unknown topics ------------------------------------------------------------------------------------------------


async def test_an_unknown_topic_fails_only_its_own_records() -> None:
    async with writing() as (_, producer):
        unknown = producer.send_nowait("nowhere", b"x")
        await producer.enqueue("nowhere", b"y")
        started = now()
        await producer.send(TOPIC, b"x")
        assert now() == started
        with pytest.raises(BrokerError, match=r"topic 'nowhere': UNKNOWN_TOPIC_OR_PARTITION"):
            await unknown
        assert now() < 10
        with pytest.raises(DeliveryFailedError, match=r"1 record not delivered: topic 'nowhere'") as caught:
            await producer.flush()
        assert caught.value.failed.keys() == {TopicPartition("nowhere", -1)}
        assert "0 of 33554432 bytes" in repr(producer)


async def test_flush_waits_for_the_lookup_of_a_topic() -> None:
    async with writing() as (cluster, producer):
        cluster.faults.on("Metadata").delay(2.0)
        for number in range(10):
            await producer.enqueue(TOPIC, b"%d" % number, partition=0)
        await producer.flush()
        assert now() >= 1.0
        assert stored(cluster, 0) == [b"%d" % number for number in range(10)]


async def test_records_keep_their_order_through_the_lookup() -> None:
    async with writing() as (cluster, producer):
        cluster.faults.on("Metadata").delay(1.0)
        tasks = []
        for number in range(40):
            tasks.append(asyncio.create_task(producer.send(TOPIC, b"%02d" % number, partition=0)))
            await asyncio.sleep(0.05)
        await asyncio.gather(*tasks)
        assert stored(cluster, 0) == [b"%02d" % number for number in range(40)]


async def test_records_keep_their_order_while_the_topic_becomes_known() -> None:
    async with writing() as (cluster, producer):
        for number in range(300):
            producer.send_nowait(TOPIC, b"%03d" % number, partition=0)
            await asyncio.sleep(0)
        await producer.flush()
        assert stored(cluster, 0) == [b"%03d" % number for number in range(300)]


async def test_a_topic_is_auto_created() -> None:
    async with EmbeddedCluster(nodes=1, auto_create_topics=True, seed=1) as cluster:
        async with Producer(cluster.bootstrap_servers) as producer:
            assert (await producer.send("new", b"x")).offset == 0
        assert stored(cluster, topic="new") == [b"x"]


async def test_no_broker_during_the_lookup() -> None:
    async with writing(nodes=1, delivery_timeout=31.0) as (cluster, producer):
        await cluster.stop_node(1)
        with pytest.raises(
            RequestTimedOut, match=r"topic 'orders' could not be looked up within delivery_timeout=31 s"
        ) as caught:
            await producer.send(TOPIC, b"x")
        assert now() == pytest.approx(31.0, abs=0.1)
        assert "no broker answered" in str(caught.value.__cause__)
        sending = asyncio.create_task(producer.send(TOPIC, b"y"))
        await asyncio.sleep(5)
        await cluster.start_node(1)
        await sending


# --- acks=0 --------------------------------------------------------------------------------------------------------


async def test_acks_0_returns_without_waiting_and_without_an_offset() -> None:
    async with writing(acks=0) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        held = cluster.faults.on("Produce").hold()
        assert (await producer.send(TOPIC, b"x", partition=0)).offset == -1
        held.release()
        cluster.faults.on("Produce").error(ErrorCode.MESSAGE_TOO_LARGE)
        assert (await producer.send(TOPIC, b"lost", partition=0)).offset == -1
        await asyncio.sleep(1)
        await producer.send(TOPIC, b"after the broker closed the connection", partition=0)
        await asyncio.sleep(1)
        assert len(stored(cluster, 0)) == 3


async def test_acks_0_with_a_dead_broker_still_times_out() -> None:
    async with writing(nodes=1, acks=0, delivery_timeout=31.0) as (cluster, producer):
        await producer.send(TOPIC, b"x", partition=0)
        await cluster.stop_node(1)
        with pytest.raises(RequestTimedOut):
            await producer.send(TOPIC, b"y", partition=0)
