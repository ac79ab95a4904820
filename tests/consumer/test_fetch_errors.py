"""Fetching from an embedded cluster in virtual time: errors and leader changes, without effect on other partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import (
    BrokerError,
    CorruptRecordsError,
    ErrorCode,
    UnsupportedVersionError,
)
from asyncgroup.testing import current_network
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import APIS
from tests.broker.internals import log_of
from tests.consumer.brokers import PARTITIONS, caught_up, client, fetches, fill, now, read

# -- errors ------------------------------------------------------------------------------------------------------------


async def test_a_final_error_is_raised_once(brokers: EmbeddedCluster) -> None:
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
async def test_a_retriable_error_is_not_raised(brokers: EmbeddedCluster, code: ErrorCode) -> None:
    fill(brokers, "orders", 0, batches=2)
    brokers.faults.on("Fetch", topic="orders", times=3).error(code)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 2) == [0, 1]
        assert [error.code for error in reader.errors] == [code] * 3  # type: ignore[attr-defined]


def offer(**ranges: tuple[int, int]) -> Callable[[m.ApiVersionsResponse], None]:
    """Return a change of ApiVersions responses: other version ranges."""

    def change(response: m.ApiVersionsResponse) -> None:
        for key in response.api_keys:
            low_high = ranges.get(APIS[key.api_key].name if key.api_key in APIS else "")
            key.min_version, key.max_version = low_high or (key.min_version, key.max_version)

    return change


WITHOUT_IDS = "offers 13-17, this client supports 4-12; later versions name topics by id .* no id of orders"


async def test_a_broker_without_a_usable_version_is_an_error(brokers: EmbeddedCluster) -> None:
    """Found from outside: a broker whose metadata has no topic ids was asked without end, with a log line as the only sign."""
    fill(brokers, "orders", 0, batches=1)
    fault = brokers.faults.on("ApiVersions", times=None).mutate(offer(Metadata=(0, 9), Fetch=(13, 17)))
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        for _ in range(2):
            with pytest.raises(UnsupportedVersionError, match=WITHOUT_IDS):
                await asyncio.wait_for(anext(consumer), 5)
        fault.cancel()
        assert await asyncio.wait_for(read(consumer, 1), 5) == [0], "a reader may continue"


async def test_a_broker_that_was_replaced_is_asked_for_its_versions_again(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=1)
    async with client(brokers) as reader:
        brokers.faults.on("ApiVersions").mutate(offer(Fetch=(0, 3)))
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 1) == [0]
        (error,) = reader.errors
        assert "offers 0-3, this client supports 4-18" in str(error)


async def test_a_response_without_topic_ids_is_an_error(brokers: EmbeddedCluster) -> None:
    def remove_id(response: m.FetchResponse) -> None:
        for topic in response.responses:
            topic.topic_id = m.NO_UUID

    fill(brokers, "orders", 0, batches=1)
    brokers.faults.on("Fetch", times=2).mutate(remove_id)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        with pytest.raises(UnsupportedVersionError, match="a topic without name and id"):
            await asyncio.wait_for(anext(consumer), 5)
        assert await read(consumer, 1) == [0]


def lack(response: m.FetchResponse) -> None:
    """Remove partition 0 of all topics."""
    for topic in response.responses:
        topic.partitions = [data for data in topic.partitions if data.partition_index]


def lose_id(response: m.FetchResponse) -> None:
    """Remove the id of the topic of partition 0, and give the other partitions a topic with it."""
    for topic in list(response.responses):
        others = [data for data in topic.partitions if data.partition_index]
        response.responses.append(
            m.FetchResponse.FetchableTopicResponse(topic_id=topic.topic_id, partitions=others)
        )
        topic.topic_id, topic.partitions = (
            m.NO_UUID,
            [data for data in topic.partitions if not data.partition_index],
        )


@pytest.mark.parametrize("change", [lack, lose_id])
async def test_a_partition_that_responses_lack_does_not_stop_the_others(
    brokers: EmbeddedCluster, change: Callable[[m.FetchResponse], None]
) -> None:
    for partition in range(PARTITIONS):
        brokers.move_leader("orders", partition, 1)
        fill(brokers, "orders", partition, batches=2)
    fault = brokers.faults.on("Fetch", times=None).mutate(change)
    async with client(brokers) as reader:
        consumers = reader.read("orders", *range(PARTITIONS))
        for round_ in range(3):
            for partition, consumer in enumerate(consumers[1:], 1):
                assert await asyncio.wait_for(read(consumer, 2), 5) == [2 * round_, 2 * round_ + 1]
                fill(brokers, "orders", partition, batches=2)
        assert {str(error) for error in reader.errors} == {
            "fetch of orders-0 from node 1: UNKNOWN_SERVER_ERROR (-1): the response lacks the partition"
        }
        fault.cancel()
        assert await asyncio.wait_for(read(consumers[0], 2), 5) == [0, 1]


async def test_a_lost_connection_is_reported_once_for_all_its_partitions(brokers: EmbeddedCluster) -> None:
    for partition in range(PARTITIONS):
        brokers.move_leader("orders", partition, 1)
        fill(brokers, "orders", partition, batches=1)
    brokers.faults.on("Fetch").disconnect()
    async with client(brokers) as reader:
        for consumer in reader.read("orders", *range(PARTITIONS)):
            assert await read(consumer, 1) == [0]
        assert len(reader.errors) == 1


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_REQUEST])
async def test_an_error_of_the_whole_response_is_not_raised(
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


async def test_bytes_without_batches_raise_an_error_with_the_partition(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=1)
    data = log_of(brokers, "orders", 0).segments.batch_index.batches[0].chunk.data
    magic, data[16] = data[16], 9
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        with pytest.raises(CorruptRecordsError, match="partition orders-0: batch at offset 0"):
            await anext(consumer)
        data[16] = magic
        assert await asyncio.wait_for(read(consumer, 1), 5) == [0]


async def test_a_failed_metadata_request_is_repeated(brokers: EmbeddedCluster) -> None:
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


# -- leader changes ----------------------------------------------------------------------------------------------------


async def test_no_record_is_lost_when_the_leader_moves(brokers: EmbeddedCluster) -> None:
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        found: list[int] = []
        for turn in range(6):
            brokers.move_leader("orders", 0, 1 + turn % 2)
            fill(brokers, "orders", 0, batches=3)
            found += await read(consumer, 3)
        assert found == list(range(18))


async def test_a_leader_hint_avoids_the_pause(brokers: EmbeddedCluster) -> None:
    """KIP-951: the response names the current leader."""
    brokers.move_leader("orders", 0, 1)
    async with client(brokers, retry_backoff=1.0, retry_backoff_max=2.0) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        start = now()
        brokers.move_leader("orders", 0, 2)
        fill(brokers, "orders", 0, batches=1)
        assert await read(consumer, 1) == [0]
        assert now() - start < 0.5


async def test_a_stopped_node_is_used_again_after_its_return(brokers: EmbeddedCluster) -> None:
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


async def test_a_removed_partition_is_not_fetched_and_its_response_is_dropped(
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
        assert (consumer.buffered_bytes, consumer._inner.reserved) == (0, 0)
        again = reader.consumer("orders", 0)
        reader.fetchers.add(again)
        assert await read(again, 1) == [0]


async def test_an_unreachable_broker_delays_only_its_own_partitions(brokers: EmbeddedCluster) -> None:
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
