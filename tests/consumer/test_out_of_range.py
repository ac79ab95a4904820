"""Offsets out of range, at the start and while reading, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import (
    BrokerError,
    ErrorCode,
    OffsetOutOfRangeError,
)
from tests.broker.internals import log_of
from tests.consumer.brokers import client, fill, now, read


@pytest.mark.parametrize(("policy", "next_offset"), [("earliest", 0), ("latest", 5)])
async def test_an_offset_outside_the_log_is_reset_by_the_policy(
    brokers: EmbeddedCluster, policy: str, next_offset: int
) -> None:
    fill(brokers, "orders", 0, batches=5)
    async with client(brokers, auto_offset_reset=policy) as reader:
        (consumer,) = reader.read("orders", 0, offset=99)
        task = asyncio.ensure_future(read(consumer, 1))
        await asyncio.sleep(1)
        fill(brokers, "orders", 0, batches=1)
        assert await task == [next_offset]


async def test_with_policy_error_the_error_is_raised_and_a_seek_helps(brokers: EmbeddedCluster) -> None:
    """Found by review: the partition had no fetcher any more, so a seek had no effect."""
    fill(brokers, "orders", 0, batches=5)
    async with client(brokers, auto_offset_reset="error") as reader:
        (consumer,) = reader.read("orders", 0, offset=99)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError, match=r"orders-0: offset 99 .* which holds 0\.\.5$"):
                await asyncio.wait_for(anext(consumer), 5)
        consumer.seek(3)
        assert await asyncio.wait_for(read(consumer, 2), 5) == [3, 4]


@pytest.mark.parametrize(
    ("config", "next_offset"),
    [
        ({"auto_offset_reset": "latest", "out_of_range_reset": "earliest"}, 2),
        ({"auto_offset_reset": "error", "out_of_range_reset": "latest"}, 5),
        ({"out_of_range_reset": timedelta(days=365 * 60)}, 2),  # the records have timestamps in 1970
        ({"out_of_range_reset": timedelta(days=1)}, 5),  # after the last record: the end
    ],
    ids=str,
)
@pytest.mark.parametrize("offset", [0, 99])
async def test_out_of_range_reset_is_separate_from_auto_offset_reset(
    brokers: EmbeddedCluster, config: dict[str, object], next_offset: int, offset: int
) -> None:
    """It applies before the log start (after retention) and beyond the log's end (after an unclean election)."""
    fill(brokers, "orders", 0, batches=5)
    log_of(brokers, "orders", 0).start_offset = 2
    async with client(brokers, **config) as reader:
        (consumer,) = reader.read("orders", 0, offset=offset)
        resets: list[tuple[int, int]] = []
        listener = consumer._inner.listener
        listener.on_reset = lambda *where: resets.append(where)  # type: ignore[method-assign]
        task = asyncio.ensure_future(read(consumer, 1))
        await asyncio.sleep(1)
        fill(brokers, "orders", 0, batches=1)
        assert await task == [next_offset]
        assert resets == [(next_offset, 5)]
        (reported,) = reader.errors
        assert isinstance(reported, OffsetOutOfRangeError)
        expected = (
            f"orders-0: offset {offset} is not in the log, which holds 2..5; continuing at {next_offset}"
        )
        assert str(reported) == expected


async def test_an_offset_that_is_lost_while_reading_is_reset(brokers: EmbeddedCluster) -> None:
    """In sarama the policy applies only at the start of a claim, and the claim ends (#910, #2252)."""
    fill(brokers, "orders", 0, batches=3)
    async with client(brokers, out_of_range_reset="earliest") as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 3) == [0, 1, 2]
        consumer.pause()
        await asyncio.sleep(1)
        fill(brokers, "orders", 0, batches=7)
        log_of(brokers, "orders", 0).start_offset = 6
        consumer.resume()
        assert await read(consumer, 4) == [6, 7, 8, 9]


async def test_partitions_out_of_range_at_once_are_looked_up_together(brokers: EmbeddedCluster) -> None:
    """In sarama partitions that are all out of range after a broker failure never recover (#2342)."""
    brokers.create_topic("wide", 100)
    for partition in range(100):
        fill(brokers, "wide", partition, batches=2)
    async with client(brokers, ["wide"], auto_offset_reset="earliest") as reader:
        consumers = reader.read("wide", *range(100), offset=99)
        for consumer in consumers:
            assert await read(consumer, 2) == [0, 1]
    assert len(brokers.history.of("ListOffsets", client_id="reader")) <= 8, (
        "start and end of each broker's logs"
    )


async def test_a_hung_leader_delays_only_the_resets_of_its_own_partitions(
    brokers: EmbeddedCluster,
) -> None:
    for partition, node in ((0, 1), (1, 2)):
        brokers.move_leader("orders", partition, node)
        fill(brokers, "orders", partition, batches=1)
    held = brokers.faults.on("ListOffsets", node=1, times=None).hold()
    async with client(brokers, auto_offset_reset="earliest") as reader:
        slow, quick = reader.read("orders", 0, 1, offset=99)
        start = now()
        assert await read(quick, 1) == [0]
        assert now() - start < 0.5
        held.release()
        assert await read(slow, 1) == [0]


async def test_a_reset_is_retried_while_there_is_no_leader(brokers: EmbeddedCluster) -> None:
    """Found by review: without a leader for some seconds a retriable error was raised to the handler."""
    fill(brokers, "orders", 0, batches=5)
    brokers.faults.on("ListOffsets", times=30).error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    async with client(brokers, auto_offset_reset="earliest") as reader:
        (consumer,) = reader.read("orders", 0, offset=99)
        assert await asyncio.wait_for(read(consumer, 5), 300) == [0, 1, 2, 3, 4]
        assert any(isinstance(error, BrokerError) for error in reader.errors)


async def test_a_seek_cancels_a_reset(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=5)
    held = brokers.faults.on("ListOffsets").hold()
    async with client(brokers, auto_offset_reset="earliest") as reader:
        (consumer,) = reader.read("orders", 0, offset=99)
        await held.wait_hit()
        consumer.seek(3)
        held.release()
        assert await asyncio.wait_for(read(consumer, 2), 10) == [3, 4]


async def test_an_unauthorized_reset_raises_and_a_seek_helps(
    brokers: EmbeddedCluster,
) -> None:
    fill(brokers, "orders", 0, batches=2)
    brokers.faults.on("ListOffsets", times=None).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with client(brokers, auto_offset_reset="earliest") as reader:
        (consumer,) = reader.read("orders", 0, offset=99)
        with pytest.raises(BrokerError, match="offset of orders-0: TOPIC_AUTHORIZATION_FAILED"):
            await anext(consumer)
        consumer.seek(1)
        assert await asyncio.wait_for(read(consumer, 1), 5) == [1]


async def test_a_slow_reader_gets_buffered_records_before_a_reset_to_the_log_start(
    brokers: EmbeddedCluster,
) -> None:
    """Retention deleted the next records of a slow reader: the buffered ones are delivered before the jump."""
    fill(brokers, "orders", 0, batches=100, size=1000)
    sizes = {"buffer_bytes": 20_000, "max_partition_fetch_bytes": 5000}
    async with client(brokers, out_of_range_reset="earliest", **sizes) as reader:
        (consumer,) = reader.read("orders", 0)
        await asyncio.sleep(1)
        held = consumer._inner.fetch_offset
        assert held >= 10
        log_of(brokers, "orders", 0).start_offset = 90
        assert await read(consumer, 10) == list(range(10))
        await asyncio.sleep(1)  # it has room, is fetched, and is out of range
        assert await read(consumer, held) == [*range(10, held), *range(90, 100)]
        (reported,) = reader.errors
        assert f"offset {held} is not in the log" in str(reported)


async def test_a_reset_backwards_drops_buffered_records(brokers: EmbeddedCluster) -> None:
    """After going back all records are fetched again: old buffered ones must not come in between."""
    fill(brokers, "orders", 0, batches=20, size=1000)
    async with client(brokers, out_of_range_reset="earliest", buffer_bytes=10_000) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 2) == [0, 1]
        consumer._inner.reset(0, 20)
        assert await read(consumer, 20) == list(range(20))
