"""Retriable errors, leader moves, dead brokers and cut connections: every record arrives, in order."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    BrokerError,
    ErrorCode,
    RecordRejectedError,
)
from asyncgroup.model import RecordMetadata
from asyncgroup.producer import Producer
from asyncgroup.testing import Network
from tests.producer.support import TOPIC, now, produced, stored, writing


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
    ],
)
async def test_a_retriable_error_is_retried_in_order(code: ErrorCode) -> None:
    async with writing(linger=0.05) as (cluster, producer):
        cluster.faults.on("Produce", times=3).error(code)
        sends = []
        for number in range(30):
            sends.append(asyncio.create_task(producer.send(TOPIC, b"%02d" % number, partition=0)))
            await asyncio.sleep(0.02)
        offsets = [place.offset for place in await asyncio.gather(*sends)]
        assert offsets == list(range(30))
        assert stored(cluster, 0) == [b"%02d" % number for number in range(30)]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
async def test_a_fatal_error_is_raised_at_once_and_the_next_batch_is_sent(code: ErrorCode) -> None:
    async with writing() as (cluster, producer):
        cluster.faults.on("Produce").error(code)
        with pytest.raises(BrokerError, match=rf"1 record for orders-0: {code.name}") as caught:
            await producer.send(TOPIC, b"lost", partition=0)
        assert caught.value.code == code
        assert now() < 0.5
        assert (await producer.send(TOPIC, b"next", partition=0)).offset == 0


async def test_a_batch_too_large_for_the_topic() -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 1, configs={"max.message.bytes": "1000"})
        async with Producer(cluster.bootstrap_servers, ProducerConfig(linger=0.0)) as producer:
            with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
                await producer.send(TOPIC, b"." * 2000)
            await producer.send(TOPIC, b"." * 500)


async def test_a_batch_too_large_for_the_topic_is_sent_in_parts() -> None:
    """As Java's producer does (`Sender.completeBatch`)."""
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 1, configs={"max.message.bytes": "1000"})
        async with Producer(cluster.bootstrap_servers, ProducerConfig(linger=1.0)) as producer:
            sizes = [300, 300, 300, 10, 2000, 10, 300, 900, 300, 300]
            sends = [
                producer.send_nowait(TOPIC, b"%02d" % number + b"." * size)
                for number, size in enumerate(sizes)
            ]
            await producer.enqueue(TOPIC, b"10")
            await producer.flush()
            results = await asyncio.gather(*sends, return_exceptions=True)
            assert [type(result) for result in results].count(RecordRejectedError) == 1
            assert "MESSAGE_TOO_LARGE" in str(results[4])
            where = [result.offset for result in results if isinstance(result, RecordMetadata)]
            assert where == list(range(9))
            numbers = [int(value[:2]) for value in stored(cluster) if value is not None]
            assert numbers == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]


async def test_leaders_move_often_under_load() -> None:
    """Every record is in the log once, in order, although the leader of each partition moves ten times or so."""
    rng = random.Random(7)
    async with writing(linger=0.01, retry_backoff=0.05) as (cluster, producer):

        async def moving() -> None:
            for _ in range(60):
                await asyncio.sleep(0.05)
                cluster.move_leader(TOPIC, rng.randrange(6), rng.randrange(1, 4))

        mover = asyncio.create_task(moving())
        for number in range(3000):
            await producer.enqueue(TOPIC, b"%05d" % number, partition=number % 6)
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        await mover
        await producer.flush()
        for partition in range(6):
            expected = [b"%05d" % number for number in range(3000) if number % 6 == partition]
            assert stored(cluster, partition) == expected


async def test_a_leader_hint_is_followed_at_once() -> None:
    """KIP-951: no backoff and no metadata request when the old leader names the new one."""
    async with writing(retry_backoff=10.0, retry_backoff_max=20.0) as (cluster, producer):
        await producer.send(TOPIC, b"one", partition=0)
        old = cluster.leader(TOPIC, 0)
        cluster.move_leader(TOPIC, 0, old % 3 + 1)
        cluster.faults.on("Metadata").delay(5.0)
        started = now()
        assert (await producer.send(TOPIC, b"two", partition=0)).offset == 1
        assert now() - started < 0.1


async def test_records_go_to_the_new_leader_of_a_dead_node() -> None:
    async with writing(linger=0.01) as (cluster, producer):
        for number in range(300):
            await producer.enqueue(TOPIC, b"%03d" % number, partition=number % 6)
            if number == 100:
                await cluster.stop_node(cluster.leader(TOPIC, 0))
            if number == 200:
                for node in cluster.nodes:
                    await cluster.start_node(node)
            await asyncio.sleep(0.01)
        await producer.flush()
        for partition in range(6):
            expected = [b"%03d" % number for number in range(300) if number % 6 == partition]
            assert stored(cluster, partition) == expected


async def test_all_brokers_down_for_a_while() -> None:
    async with writing(nodes=2) as (cluster, producer):
        await producer.send(TOPIC, b"before", partition=0)
        for node in (1, 2):
            await cluster.stop_node(node)
        sending = asyncio.create_task(producer.send(TOPIC, b"meanwhile", partition=0))
        await asyncio.sleep(60)
        assert not sending.done()
        for node in (1, 2):
            await cluster.start_node(node)
        assert (await sending).offset == 1
        assert now() < 70


async def test_a_lost_response_does_not_duplicate_records() -> None:
    """The broker recognizes the batch that is sent again, and answers with its offset."""
    async with writing() as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").disconnect("after")
        assert (await producer.send(TOPIC, b"once", partition=0)).offset == 1
        assert (await producer.send(TOPIC, b"next", partition=0)).offset == 2
        assert stored(cluster, 0) == [b"warm up", b"once", b"next"]


@pytest.mark.parametrize("config", [{"acks": 1}, {"enable_idempotence": False}])
async def test_without_idempotence_a_lost_response_can_duplicate_records(config: dict[str, Any]) -> None:
    """The batch must be sent again, since it may not have been appended (documented)."""
    async with writing(**config) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").disconnect("after")
        assert (await producer.send(TOPIC, b"again", partition=0)).offset == 2
        assert stored(cluster, 0) == [b"warm up", b"again", b"again"]


@pytest.mark.parametrize("cut", ["before", "mid-frame"])
async def test_records_survive_a_cut_connection(cut: Any) -> None:
    async with writing() as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").disconnect(cut)
        sends = [producer.send_nowait(TOPIC, b"%d" % number, partition=0) for number in range(5)]
        await asyncio.gather(*sends)
        assert stored(cluster, 0)[-5:] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_throttled_producer_waits(network: Network) -> None:
    async with writing(nodes=1) as (cluster, producer):
        cluster.faults.on("Produce").throttle(5000)
        await producer.send(TOPIC, b"one", partition=0)
        assert now() < 1.0
        await producer.send(TOPIC, b"two", partition=0)
        assert now() == pytest.approx(5.0, abs=0.1)


async def test_retries_back_off() -> None:
    async with writing(nodes=1, retry_backoff=1.0, retry_backoff_max=8.0) as (cluster, producer):
        cluster.faults.on("Produce", times=6).error(ErrorCode.NOT_ENOUGH_REPLICAS)
        await producer.send(TOPIC, b"x", partition=0)
        times = [asked.time for asked in produced(cluster)]
        pauses = [after - before for before, after in itertools.pairwise(times)]
        for pause, middle in zip(pauses, [1, 2, 4, 8, 8, 8], strict=True):
            assert 0.8 * middle <= pause <= 1.2 * middle + 0.01


async def test_a_failing_partition_does_not_delay_others() -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("good", 1)
        cluster.create_topic("bad", 1)
        async with Producer(cluster.bootstrap_servers, ProducerConfig(linger=0.0)) as producer:
            cluster.faults.on("Produce", topic="bad", times=5).error(ErrorCode.NOT_ENOUGH_REPLICAS)
            bad = producer.send_nowait("bad", b"x")
            started = now()
            for _ in range(20):
                await producer.send("good", b"x")
            assert now() - started < 0.1
            assert not bad.done()
            await bad


async def test_an_error_after_a_lost_response_says_that_the_record_may_be_in_the_log() -> None:
    async with writing(nodes=1) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").disconnect("after")
        cluster.faults.on("Produce", nth=2).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED") as caught:
            await producer.send(TOPIC, b"x", partition=0)
        assert "may be in the log" in caught.value.__notes__[0]
        assert stored(cluster, 0) == [b"warm up", b"x"]
        cluster.faults.on("Produce").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(BrokerError) as caught:
            await producer.send(TOPIC, b"y", partition=0)
        assert not hasattr(caught.value, "__notes__")
        assert b"y" not in stored(cluster, 0)
