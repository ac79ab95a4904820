"""Transactions of our producer on a real Kafka, read with read_committed by our consumer."""

from __future__ import annotations

import asyncio
import pickle
import uuid

import pytest

from asyncgroup import (
    Cluster,
    CommittedOffset,
    Consumer,
    ConsumerConfig,
    GroupOffsets,
    OffsetManager,
    TopicPartition,
    end_transaction,
)
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import CommitFailedError, ProducerFencedError
from asyncgroup.producer import Producer
from tests.interop.test_foreign_clients import WAIT
from tests.real.support import RunningKafka
from tests.real.test_producer import new_topic

pytestmark = pytest.mark.asyncio


def producer_of(cluster: Cluster, name: str, **config: float) -> Producer:
    """Return a transactional producer."""
    return Producer(cluster, ProducerConfig(transactional_id=name, linger=0.0, **config))  # type: ignore[arg-type]


async def committed(cluster: Cluster, topic: str) -> list[bytes | None]:
    """Return what read_committed delivers of partition 0, up to the record `end` that this writes."""
    async with producer_of(cluster, f"{topic}-end") as producer, producer.transaction():
        await producer.send(topic, b"end", partition=0)
    config = ConsumerConfig(isolation_level="read_committed")
    values: list[bytes | None] = []
    async with asyncio.timeout(WAIT), Consumer(cluster, config) as consumer:
        async for record in await consumer.partition(topic, 0, 0):
            if record.value == b"end":
                return values
            values.append(record.value)
    raise AssertionError("the topic ended")


async def committed_offset(cluster: Cluster, group: str, topic: str) -> int:
    """Return the committed offset of partition 0."""
    async with OffsetManager(cluster, group) as offsets:
        return (await offsets.manage(topic, 0)).next_offset


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def offsets_of(group: str, topic: str, offset: int, **member: int) -> GroupOffsets:
    return GroupOffsets(group, {TopicPartition(topic, 0): CommittedOffset(offset, "meta")}, **member)  # type: ignore[arg-type]


async def test_commit_and_abort_with_offsets(apache_kafka: RunningKafka) -> None:
    group, name = unique("g"), unique("tx")
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 1)
        async with producer_of(cluster, name) as producer:
            for number in range(5):
                try:
                    async with producer.transaction():
                        await producer.send(topic, b"%d" % number, partition=0)
                        await producer.enqueue(topic, b"more %d" % number, partition=0)
                        await producer.send_offsets(offsets_of(group, topic, number))
                        if number % 2:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    assert await committed_offset(cluster, group, topic) == number - 1
        assert await committed(cluster, topic) == [b"0", b"more 0", b"2", b"more 2", b"4", b"more 4"]
        assert await committed_offset(cluster, group, topic) == 4


async def test_a_detached_transaction_is_ended_elsewhere(apache_kafka: RunningKafka) -> None:
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 1)
        for commit in (True, False):
            async with producer_of(cluster, unique("tx")) as producer, producer.transaction():
                await producer.enqueue(topic, b"kept" if commit else b"dropped", partition=0)
                detached = await producer.detach_transaction()
            for _ in range(2):  # a repeated end finds it done
                await end_transaction(cluster, pickle.loads(pickle.dumps(detached)), commit=commit)
        assert await committed(cluster, topic) == [b"kept"]


async def test_a_second_producer_fences_the_first_one(apache_kafka: RunningKafka) -> None:
    name = unique("tx")
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 1)
        async with producer_of(cluster, name) as first:
            with pytest.raises(ProducerFencedError, match="the coordinator has producer id") as raised:
                async with first.transaction():
                    await first.send(topic, b"lost", partition=0)
                    async with producer_of(cluster, name) as second:
                        async with second.transaction():
                            await second.send(topic, b"kept", partition=0)
                        await first.send(topic, b"zombie", partition=0)
            assert raised.value.current is not None
            assert raised.value.current[1] > raised.value.epoch
        assert await committed(cluster, topic) == [b"kept"]


async def test_a_member_that_the_group_does_not_know(apache_kafka: RunningKafka) -> None:
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 1)
        async with producer_of(cluster, unique("tx")) as producer:
            with pytest.raises(CommitFailedError, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION"):
                async with producer.transaction():
                    await producer.send(topic, b"lost", partition=0)
                    await producer.send_offsets(offsets_of(unique("g"), topic, 1, generation_id=3))
            async with producer.transaction():
                await producer.send(topic, b"kept", partition=0)
        assert await committed(cluster, topic) == [b"kept"]
