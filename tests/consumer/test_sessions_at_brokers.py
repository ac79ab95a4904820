"""Fetch sessions with an embedded broker in virtual time: small requests, no duplicate fetches, no starvation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest

from asyncgroup.broker import EmbeddedCluster, Exchange
from asyncgroup.consumer.fetch_plan import SHORT_WAIT
from asyncgroup.consumer.fetch_session import FINAL_EPOCH, INITIAL_EPOCH
from asyncgroup.errors import ErrorCode
from tests.broker.internals import node_of
from tests.consumer.brokers import caught_up, client, fetches, fill, now, read

WIDE = 200


def on_one_node(brokers: EmbeddedCluster, topic: str, partitions: Iterable[int]) -> None:
    for partition in partitions:
        brokers.move_leader(topic, partition, 1)


def in_session(brokers: EmbeddedCluster) -> list[Exchange]:
    """Return the fetches of the main lane so far."""
    return [
        exchange for exchange in fetches(brokers, node=1) if exchange.request.session_epoch != FINAL_EPOCH
    ]


def named(exchange: Exchange) -> list[int]:
    return sorted(part.partition for topic in exchange.request.topics for part in topic.partitions)


def forgotten(exchange: Exchange) -> list[int]:
    return sorted(part for topic in exchange.request.forgotten_topics_data for part in topic.partitions)


async def test_an_idle_fetch_of_two_hundred_partitions_is_small(brokers: EmbeddedCluster) -> None:
    brokers.create_topic("wide", WIDE)
    on_one_node(brokers, "wide", range(WIDE))
    async with client(brokers, ["wide"]) as reader:
        consumers = reader.read("wide", *range(WIDE))
        await caught_up(consumers[-1])
        await asyncio.sleep(5)
        full, *later = in_session(brokers)
        assert (full.request.session_epoch, len(named(full))) == (INITIAL_EPOCH, WIDE)
        idle = [exchange for exchange in later[2:] if exchange.answered_at is not None]
        assert len(idle) >= 8
        assert full.request_bytes > 5000
        assert full.response_bytes > 5000
        assert max(exchange.request_bytes for exchange in idle) < 100
        assert max(exchange.response_bytes for exchange in idle) < 50
        fill(brokers, "wide", 7, batches=1)
        assert await read(consumers[7], 1) == [0]
        await asyncio.sleep(1)
        news = [e for e in in_session(brokers)[-4:] if e.response_bytes > 50]
        assert [[p.partition_index for t in e.response.responses for p in t.partitions] for e in news] == [
            [7]
        ]
        assert [named(exchange) for exchange in in_session(brokers)[-4:] if named(exchange)] == [[7]]


async def test_a_paused_partition_is_removed_from_the_session_and_returns(brokers: EmbeddedCluster) -> None:
    on_one_node(brokers, "orders", (0, 1))
    async with client(brokers) as reader:
        first, _second = reader.read("orders", 0, 1)
        await caught_up(first)
        first.pause()
        await asyncio.sleep(1.2)
        (leaving,) = (exchange for exchange in in_session(brokers) if forgotten(exchange))
        assert forgotten(leaving) == [0]
        fill(brokers, "orders", 0, batches=1)
        await asyncio.sleep(1.2)
        assert first.buffered_bytes == 0, "no records of it are fetched"
        first.resume()
        assert await read(first, 1) == [0]
        await asyncio.sleep(1.2)
        assert named(in_session(brokers)[-1]) in ([], [0])
        (session,) = node_of(brokers, 1).fetch_sessions._sessions.values()
        assert sorted(number for _, number in session.partitions) == [0, 1]


async def test_a_seek_changes_the_session(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=5)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        await read(consumer, 5)
        await caught_up(consumer)
        for target in (2, 0, 4):
            consumer.seek(target)
            assert await read(consumer, 5 - target) == list(range(target, 5))
            await asyncio.sleep(1.2)
        fill(brokers, "orders", 0, batches=1)
        assert await read(consumer, 1) == [5]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
async def test_a_refused_session_causes_no_pause_and_no_error(
    brokers: EmbeddedCluster, code: ErrorCode
) -> None:
    fill(brokers, "orders", 0, batches=1)
    async with client(brokers, fetch_max_wait=0.1) as reader:
        (consumer,) = reader.read("orders", 0)
        await read(consumer, 1)
        await caught_up(consumer)
        brokers.faults.on("Fetch", times=1).error(code)
        await asyncio.sleep(0.15)
        fill(brokers, "orders", 0, batches=1)
        start = now()
        assert await read(consumer, 1) == [1]
        assert now() - start < 0.05
        assert reader.errors == []


async def test_sessions_that_are_always_refused_are_retried_with_pauses(brokers: EmbeddedCluster) -> None:
    async with client(brokers) as reader:
        brokers.faults.on("Fetch", times=None).error(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        reader.read("orders", 0)
        await asyncio.sleep(10)
        assert len(fetches(brokers)) < 60
        assert reader.errors


async def test_a_restarted_broker_gets_a_new_session(brokers: EmbeddedCluster) -> None:
    """It has lost its sessions, and old session ids are unknown to it."""
    on_one_node(brokers, "orders", (0, 1))
    async with client(brokers) as reader:
        consumers = reader.read("orders", 0, 1)
        await caught_up(consumers[0])
        await brokers.stop_node(1)
        await brokers.start_node(1)
        on_one_node(brokers, "orders", (0, 1))
        for partition in (0, 1):
            fill(brokers, "orders", partition, batches=1)
        for consumer in consumers:
            assert await read(consumer, 1) == [0]
        assert len(node_of(brokers, 1).fetch_sessions) == 1


async def test_a_full_session_cache_means_full_fetches(brokers: EmbeddedCluster) -> None:
    node_of(brokers, 1).fetch_sessions.slots = 0
    on_one_node(brokers, "orders", (0, 1))
    async with client(brokers) as reader:
        consumers = reader.read("orders", 0, 1)
        await caught_up(consumers[0])
        for turn in range(3):
            fill(brokers, "orders", turn % 2, batches=1)
            assert await read(consumers[turn % 2], 1) == [turn // 2]
            await asyncio.sleep(1)
        assert {e.request.session_epoch for e in in_session(brokers)} == {INITIAL_EPOCH}
        assert {len(named(e)) for e in in_session(brokers)[-2:]} == {2}


async def test_a_large_batch_is_fetched_in_a_session_beside_busy_partitions(brokers: EmbeddedCluster) -> None:
    """A broker returns an oversized batch only for the first partition with records, and rotates within a session."""
    brokers.create_topic("mixed", 5)
    on_one_node(brokers, "mixed", range(5))
    async with client(brokers, ["mixed"], buffer_bytes=20_000, fetch_max_bytes=4000) as reader:
        consumers = reader.read("mixed", *range(5))
        await caught_up(consumers[0])  # the session exists, with the large one at its end
        for partition in range(4):
            fill(brokers, "mixed", partition, batches=300, size=500)
        fill(brokers, "mixed", 4, batches=3, size=30_000)
        drains = [asyncio.ensure_future(read(consumer, 300)) for consumer in consumers[:4]]
        assert await read(consumers[4], 3) == [0, 1, 2]
        assert not any(drain.done() for drain in drains), (
            "long before the other partitions are read to their ends"
        )
        await asyncio.gather(*drains)
    assert any(exchange.request.session_epoch > 0 for exchange in in_session(brokers))


async def test_no_partition_is_ever_fetched_on_both_lanes(brokers: EmbeddedCluster) -> None:
    """With pauses, seeks and slow readers: the fetches of a partition on the two lanes never overlap in time."""
    brokers.create_topic("wide", 6)
    on_one_node(brokers, "wide", range(6))
    for partition in range(6):
        fill(brokers, "wide", partition, batches=60, size=300)
    rng = random.Random(5)
    async with client(brokers, ["wide"], buffer_bytes=12_000, fetch_max_wait=0.2) as reader:
        consumers = reader.read("wide", *range(6))
        seen: dict[int, list[int]] = {partition: [] for partition in range(6)}

        async def drain(partition: int) -> None:
            async for record in consumers[partition]:
                seen[partition].append(record.offset)
                await asyncio.sleep(rng.choice([0, 0, 0.01]))

        tasks = [asyncio.ensure_future(drain(partition)) for partition in range(6)]
        for _ in range(100):
            consumer = rng.choice(consumers)
            rng.choice([consumer.pause, consumer.resume])()
            await asyncio.sleep(rng.random() / 20)
        for consumer in consumers:
            consumer.resume()
        while any(len(offsets) < 60 for offsets in seen.values()):
            await asyncio.sleep(0.1)
        for consumer in consumers:
            consumer._inner.end()
        await asyncio.gather(*tasks)
    assert all(offsets == list(range(60)) for offsets in seen.values())
    assert overlaps(fetches(brokers, node=1)) == []


def overlaps(exchanges: list[Exchange]) -> list[tuple[float, int]]:
    """Return (time, partition) of every request for a partition during another one for it, as seen by the broker."""
    session: set[int] = set()
    open_until: dict[int, float] = {}
    found = []
    for exchange in exchanges:
        asked = set(named(exchange))
        if exchange.request.session_epoch != FINAL_EPOCH:
            session = asked if exchange.request.session_epoch == INITIAL_EPOCH else session | asked
            session -= set(forgotten(exchange))
            asked = set(session)
        end = float("inf") if exchange.answered_at is None else exchange.answered_at
        for partition in asked:
            if open_until.get(partition, -1.0) > exchange.time:
                found.append((exchange.time, partition))
            open_until[partition] = end
    return found


@pytest.mark.parametrize("version", [6, 11, 12, 13])
async def test_older_fetch_versions(brokers: EmbeddedCluster, version: int) -> None:
    fill(brokers, "orders", 0, batches=3)
    async with client(brokers) as reader:
        limit_fetch_version(reader, version)
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 3) == [0, 1, 2]
        consumer.seek(1)
        assert await read(consumer, 2) == [1, 2]
        await caught_up(consumer)
        assert {exchange.version for exchange in fetches(brokers)} == {version}
        assert any(e.request.session_id > 0 for e in fetches(brokers)) is (version >= 7)


async def test_without_a_session_each_partition_comes_first_in_turn(brokers: EmbeddedCluster) -> None:
    """A response has room for the batch of one partition only, and all partitions become fetchable at once."""
    on_one_node(brokers, "orders", (0, 1, 2))
    for partition in (0, 1, 2):
        fill(brokers, "orders", partition, batches=40)
    async with client(brokers, fetch_max_bytes=1) as reader:
        limit_fetch_version(reader, 6)
        first, *others = reader.read("orders", 0, 1, 2)
        tasks = [asyncio.ensure_future(read(consumer, 40)) for consumer in others]
        assert await read(first, 30) == list(range(30))
        assert all(28 <= consumer.position <= 32 for consumer in others)
        await asyncio.gather(*tasks)


def limit_fetch_version(reader, version: int) -> None:
    """Limit the Fetch version, as with an older broker."""
    negotiated = reader.cluster.network._negotiated_version

    def limited(connection, cls, highest):
        if cls.NAME == "FetchRequest":
            highest = min(version, highest or version)
        return negotiated(connection, cls, highest)

    reader.cluster.network._negotiated_version = limited


@pytest.mark.parametrize("busy", [False, True])
async def test_a_partition_moves_from_the_express_lane_to_the_session(
    brokers: EmbeddedCluster, *, busy: bool
) -> None:
    """Found in design: it was always in flight on the express lane when the main lane's fetch ended, fifty times a second
    as long as it was read.
    """
    on_one_node(brokers, "orders", (0, 1))
    async with client(brokers, fetch_max_wait=0.5) as reader:
        (first,) = reader.read("orders", 0)
        await caught_up(first)
        (second,) = reader.read("orders", 1)
        task = asyncio.ensure_future(read(second, 300))
        for _ in range(300):
            if busy:
                fill(brokers, "orders", 1, batches=1)
            await asyncio.sleep(0.01)
        if not busy:
            fill(brokers, "orders", 1, batches=300)
        assert await task == list(range(300))
        express = [e for e in fetches(brokers, node=1) if e.request.session_epoch == FINAL_EPOCH]
        assert 1 <= len(express) <= 60, "at most until the main lane's first fetch has ended"
        assert max(e.request.max_wait_ms for e in express) <= 1000 * SHORT_WAIT
        await asyncio.sleep(2)
        assert {exchange.request.max_wait_ms for exchange in fetches(brokers, node=1)[-3:]} == {500}
