"""Fetching from an embedded cluster in virtual time: resets, errors, moves, and who must not suffer from them."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError, CorruptRecordsError, ErrorCode, OffsetOutOfRangeError
from asyncgroup.testing import current_network
from tests.consumer.brokers import PARTITIONS, caught_up, client, fetches, fill, now, read

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


# -- offsets outside the log --------------------------------------------------------------------------------------------


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


async def test_without_a_policy_the_reader_is_told_and_may_seek(brokers: EmbeddedCluster) -> None:
    """Found by review: the partition belonged to no fetcher any more, so that a seek brought nothing."""
    fill(brokers, "orders", 0, batches=5)
    async with client(brokers, auto_offset_reset="error") as reader:
        (consumer,) = reader.read("orders", 0, offset=99)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError, match=r"orders-0: offset 99"):
                await asyncio.wait_for(anext(consumer), 5)
        consumer.seek(3)
        assert await asyncio.wait_for(read(consumer, 2), 5) == [3, 4]


async def test_a_reset_goes_on_for_as_long_as_there_is_no_leader(brokers: EmbeddedCluster) -> None:
    """Found by review: a leader missing for some seconds raised a retriable error into the handler."""
    fill(brokers, "orders", 0, batches=5)
    brokers.faults.on("ListOffsets", times=30).error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    async with client(brokers, auto_offset_reset="earliest") as reader:
        (consumer,) = reader.read("orders", 0, offset=99)
        assert await asyncio.wait_for(read(consumer, 5), 300) == [0, 1, 2, 3, 4]
        assert any(isinstance(error, BrokerError) for error in reader.errors)


async def test_a_seek_during_a_reset_wins(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=5)
    held = brokers.faults.on("ListOffsets").hold()
    async with client(brokers, auto_offset_reset="earliest") as reader:
        (consumer,) = reader.read("orders", 0, offset=99)
        await held.wait_hit()
        consumer.seek(3)
        held.release()
        assert await asyncio.wait_for(read(consumer, 2), 10) == [3, 4]


# -- errors -------------------------------------------------------------------------------------------------------------


async def test_a_final_error_reaches_the_reader_once(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=2)
    brokers.faults.on("Fetch", topic="orders").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        batches = consumer.batches(max_records=1)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await anext(batches)
        found = [(await asyncio.wait_for(anext(batches), 5)).first_offset for _ in range(2)]
        assert found == [0, 1]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ],
)
async def test_a_passing_error_heals_without_the_reader(brokers: EmbeddedCluster, code: ErrorCode) -> None:
    fill(brokers, "orders", 0, batches=2)
    brokers.faults.on("Fetch", topic="orders", times=3).error(code)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 2) == [0, 1]
        assert [error.code for error in reader.errors] == [code] * 3  # type: ignore[attr-defined]


async def test_an_error_that_stays_is_asked_about_less_and_less(brokers: EmbeddedCluster) -> None:
    """Found by review: the pause never grew beyond the first one, ten tries a second for ever."""
    fault = brokers.faults.on("Fetch", topic="orders", times=None).error(ErrorCode.KAFKA_STORAGE_ERROR)
    async with client(brokers, retry_backoff=0.1, retry_backoff_max=2.0) as reader:
        reader.read("orders", 0)
        await asyncio.sleep(60)
        assert 20 <= fault.hits <= 45
        times = [exchange.time for exchange in fetches(brokers)]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert gaps[0] < 0.2
        assert all(1.5 < gap < 2.6 for gap in gaps[-10:])


async def test_the_pauses_begin_anew_after_a_time_of_health(brokers: EmbeddedCluster) -> None:
    async with client(brokers, retry_backoff=0.1, retry_backoff_max=2.0) as reader:
        reader.read("orders", 0)
        for _ in range(3):
            fault = brokers.faults.on("Fetch", topic="orders", times=8).error(ErrorCode.KAFKA_STORAGE_ERROR)
            await fault.wait_hit(8)
            await asyncio.sleep(10)
        times = [exchange.time for exchange in fetches(brokers)]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert sum(gap < 0.2 for gap in gaps) >= 3
        assert sum(gap > 1.5 for gap in gaps) >= 6


async def test_a_partition_without_a_leader_holds_no_other_up(brokers: EmbeddedCluster) -> None:
    """Found by review: one partition's pause was everybody's; a new partition waited for it."""
    for partition in (0, 1):
        brokers.move_leader("orders", partition, 1)
        fill(brokers, "orders", partition, batches=1)
    brokers.create_topic("bad", 1)
    brokers.faults.on("Fetch", topic="bad", times=None).error(ErrorCode.KAFKA_STORAGE_ERROR)
    async with client(brokers, ["orders", "bad"]) as reader:
        reader.read("bad", 0)
        await asyncio.sleep(20)
        for partition in (0, 1):
            start = now()
            (consumer,) = reader.read("orders", partition)
            assert await read(consumer, 1) == [0]
            assert now() - start < 0.05


async def test_a_connection_that_ends_is_told_once_for_all_its_partitions(brokers: EmbeddedCluster) -> None:
    for partition in range(PARTITIONS):
        brokers.move_leader("orders", partition, 1)
        fill(brokers, "orders", partition, batches=1)
    brokers.faults.on("Fetch").disconnect()
    async with client(brokers) as reader:
        for consumer in reader.read("orders", *range(PARTITIONS)):
            assert await read(consumer, 1) == [0]
        assert len(reader.errors) == 1


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_REQUEST])
async def test_an_error_of_the_whole_answer_heals_without_the_reader(
    brokers: EmbeddedCluster, code: ErrorCode
) -> None:
    for partition in (0, 1):
        brokers.move_leader("orders", partition, 1)
        fill(brokers, "orders", partition, batches=1)
    brokers.faults.on("Fetch").error(code)
    async with client(brokers) as reader:
        for consumer in reader.read("orders", 0, 1):
            assert await read(consumer, 1) == [0]
        assert [error.code for error in reader.errors] == [code]  # type: ignore[attr-defined]


async def test_bytes_that_are_no_batches_are_told_with_their_partition(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=1)
    data = brokers.partition("orders", 0).log._segment.data
    magic, data[16] = data[16], 9
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        with pytest.raises(CorruptRecordsError, match="partition orders-0: batch at offset 0"):
            await anext(consumer)
        data[16] = magic
        assert await asyncio.wait_for(read(consumer, 1), 5) == [0]


async def test_a_reset_that_may_not_be_asked_for_is_told_and_may_be_sought_over(
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


async def test_metadata_that_cannot_be_had_is_asked_for_again(brokers: EmbeddedCluster) -> None:
    brokers.move_leader("orders", 0, 1)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        brokers.faults.on("Metadata", times=3).error(ErrorCode.UNKNOWN_SERVER_ERROR)
        brokers.faults.on("Fetch", topic="orders").error(ErrorCode.FENCED_LEADER_EPOCH)
        for offset in range(2):
            fill(brokers, "orders", 0, batches=1)
            assert await asyncio.wait_for(read(consumer, 1), 60) == [offset]
            await asyncio.sleep(1)
        assert len(reader.errors) >= 2


# -- moves --------------------------------------------------------------------------------------------------------------


async def test_a_moved_leader_is_followed_without_loss(brokers: EmbeddedCluster) -> None:
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        found: list[int] = []
        for turn in range(6):
            brokers.move_leader("orders", 0, 1 + turn % 2)
            fill(brokers, "orders", 0, batches=3)
            found += await read(consumer, 3)
        assert found == list(range(18))


async def test_a_broker_that_names_the_new_leader_spares_the_pause(brokers: EmbeddedCluster) -> None:
    """KIP-951: the answer says who leads now."""
    brokers.move_leader("orders", 0, 1)
    async with client(brokers, retry_backoff=1.0, retry_backoff_max=2.0) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        start = now()
        brokers.move_leader("orders", 0, 2)
        fill(brokers, "orders", 0, batches=1)
        assert await read(consumer, 1) == [0]
        assert now() - start < 0.5


async def test_a_node_that_goes_is_left_and_found_again(brokers: EmbeddedCluster) -> None:
    brokers.move_leader("orders", 0, 1)
    fill(brokers, "orders", 0, batches=2)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 2) == [0, 1]
        await brokers.stop_node(1)
        fill(brokers, "orders", 0, batches=2)
        assert await asyncio.wait_for(read(consumer, 2), 60) == [2, 3]
        await brokers.start_node(1)
        brokers.move_leader("orders", 0, 1)
        fill(brokers, "orders", 0, batches=1)
        assert await asyncio.wait_for(read(consumer, 1), 60) == [4]


async def test_a_removed_partition_is_asked_no_more_and_its_answer_is_dropped(
    brokers: EmbeddedCluster,
) -> None:
    async with client(brokers, fetch_max_wait=5.0) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        reader.fetchers.remove(consumer)
        reader.fetchers.remove(consumer)
        asked = len(fetches(brokers))
        fill(brokers, "orders", 0, batches=1)
        await asyncio.sleep(20)
        assert len(fetches(brokers)) == asked
        assert (consumer.buffered_bytes, consumer.reserved) == (0, 0)
        again = reader.consumer("orders", 0)
        reader.fetchers.add(again)
        assert await read(again, 1) == [0]


async def test_a_broker_cut_off_holds_up_its_own_partitions_only(brokers: EmbeddedCluster) -> None:
    for partition, node in ((0, 1), (1, 2)):
        brokers.move_leader("orders", partition, node)
        fill(brokers, "orders", partition, batches=1)
    async with client(brokers, request_timeout=5.0) as reader:
        first, second = reader.read("orders", 0, 1)
        assert await read(first, 1) + await read(second, 1) == [0, 0]
        current_network().blackhole("10.0.0.1", brokers.nodes[1].port)
        fill(brokers, "orders", 1, batches=1)
        start = now()
        assert await read(second, 1) == [1]
        assert now() - start < 0.5
        current_network().heal()
