"""Lost records are reported; closing while brokers fail."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import (
    BrokerError,
    ClosedError,
    DeliveryFailedError,
    ErrorCode,
)
from asyncgroup.model import TopicPartition
from asyncgroup.producer import Producer
from asyncgroup.testing import Network
from tests.producer.support import TOPIC, now, stored, writing

# --- lost by enqueue -----------------------------------------------------------------------------------------------


async def test_records_lost_by_enqueue_are_reported_once_by_the_next_flush() -> None:
    async with writing(linger=1.0) as (cluster, producer):
        await producer.send(TOPIC, b"warm up")
        cluster.faults.on("Produce", times=2).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for number in range(10):
            await producer.enqueue(TOPIC, b"x", partition=number % 2)
        own = producer.send_nowait(TOPIC, b"x", partition=0)
        with pytest.raises(
            DeliveryFailedError, match=r"10 records not delivered: .*TOPIC_AUTHORIZATION"
        ) as caught:
            await producer.flush()
        assert {tp: count for tp, (count, _) in caught.value.failed.items()} == {
            TopicPartition(TOPIC, 0): 5,
            TopicPartition(TOPIC, 1): 5,
        }
        with pytest.raises(BrokerError):
            await own
        await producer.enqueue(TOPIC, b"y", partition=0)
        await producer.flush()


async def test_records_lost_by_enqueue_are_reported_on_exit() -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 1)
        cluster.faults.on("Produce").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(DeliveryFailedError, match="1 record not delivered"):
            async with Producer(cluster.bootstrap_servers) as producer:
                await producer.enqueue(TOPIC, b"x")


async def test_an_error_in_the_block_is_raised_with_a_note_about_lost_records() -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 1)
        cluster.faults.on("Produce").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(ZeroDivisionError) as caught:
            async with Producer(cluster.bootstrap_servers) as producer:
                await producer.enqueue(TOPIC, b"x")
                raise ZeroDivisionError
        assert "1 record not delivered" in caught.value.__notes__[0]


# --- closing -------------------------------------------------------------------------------------------------------


async def test_aclose_stops_after_close_timeout_and_reports_the_lost_records() -> None:
    async with writing(nodes=1, close_timeout=5.0) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce", times=None).error(ErrorCode.NOT_ENOUGH_REPLICAS)
        promised = producer.send_nowait(TOPIC, b"x", partition=0)
        unknown = producer.send_nowait("nowhere", b"x")
        for number in range(6):
            await producer.enqueue(TOPIC, b"x", partition=number % 3)
        started = now()
        with pytest.raises(
            DeliveryFailedError, match="6 records not delivered: the producer was closed with 7 records"
        ):
            await producer.aclose()
        assert now() - started == pytest.approx(5.0, abs=0.1)
        with pytest.raises(
            ClosedError,
            match=r"closed with 7 records for 3 partitions not acknowledged \(close_timeout=5 s\)",
        ):
            await promised
        with pytest.raises((ClosedError, BrokerError)):
            await unknown
        await producer.aclose()


async def test_aclose_runs_to_its_end_when_the_caller_is_cancelled() -> None:
    async with writing(nodes=1, close_timeout=20.0) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").delay(5.0)
        await producer.enqueue(TOPIC, b"x", partition=0)
        closing = asyncio.create_task(producer.aclose())
        await asyncio.sleep(1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert stored(cluster, 0) == [b"warm up", b"x"]


async def test_entering_can_be_cancelled(network: Network) -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        network.blackhole("127.0.0.1")
        task = asyncio.create_task(Producer(cluster.bootstrap_servers).__aenter__())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        network.heal()
