"""`seek` by name or time: returns at once, is looked up in the background, with one request for many partitions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer.list_offsets import StartOffset
from asyncgroup.errors import BrokerError, ConfigError, ErrorCode
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import append
from tests.broker.internals import complete_delayed_operations, partition_in
from tests.consumer.brokers import caught_up, client, fill, read
from tests.consumer.support import make_consumer


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def stamped(brokers: EmbeddedCluster, partition: int, *timestamps: int) -> None:
    """Append a record with each of these timestamps."""
    place = partition_in(brokers, "orders", partition)
    for timestamp in timestamps:
        builder = BatchBuilder("none", 1 << 30)
        assert builder.append(timestamp, b"k", b"v")
        append(place.log, builder.build(), place.leader_epoch)
    complete_delayed_operations(brokers, place)


def lookups(brokers: EmbeddedCluster) -> int:
    return len(brokers.history.of("ListOffsets", client_id="reader"))


@pytest.mark.parametrize(
    ("where", "first"),
    [
        ("earliest", 0),
        (at(0), 0),
        (at(2000), 1),
        (at(2001), 2),
        (datetime.fromtimestamp(3, UTC).astimezone(), 2),
        (timedelta(days=365_000), 0),
        (2, 2),
    ],
    ids=str,
)
async def test_reading_continues_at_the_target(
    brokers: EmbeddedCluster, where: StartOffset, first: int
) -> None:
    stamped(brokers, 0, 1000, 2000, 3000, 4000)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0, offset=3)
        assert await read(consumer, 1) == [3]
        consumer.seek(where)
        assert await asyncio.wait_for(read(consumer, 4 - first), 5) == [*range(first, 4)]


@pytest.mark.parametrize("where", ["latest", at(9000), timedelta(seconds=1)], ids=str)
async def test_a_target_after_the_last_record_means_the_logs_end(
    brokers: EmbeddedCluster, where: StartOffset
) -> None:
    stamped(brokers, 0, 1000, 2000, 3000, 4000)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 1) == [0]
        consumer.seek(where)
        reading = asyncio.ensure_future(read(consumer, 1))
        await asyncio.sleep(5)
        assert consumer.position == 4
        stamped(brokers, 0, 10_000)
        assert await asyncio.wait_for(reading, 5) == [4]


async def test_it_returns_at_once_and_drops_buffered_records(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=1, records=10)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 3) == [0, 1, 2]
        held = brokers.faults.on("ListOffsets").hold()
        consumer.seek("earliest")
        assert consumer.buffered_bytes == 0
        reading = asyncio.ensure_future(read(consumer, 1))
        await asyncio.sleep(5)
        assert not reading.done()
        assert consumer.position == 3, "the position changes when the offset was looked up"
        held.release()
        assert await asyncio.wait_for(reading, 5) == [0]


async def test_the_last_seek_counts(brokers: EmbeddedCluster) -> None:
    stamped(brokers, 0, 1000, 2000, 3000, 4000)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 1) == [0]
        consumer.seek("latest")
        consumer.seek(1)
        assert await asyncio.wait_for(read(consumer, 2), 5) == [1, 2]
        consumer.seek("latest")
        await asyncio.sleep(0.0105)  # the lookup is in flight
        consumer.seek(at(2500))
        assert await asyncio.wait_for(read(consumer, 2), 5) == [2, 3]
        consumer.seek("latest")
        await asyncio.sleep(0.0105)
        consumer.seek(0)
        assert await asyncio.wait_for(read(consumer, 4), 5) == [0, 1, 2, 3]


async def test_many_partitions_take_one_request_per_leader(brokers: EmbeddedCluster) -> None:
    for partition in range(6):
        stamped(brokers, partition, 1000, 2000)
    async with client(brokers) as reader:
        consumers = reader.read("orders", *range(6))
        for consumer in consumers:
            assert await read(consumer, 2) == [0, 1]
        before = lookups(brokers)
        for number, consumer in enumerate(consumers):
            consumer.seek("earliest" if number % 2 else at(2000))
        firsts = [(await asyncio.wait_for(read(consumer, 1), 5))[0] for consumer in consumers]
        assert firsts == [1, 0] * 3
        assert lookups(brokers) - before == len(brokers.nodes)


async def test_a_seek_before_the_first_fetch(brokers: EmbeddedCluster) -> None:
    """As a handler's `setup` may do."""
    fill(brokers, "orders", 0, batches=3)
    async with client(brokers) as reader:
        consumer = reader.consumer("orders", 0, 1)
        consumer.seek("earliest")
        reader.fetchers.add(consumer)
        assert await asyncio.wait_for(read(consumer, 3), 5) == [0, 1, 2]


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR])
async def test_retriable_errors_are_retried(brokers: EmbeddedCluster, code: ErrorCode) -> None:
    fill(brokers, "orders", 0, batches=3)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        brokers.faults.on("ListOffsets", times=3).error(code)
        consumer.seek("latest")
        reading = asyncio.ensure_future(read(consumer, 1))
        await asyncio.sleep(20)
        fill(brokers, "orders", 0, batches=1)
        assert await asyncio.wait_for(reading, 5) == [3]
        assert reader.errors


async def test_the_leader_moves_during_the_lookup(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=3)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 2) == [0, 1]
        consumer.seek("earliest")
        await brokers.stop_node(brokers.leader("orders", 0))
        assert await asyncio.wait_for(read(consumer, 3), 60) == [0, 1, 2]


async def test_a_refused_lookup_is_raised_and_reading_continues_at_the_old_position(
    brokers: EmbeddedCluster,
) -> None:
    fill(brokers, "orders", 0, batches=3)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 1) == [0]
        brokers.faults.on("ListOffsets").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        consumer.seek("latest")
        with pytest.raises(BrokerError, match="orders-0"):
            await asyncio.wait_for(anext(consumer), 5)
        assert await asyncio.wait_for(read(consumer, 2), 5) == [1, 2]


async def test_paused_and_ended_partitions(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=3)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 2) == [0, 1]
        consumer.pause()
        consumer.seek("earliest")
        await asyncio.sleep(5)
        assert consumer.position == 0
        consumer.resume()
        assert await asyncio.wait_for(read(consumer, 1), 5) == [0]
        consumer._inner.end()
        before = lookups(brokers)
        consumer.seek("latest")
        await asyncio.sleep(5)
        assert (lookups(brokers), consumer.position) == (before, 1)


@pytest.mark.parametrize(
    ("where", "named"),
    [
        (datetime(2026, 1, 1), "time zone"),  # noqa: DTZ001  that is the point
        ("Earliest", "'earliest'"),
        (-1, "an offset"),
        (True, "an offset"),
        (1.5, "datetime"),
        (None, "an offset"),
        (timedelta(), "a timedelta"),
    ],
    ids=str,
)
async def test_bad_targets_are_refused_at_once(where: object, named: str) -> None:
    consumer = make_consumer(7)
    with pytest.raises(ConfigError, match=named):
        consumer.seek(where)  # type: ignore[arg-type]
    assert consumer.position == 7
