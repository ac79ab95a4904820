"""Partitioning: by key, by number, by a custom partitioner, and without a key."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import ConfigError, InvalidRecordError
from asyncgroup.hashing.murmur2 import partition_for_key
from asyncgroup.model import RecordMetadata, TopicPartition
from asyncgroup.producer import Producer
from tests.producer.support import TOPIC, produced, stored, writing

STAMP = 1_700_000_000_000


async def test_send_returns_the_metadata_of_the_record() -> None:
    async with writing() as (cluster, producer):
        headers = [("trace", b"1"), ("none", None)]
        where = await producer.send(TOPIC, b"value", key=b"key", headers=headers)
        assert where == RecordMetadata(TOPIC, partition_for_key(b"key", 6), 0, STAMP)
        again = await producer.send(TOPIC, None, key=b"key", timestamp=5)
        assert (again.offset, again.timestamp) == (1, 5)
        first, second = cluster.records(TOPIC, where.partition)
        assert (first.key, first.value, list(first.headers), first.timestamp) == (
            b"key",
            b"value",
            headers,
            STAMP,
        )
        assert (second.value, second.timestamp) == (None, 5)


async def test_the_clock_provides_missing_timestamps() -> None:
    ticks = itertools.count(100)
    async with writing(clock=lambda: next(ticks)) as (_, producer):
        stamps = [(await producer.send(TOPIC, b"x")).timestamp for _ in range(3)]
        assert stamps == [100, 101, 102]
        assert (await producer.send(TOPIC, b"x", timestamp=7)).timestamp == 7


async def test_keys_map_to_the_same_partition_as_in_java() -> None:
    async with writing() as (cluster, producer):
        keys = [b"key-%d" % number for number in range(200)]
        for key in keys * 2:
            await producer.enqueue(TOPIC, b"x", key=key)
        await producer.flush()
        for partition in range(6):
            found = [record.key for record in cluster.records(TOPIC, partition)]
            assert found == [key for key in keys * 2 if partition_for_key(key, 6) == partition]


async def test_an_explicit_partition_and_one_that_does_not_exist() -> None:
    async with writing() as (cluster, producer):
        assert (await producer.send(TOPIC, b"x", key=b"key", partition=4)).partition == 4
        with pytest.raises(
            InvalidRecordError,
            match=r"partition=6 is not allowed: orders-6 does not exist, the topic has 6 partitions",
        ):
            await producer.send(TOPIC, b"x", partition=6)
        cluster.create_partitions(TOPIC, 8)
        assert (await producer.send(TOPIC, b"x", partition=7)).partition == 7, "the metadata was refreshed"


async def test_keys_are_repartitioned_when_a_topic_grows() -> None:
    async with writing() as (cluster, producer):
        keys = [b"key-%d" % number for number in range(50)]
        await asyncio.gather(*(producer.send(TOPIC, b"x", key=key) for key in keys))
        cluster.create_partitions(TOPIC, 11)
        await producer.cluster.refresh()
        places = await asyncio.gather(*(producer.send(TOPIC, b"x", key=key) for key in keys))
        assert [place.partition for place in places] == [partition_for_key(key, 11) for key in keys]


async def test_a_full_batch_of_records_without_a_key_does_not_linger() -> None:
    async with writing(linger=50.0, batch_size=1000) as (cluster, producer):
        for _ in range(12):
            await producer.enqueue(TOPIC, b"." * 90)
        await asyncio.sleep(1)
        assert len(stored(cluster)) == 9, "the other three wait for more"
        await producer.flush()


async def test_records_without_a_key_fill_one_batch_after_the_other() -> None:
    """KIP-480: whole batches per partition, and equal shares over time."""
    async with writing(linger=10.0, batch_size=2000, max_request_size=100_000) as (cluster, producer):
        for number in range(6000):
            await producer.enqueue(TOPIC, b"%05d" % number + b"." * 45)
        await producer.flush()
        sizes = Counter(record.partition for record in cluster.records(TOPIC))
        assert len(sizes) == 6
        assert all(500 < count < 1600 for count in sizes.values())
        batches = sum(
            len(topic.partition_data) for asked in produced(cluster) for topic in asked.request.topic_data
        )
        assert batches < 6000 / 20


async def test_a_leaderless_partition_gets_no_records_without_a_key() -> None:
    async with EmbeddedCluster(nodes=2, default_replication_factor=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 4)
        async with Producer(cluster.bootstrap_servers, ProducerConfig(linger=0.0)) as producer:
            await cluster.stop_node(2)
            await producer.cluster.refresh()
            partitions = {(await producer.send(TOPIC, b"x")).partition for _ in range(30)}
            assert partitions
            assert {cluster.leader(TOPIC, partition) for partition in partitions} == {1}


async def test_a_custom_partitioner() -> None:
    asked: list[tuple[bytes | None, int]] = []

    def last(key: bytes | None, partitions: int) -> int:
        asked.append((key, partitions))
        return partitions - 1

    async with writing(partitioner=last) as (_, producer):
        assert (await producer.send(TOPIC, b"x", key=b"k")).partition == 5
        assert (await producer.send(TOPIC, b"x")).partition == 5
        assert (await producer.send(TOPIC, b"x", partition=0)).partition == 0
        assert asked == [(b"k", 6), (None, 6)]


@pytest.mark.parametrize("answer", [6, -1, 1.0, None, True])
async def test_a_partitioner_that_returns_an_invalid_partition(answer: Any) -> None:
    async with writing(partitioner=lambda key, partitions: answer) as (_, producer):
        for _ in range(2):  # before the topic is known, and after
            with pytest.raises(
                ConfigError, match=r"partitioner returned .* 'orders': allowed is a partition from 0 to 5"
            ):
                await producer.send(TOPIC, b"x", key=b"k")
        assert "0 of 33554432 bytes" in repr(producer)
        await producer.send(TOPIC, b"x", partition=0)


async def test_a_partitioner_that_raises_fails_only_its_record() -> None:
    def picky(key: bytes | None, partitions: int) -> int:
        return {b"good": 1}[key or b""]

    async with writing(partitioner=picky) as (cluster, producer):
        ends = await asyncio.gather(
            *(producer.send(TOPIC, key, key=key) for key in (b"good", b"bad", b"good")),
            return_exceptions=True,
        )
        assert [type(end) for end in ends] == [RecordMetadata, KeyError, RecordMetadata]
        with pytest.raises(KeyError):
            await producer.send(TOPIC, b"x", key=b"bad")
        assert stored(cluster, 1) == [b"good", b"good"]


@pytest.mark.parametrize(
    "error", [StopIteration("no partition left"), asyncio.CancelledError("a lookup")], ids=repr
)
async def test_a_partitioner_that_raises_what_ends_tasks(error: BaseException) -> None:
    """Regression test: while the topic was looked up, the producer failed as a whole, or its records waited forever."""

    def picky(key: bytes | None, partitions: int) -> int:
        if key == b"bad":
            raise error
        return 1

    async with writing(partitioner=picky) as (cluster, producer):
        async with asyncio.timeout(60):
            ends = await asyncio.gather(
                *(producer.send(TOPIC, key, key=key) for key in (b"good", b"bad", b"good")),
                return_exceptions=True,
            )
        assert [type(end) for end in ends] == [RecordMetadata, RuntimeError, RecordMetadata]
        assert isinstance(ends[1], RuntimeError)
        assert type(error).__name__ in str(ends[1])
        assert stored(cluster, 1) == [b"good", b"good"]


async def test_the_partition_is_chosen_before_the_record_is_written() -> None:
    """As work queues do: without a key, none of the partitions to be avoided."""
    async with writing(partitions=3) as (cluster, producer):
        choose, unwritten = producer._inner.choose, producer._inner.unwritten
        assert choose(TOPIC, b"key", 1, ()) is None, "the topic is not known yet"
        await producer.send(TOPIC, b"x", partition=0)
        bad = TopicPartition(TOPIC, partition_for_key(b"key", 3))
        others = [TopicPartition(TOPIC, number) for number in range(3) if number != bad.partition]
        assert choose(TOPIC, b"key", 1, ()) == choose(TOPIC, b"key", 1, [bad]) == bad
        assert {choose(TOPIC, None, 10_000, [bad]) for _ in range(50)} == set(others)
        everything = {choose(TOPIC, None, 10_000, [bad, *others]) for _ in range(200)}
        assert everything == {bad, *others}, "if all are to be avoided, none is"

        held = cluster.faults.on("Produce").hold()
        sending = producer.send_nowait(TOPIC, b"x", key=b"key")
        await held.wait_hit()
        assert unwritten(TOPIC) == {bad}
        assert unwritten("another") == set()
        held.release()
        await sending
        assert unwritten(TOPIC) == set()

        cluster.create_topic("single", 3, 1)
        await producer.send("single", b"x", partition=0)
        await cluster.stop_node(cluster.leader("single", 1))
        await producer._inner.router._cluster.refresh()
        assert unwritten("single") == {("single", 1)}
