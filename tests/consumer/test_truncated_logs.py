"""Logs truncated when another replica becomes the leader (KIP-320), and recreated topics (KIP-516)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.retries import OUTDATED_SECONDS
from asyncgroup.errors import ErrorCode, LogTruncatedError, TopicRecreatedError
from asyncgroup.model import TopicPartition
from tests.broker.internals import log_of, node_of, partition_in
from tests.consumer.brokers import Client, caught_up, client, fetches, fill, read


@pytest_asyncio.fixture
async def place() -> AsyncIterator[EmbeddedCluster]:
    """Three nodes with replicas of `orders-0`; node 1 is its leader, and it has ten records of epoch 0."""
    async with EmbeddedCluster(3, host="10.0.0.1", seed=1) as cluster:
        cluster.create_topic("orders", 1)
        partition_in(cluster, "orders", 0).replicas[:] = [1, 2, 3]
        if cluster.leader("orders", 0) != 1:
            cluster.move_leader("orders", 0, 1)
        fill(cluster, "orders", 0, batches=10)
        yield cluster


def questions(brokers: EmbeddedCluster) -> list[tuple[int, int]]:
    """Return (fetched epoch, leader's epoch) of every OffsetForLeaderEpoch request."""
    return [
        (part.leader_epoch, part.current_leader_epoch)
        for exchange in brokers.history.of("OffsetForLeaderEpoch", client_id="reader")
        for topic in exchange.request.topics
        for part in topic.partitions
    ]


async def reading(reader: Client, count: int, **options: object) -> PartitionConsumer:
    (consumer,) = reader.read("orders", 0)
    assert await read(consumer, count) == list(range(count))
    await caught_up(consumer)
    return consumer


# -- leader changes without truncation ---------------------------------------------------------------------------------


async def test_a_new_leader_validates_the_position_before_the_first_fetch(place: EmbeddedCluster) -> None:
    async with client(place) as reader:
        consumer = await reading(reader, 10)
        epoch = place.partition("orders", 0).leader_epoch
        place.move_leader("orders", 0, 2)
        fill(place, "orders", 0, batches=2)
        assert await read(consumer, 2) == [10, 11]
        assert questions(place) == [(epoch, epoch + 1)]
        asked = place.history.of("OffsetForLeaderEpoch", "Fetch", node=2, client_id="reader")
        assert asked[0].api == "OffsetForLeaderEpoch"
        assert asked[0].request.replica_id == -1
        await asyncio.sleep(3)
        assert len(questions(place)) == 1, "once per epoch"


async def test_all_partitions_of_a_new_leader_are_validated_in_one_request(place: EmbeddedCluster) -> None:
    place.create_topic("wide", 8)
    for partition in range(8):
        place.move_leader("wide", partition, 1)
        fill(place, "wide", partition, batches=1)
    async with client(place, ["wide"]) as reader:
        consumers = reader.read("wide", *range(8))
        for consumer in consumers:
            await read(consumer, 1)
        await caught_up(consumers[0])
        for partition in range(8):
            place.move_leader("wide", partition, 2)
        await asyncio.sleep(3)
        exchanges = place.history.of("OffsetForLeaderEpoch", client_id="reader")
        asked = [len(exchange.request.topics[0].partitions) for exchange in exchanges]
        assert sum(asked) == 8
        assert len(asked) <= 2, "the first move is learned separately, from a leader hint"


async def test_a_committed_epoch_is_validated_before_the_first_fetch(
    place: EmbeddedCluster,
) -> None:
    place.move_leader("orders", 0, 2)
    fill(place, "orders", 0, batches=2)
    async with client(place) as reader:
        for epoch, asked in ((place.partition("orders", 0).leader_epoch, 0), (1, 1), (-1, 0)):
            before = len(questions(place))
            consumer = PartitionConsumer(
                TopicPartition("orders", 0),
                8,
                reader.config,
                reader.fetchers.budget,
                reader.cluster.hooks,
                leader_epoch=epoch,
            )
            reader.fetchers.add(consumer)
            expected = [8, 9, 10, 11]
            assert await read(consumer, 4) == expected
            assert len(questions(place)) - before in (asked, 0)
            reader.fetchers.remove(consumer)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
)
async def test_a_retriable_validation_error_is_retried(place: EmbeddedCluster, code: ErrorCode) -> None:
    async with client(place) as reader:
        consumer = await reading(reader, 10)
        place.faults.on("OffsetForLeaderEpoch", times=2).error(code)
        place.move_leader("orders", 0, 2)
        fill(place, "orders", 0, batches=1)
        assert await asyncio.wait_for(read(consumer, 1), 10) == [10]
        assert len(questions(place)) == 3


async def test_an_authorization_error_of_the_validation_is_raised(place: EmbeddedCluster) -> None:
    async with client(place) as reader:
        consumer = await reading(reader, 10)
        place.faults.on("OffsetForLeaderEpoch").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        place.move_leader("orders", 0, 2)
        with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED"):
            await asyncio.wait_for(anext(consumer), 5)
        fill(place, "orders", 0, batches=1)
        assert await asyncio.wait_for(read(consumer, 1), 10) == [10]


# -- truncation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize("refill", [0, 2, 8])
async def test_reading_continues_at_the_divergent_offset(
    place: EmbeddedCluster, policy: str, refill: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(place, auto_offset_reset=policy) as reader:
        consumer = await reading(reader, 10)
        place.truncate("orders", 0, 6, leader=3)
        if refill:
            fill(place, "orders", 0, batches=refill, size=3)
        with caplog.at_level(logging.WARNING, "asyncgroup"):
            await asyncio.sleep(5)
        fill(place, "orders", 0, batches=1, size=3)
        assert await read(consumer, refill + 1) == list(range(6, 7 + refill))
        (warning,) = [r.getMessage() for r in caplog.records if "truncated" in r.getMessage()]
        assert "orders-0: the log was truncated at offset 6, records up to 10 were read" in warning
        assert [e for e in reader.errors if isinstance(e, LogTruncatedError)]


async def test_with_policy_error_the_truncation_is_raised_until_a_seek(place: EmbeddedCluster) -> None:
    async with client(place, auto_offset_reset="error") as reader:
        consumer = await reading(reader, 10)
        place.truncate("orders", 0, 6)
        fill(place, "orders", 0, batches=8, size=3)
        for _ in range(3):
            with pytest.raises(LogTruncatedError) as caught:
                await asyncio.wait_for(anext(consumer), 60)
            error = caught.value
            assert (error.topic, error.partition, error.position, error.divergent_offset) == (
                "orders",
                0,
                10,
                6,
            )
        consumer.seek(error.divergent_offset or 0)
        assert await asyncio.wait_for(read(consumer, 3), 5) == [6, 7, 8]


async def test_with_policy_error_no_lost_record_follows_the_error(place: EmbeddedCluster) -> None:
    """The reader has seen some lost records, and others are buffered: the buffered ones must not be delivered after the error."""
    async with client(place, auto_offset_reset="error", max_processing_time=60.0) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 8) == list(range(8))
        place.truncate("orders", 0, 6)
        fill(place, "orders", 0, batches=3, size=7)
        await asyncio.sleep(5)
        for _ in range(3):
            with pytest.raises(LogTruncatedError, match="truncated at offset 6"):
                await asyncio.wait_for(anext(consumer), 60)
        consumer.seek(6)
        assert await asyncio.wait_for(read(consumer, 3), 5) == [6, 7, 8]


async def test_lost_records_that_the_reader_has_not_seen_are_replaced_silently(
    place: EmbeddedCluster,
) -> None:
    """Only buffered records were lost and none was delivered, so there is no error."""
    async with client(place, auto_offset_reset="error", max_processing_time=60.0) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 4) == [0, 1, 2, 3]
        await asyncio.sleep(1)
        place.truncate("orders", 0, 6)
        fill(place, "orders", 0, batches=3, size=7)
        await asyncio.sleep(5)
        found = [await anext(consumer) for _ in range(5)]
        assert [record.offset for record in found] == [4, 5, 6, 7, 8]
        assert [len(record.value or b"") for record in found] == [1, 1, 7, 7, 7]


@pytest.mark.parametrize("policy", ["earliest", "error"])
async def test_a_diverging_epoch_in_a_fetch_response(place: EmbeddedCluster, policy: str) -> None:
    """If the leader epoch shows no difference, the last fetched epoch does (the diverging epoch of Fetch 12, KIP-595)."""
    async with client(place, auto_offset_reset=policy) as reader:
        consumer = await reading(reader, 10)
        consumer.pause()
        await asyncio.sleep(1)
        log_of(place, "orders", 0).truncate(6)
        consumer.resume()
        if policy == "error":
            with pytest.raises(LogTruncatedError, match="truncated at offset 6"):
                await asyncio.wait_for(anext(consumer), 5)
            consumer.seek(6)
        await asyncio.sleep(1)
        fill(place, "orders", 0, batches=2, size=3)
        assert await asyncio.wait_for(read(consumer, 2), 5) == [6, 7]
        assert questions(place) == []


@pytest.mark.parametrize("policy", ["earliest", "latest", "error"])
async def test_an_epoch_that_the_leader_does_not_know(place: EmbeddedCluster, policy: str) -> None:
    """A committed epoch from another history of the log: the divergent offset is unknown.

    First the metadata is considered outdated, for `OUTDATED_SECONDS`.
    """
    async with client(place, auto_offset_reset=policy) as reader:
        consumer = PartitionConsumer(
            TopicPartition("orders", 0),
            5,
            reader.config,
            reader.fetchers.budget,
            reader.cluster.hooks,
            leader_epoch=9,
        )
        reader.fetchers.add(consumer)
        if policy == "error":
            with pytest.raises(Exception, match="orders-0"):
                await asyncio.wait_for(anext(consumer), OUTDATED_SECONDS + 5)
            return
        await asyncio.sleep(2 * OUTDATED_SECONDS)
        fill(place, "orders", 0, batches=1)
        assert await asyncio.wait_for(read(consumer, 1), 5) == [0 if policy == "earliest" else 10]


# -- recreated topics --------------------------------------------------------------------------------------------------


async def recreate(brokers: EmbeddedCluster, records: int, pause: float = 0.0) -> None:
    brokers.delete_topic("orders")
    await asyncio.sleep(pause)
    brokers.create_topic("orders", 1)
    fill(brokers, "orders", 0, batches=records, size=3)


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize("records", [3, 30])
@pytest.mark.parametrize("pause", [0.0, 3.0])
async def test_a_recreated_topic_is_read_from_its_first_record(
    place: EmbeddedCluster, policy: str, records: int, pause: float
) -> None:
    """This includes a topic whose offsets reach beyond the old position, where only the topic id shows the difference."""
    async with client(place, auto_offset_reset=policy) as reader:
        consumer = await reading(reader, 10)
        await recreate(place, records, pause)
        assert await asyncio.wait_for(read(consumer, records), 20) == list(range(records))
        assert [e for e in reader.errors if isinstance(e, TopicRecreatedError)]


async def test_the_old_position_is_not_used_when_metadata_shows_the_new_topic_first(
    place: EmbeddedCluster,
) -> None:
    async with client(place, auto_offset_reset="latest", fetch_max_wait=5.0) as reader:
        consumer = await reading(reader, 10)
        consumer.pause()
        await asyncio.sleep(6)
        await recreate(place, 30)
        await reader.cluster.refresh()
        consumer.resume()
        assert await asyncio.wait_for(read(consumer, 30), 20) == list(range(30))


async def test_with_policy_error_topic_recreated_is_raised(
    place: EmbeddedCluster,
) -> None:
    async with client(place, auto_offset_reset="error") as reader:
        consumer = await reading(reader, 10)
        await recreate(place, 30)
        for _ in range(2):
            with pytest.raises(
                TopicRecreatedError, match="orders-0: the topic was deleted and created again"
            ) as caught:
                await asyncio.wait_for(anext(consumer), 20)
            assert caught.value.position == 10
        consumer.seek(0)
        assert await asyncio.wait_for(read(consumer, 30), 20) == list(range(30))


async def test_fetches_of_a_recreated_topic_use_its_new_id(place: EmbeddedCluster) -> None:
    old = place.topic("orders").id
    async with client(place, auto_offset_reset="earliest") as reader:
        consumer = await reading(reader, 10)
        await recreate(place, 3)
        await asyncio.wait_for(read(consumer, 3), 20)
        await caught_up(consumer)
        said = [topic.topic_id for exchange in fetches(place) for topic in exchange.request.topics]
        assert said[0] == old
        assert said[-1] == place.topic("orders").id
        node = node_of(place, place.leader("orders", 0))
        (session,) = node.fetch_sessions._sessions.values()
        assert {key[0] for key in session.partitions} == {place.topic("orders").id}
