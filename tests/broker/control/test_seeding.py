"""Topics, records and committed offsets that a test creates without a client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncgroup import (
    ConfigError,
    Consumer,
    ConsumerConfig,
    ConsumerGroup,
    OffsetManager,
    Producer,
    TopicPartition,
    UsageError,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.control.seeding import topic_seeds


async def test_topics_and_records_exist_at_the_start() -> None:
    topics = {
        "orders": {"partitions": 3, "records": [b"a", ("ann", "b"), None, ("bob", None)]},
        "bills": 2,
    }
    async with EmbeddedCluster(nodes=2, topics=topics) as cluster:
        assert sorted((r.key, r.value) for r in cluster.records("orders") if r.key) == [
            (b"ann", b"b"),
            (b"bob", None),
        ]
        assert len(cluster.records("orders")) == 4
        assert len(cluster.topic("bills").partitions) == 2
        async with Consumer(cluster.bootstrap_servers) as consumer:
            (first,) = [r for r in cluster.records("orders") if r.key == b"ann"]
            reader = await consumer.partition("orders", first.partition, first.offset)
            assert (await anext(reader)).value == b"b"


async def test_keys_are_partitioned_as_by_a_producer() -> None:
    keys = [b"key-%d" % number for number in range(50)]
    async with EmbeddedCluster(nodes=1, topics={"ours": 7, "seeded": 7}) as cluster:
        appended = cluster.produce(
            "seeded", *((key, b"v") for key in keys), timestamp=1234, headers=[("h", b"1")]
        )
        async with Producer(cluster.bootstrap_servers) as producer:
            sent = [await producer.send("ours", b"v", key=key) for key in keys]
        assert [each.partition for each in appended] == [each.partition for each in sent]
        for key, each in zip(keys, appended, strict=True):
            record = cluster.records("seeded", each.partition)[each.offset]
            assert (record.key, record.timestamp, list(record.headers)) == (key, 1234, [("h", b"1")])


async def test_a_waiting_consumer_gets_the_records_in_several_batches() -> None:
    async with (
        EmbeddedCluster(nodes=1, topics="t") as cluster,
        Consumer(cluster.bootstrap_servers) as consumer,
    ):
        reader = await consumer.partition("t", 0, 0)
        for round_ in range(2):
            appended = cluster.produce("t", *[b"x" * 100_000] * 20, partition=0)
            assert [each.offset for each in appended] == list(range(20 * round_, 20 * round_ + 20))
            assert [(await anext(reader)).offset for _ in range(20)] == [each.offset for each in appended]


async def test_a_group_continues_at_the_committed_offset() -> None:
    async with EmbeddedCluster(nodes=2, topics={"t": {"partitions": 2, "records": ["a"] * 10}}) as cluster:
        cluster.commit("g", {("t", 0): 3, TopicPartition("t", 1): 0})
        assert {tp.partition: each.offset for tp, each in cluster.group("g").offsets.items()} == {0: 3, 1: 0}
        async with OffsetManager(cluster.bootstrap_servers, "g", ConsumerConfig()) as offsets:
            assert (await offsets.manage("t", 0)).next_offset == 3


async def test_errors_name_the_reason() -> None:
    async with EmbeddedCluster(nodes=1, topics={"t": 2}) as cluster:
        with pytest.raises(UsageError, match="no topic 'u'"):
            cluster.produce("u", b"x")
        with pytest.raises(UsageError, match="partitions 0 to 1, not 2"):
            cluster.produce("t", b"x", partition=2)
        with pytest.raises(UsageError, match="partitions 0 to 1, not 5"):
            cluster.commit("g", {("t", 5): 0})
        with pytest.raises(ConfigError, match="value=7 is not allowed: bytes, text or None"):
            cluster.produce("t", 7)  # type: ignore[arg-type]
        await cluster.stop_node(1)
        with pytest.raises(UsageError, match="t-0 has no leader"):
            cluster.produce("t", b"x", partition=0)
        with pytest.raises(UsageError, match="no node coordinates group 'g'"):
            cluster.commit("g", {("t", 0): 0})


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        (7, "a name, a list of names, or partitions by name"),
        ({"t": {"partition": 3}}, "a topic has configs, partitions, records, replication_factor"),
        ({"t": {"partitions": "3"}}, "a whole number"),
        ({"t": {"records": "abc"}}, "a list of values, or of"),
        ({"t": {"records": [1]}}, "bytes, text or None"),
        ({"t": {"records": [("a", "b", "c")]}}, "a pair of key and value"),
    ],
)
async def test_topics_are_checked_before_anything_starts(topics: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        topic_seeds(topics)


async def test_topics_of_a_data_directory_are_not_seeded_again(tmp_path: Path) -> None:
    for _ in range(2):
        async with EmbeddedCluster(topics={"t": {"records": [b"once"]}}, data_dir=tmp_path) as cluster:
            assert [record.value for record in cluster.records("t")] == [b"once"]


@pytest.mark.parametrize("wrong", [-1, 2**63, 1.5, "1", True])
async def test_offsets_and_timestamps_are_checked(wrong: Any) -> None:
    async with EmbeddedCluster(topics="t") as cluster:
        with pytest.raises(ConfigError, match="offset="):
            cluster.commit("g", {("t", 0): wrong})
        with pytest.raises(ConfigError, match="timestamp="):
            cluster.produce("t", b"a", timestamp=wrong)
        with pytest.raises(ConfigError, match="value="):
            cluster.produce("t", "\udcff")


async def test_commit_rejects_a_group_with_members() -> None:
    async def nothing(session: Any, claim: Any) -> None:
        async for _ in claim:
            pass

    async with EmbeddedCluster(topics="t") as cluster, ConsumerGroup(cluster.bootstrap_servers, "g") as group:
        running = asyncio.create_task(group.run("t", nothing))
        await cluster.history.wait_for("SyncGroup", answered=True)
        with pytest.raises(UsageError, match="which has 1 members: UNKNOWN_MEMBER_ID"):
            cluster.commit("g", {("t", 0): 0})
        await group.aclose()
        await running
