"""A partition without a leader, with a silent one, or with an error does not stop the others of a query; without Spark."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster.requests.list_offsets import EARLIEST
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver import broker_lookups
from asyncgroup.spark.source.errors import DataLossError
from asyncgroup.spark.source.options.settings import FromGroup, Latest, OffsetLimit, Specific, Subscribe
from tests.broker.internals import log_of
from tests.spark.source.driver_support import TOPIC, VirtualQuery, offsets, tp
from tests.stories.virtual import now

pytestmark = pytest.mark.virtual


@pytest_asyncio.fixture
async def brokers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedCluster]:
    """Three nodes; `orders` has two partitions with 5 and 3 records, and each partition has one replica."""
    monkeypatch.setattr(broker_lookups, "METADATA_MAX_AGE", 0.0)
    monkeypatch.setattr(broker_lookups, "METADATA_AGE_FACTOR", 0)
    async with EmbeddedCluster(3, seed=1) as cluster:
        cluster.create_topic(TOPIC, 2, 1)
        cluster.produce(TOPIC, *[b"v"] * 5, partition=0)
        cluster.produce(TOPIC, *[b"v"] * 3, partition=1)
        yield cluster


async def take_offline(cluster: EmbeddedCluster, partition: int) -> int:
    """Stop the leader of a partition, which leads no other, and return it."""
    node = cluster.leader(TOPIC, partition)
    others = range(len(cluster.topic(TOPIC).partitions))
    assert not [p for p in others if p != partition and cluster.leader(TOPIC, p) == node]
    await cluster.stop_node(node)
    return node


# --- a running query --------------------------------------------------------------------------------------------------


async def test_a_new_partition_without_a_leader_is_read_later(
    brokers: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not part of the batches until then, and is read from its first record."""
    async with VirtualQuery(brokers) as query:
        end, _ = await query.batch(await query.initial())
        brokers.create_partitions(TOPIC, 3)
        brokers.produce(TOPIC, *[b"v"] * 4, partition=2)
        node = await take_offline(brokers, 2)
        brokers.produce(TOPIC, b"v", partition=0)
        began = now()
        with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
            end, ranges = await query.batch(end)
        assert now() - began < 5.0
        assert (end, ranges) == (offsets(6, 3), [OffsetRange(TOPIC, 0, 5, 6)])
        assert "unavailable partitions orders-2 (for " in caplog.text
        assert "LEADER_NOT_AVAILABLE" in caplog.text
        for number in range(20):
            brokers.produce(TOPIC, b"v", partition=1)
            began = now()
            end, _ = await query.batch(end)
            assert end == offsets(6, 4 + number)
            assert now() - began < 0.5, "only the first batch waits for it"
        await brokers.start_node(node)
        await asyncio.sleep(1.0)
        again, ranges = await query.batch(end)
        assert again == offsets(6, 23, 4)
        assert ranges == [OffsetRange(TOPIC, 2, 0, 4)]


def fails_at(partition: int) -> Any:
    """Return a change of ListOffsets' response: an unexpected error for one partition."""

    def change(response: Any) -> Any:
        for topic in response.topics:
            for part in topic.partitions:
                if part.partition_index == partition:
                    part.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
        return response

    return change


def asks_for(spec: int) -> Any:
    return lambda request: any(p.timestamp == spec for topic in request.topics for p in topic.partitions)


async def test_a_new_partition_whose_first_offset_is_not_known(brokers: EmbeddedCluster) -> None:
    """The partition's end is known; but a batch with it could not be planned."""
    async with VirtualQuery(brokers) as query:
        end, _ = await query.batch(await query.initial())
        brokers.create_partitions(TOPIC, 3)
        brokers.produce(TOPIC, *[b"v"] * 4, partition=2)
        fault = brokers.faults.on("ListOffsets", times=None, where=asks_for(EARLIEST)).mutate(fails_at(2))
        brokers.produce(TOPIC, b"v", partition=0)
        end, ranges = await query.batch(end)
        assert (end, ranges) == (offsets(6, 3), [OffsetRange(TOPIC, 0, 5, 6)])
        began = now()
        assert await query.end(end) == end
        assert now() - began < 0.5
        fault.cancel()
        end, ranges = await query.batch(end)
        assert (end, ranges) == (offsets(6, 3, 4), [OffsetRange(TOPIC, 2, 0, 4)])


@pytest.mark.parametrize("partition", [0, 1])
async def test_an_unexpected_error_at_one_partition(brokers: EmbeddedCluster, partition: int) -> None:
    """It stays where it is, as with errors that Kafka calls retriable."""
    async with VirtualQuery(brokers) as query:
        end, _ = await query.batch(await query.initial())
        fault = brokers.faults.on("ListOffsets", times=None).mutate(fails_at(partition))
        brokers.produce(TOPIC, b"v", partition=0)
        brokers.produce(TOPIC, b"v", partition=1)
        other = offsets(5, 4) if partition == 0 else offsets(6, 3)
        assert await query.end(end) == other
        fault.cancel()
        assert await query.end(other) == offsets(6, 4)


async def test_a_topic_with_an_error_that_may_pass(brokers: EmbeddedCluster) -> None:
    def fail(response: Any) -> Any:
        for topic in response.topics:
            if topic.name == "other":
                topic.error_code, topic.partitions = ErrorCode.UNKNOWN_SERVER_ERROR, []
        return response

    brokers.create_topic("other", 1, 1)
    async with VirtualQuery(brokers, strategy=Subscribe((TOPIC, "other"))) as query:
        end, _ = await query.batch(await query.initial())
        fault = brokers.faults.on("Metadata", times=None).mutate(fail)
        brokers.produce(TOPIC, b"v", partition=0)
        brokers.produce("other", b"v")
        end, ranges = await query.batch(end)
        assert ranges == [OffsetRange(TOPIC, 0, 5, 6)]
        fault.cancel()
        await asyncio.sleep(1.0)
        assert await query.batch(end) == (
            offsets(6, 3) | offsets(1, topic="other"),
            [OffsetRange("other", 0, 0, 1)],
        )


async def test_an_authorization_error_at_one_partition_fails_the_query(brokers: EmbeddedCluster) -> None:
    async with VirtualQuery(brokers) as query:
        start = await query.initial()
        brokers.faults.on("ListOffsets", times=None).error("TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await query.end(start)


@pytest.mark.parametrize("api", ["ListOffsets", None])
async def test_a_silent_leader_delays_one_batch_only(
    brokers: EmbeddedCluster, api: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The request timeout is 30 s; it stays silent for longer than that."""
    async with VirtualQuery(brokers) as query:
        end, _ = await query.batch(await query.initial())
        held = brokers.faults.on(api, node=brokers.leader(TOPIC, 1), times=None).hold()
        brokers.produce(TOPIC, b"v", partition=1)
        waits = []
        for number in range(20):
            brokers.produce(TOPIC, b"v", partition=0)
            began = now()
            with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
                end, ranges = await query.batch(end)
            waits.append(now() - began)
            assert ranges == [OffsetRange(TOPIC, 0, 5 + number, 6 + number)]
            await asyncio.sleep(3.0)
        assert sum(waits) < 8.0
        assert "has not answered ListOffsets" in caplog.text
        assert len(caplog.records) < 10
        held.release()
        for _ in range(20):
            if (again := await query.end(end)) != end:
                break
            await asyncio.sleep(1.0)
        assert again == offsets(25, 4)


async def test_a_leader_that_is_slow_but_answers(brokers: EmbeddedCluster) -> None:
    """Slower than a batch waits, every time: its partition is read one batch later."""
    async with VirtualQuery(brokers) as query:
        end, _ = await query.batch(await query.initial())
        brokers.faults.on("ListOffsets", node=brokers.leader(TOPIC, 1), times=None).delay(4.0)
        for number in range(5):
            brokers.produce(TOPIC, b"v", partition=1)
            for _ in range(3):
                end = await query.end(end)
                await asyncio.sleep(3.0)
            assert end == offsets(5, 4 + number)


async def test_a_silent_leader_delays_samples_of_record_sizes_briefly(brokers: EmbeddedCluster) -> None:
    """Sizes are an estimate: without those of one partition the mean of the others is used."""
    async with VirtualQuery(brokers, max_bytes_per_trigger=1_000_000) as query:
        start = await query.initial()
        brokers.faults.on("Fetch", node=brokers.leader(TOPIC, 1), times=None).hold()
        began = now()
        assert await query.end(start) == offsets(5, 3)
        assert now() - began < 8.0


async def test_a_lookup_that_waits_ends_an_outage(brokers: EmbeddedCluster) -> None:
    """Whichever lookup finds the offset again: the next outage is another one, and is waited for."""
    wanted = {tp(1): EARLIEST}
    async with VirtualQuery(brokers) as query:
        await query.lookups.list_available_offsets({tp(0): EARLIEST})
        node = await take_offline(brokers, 1)
        assert await query.lookups.list_available_offsets(wanted) == {}
        await brokers.start_node(node)
        assert await query.lookups.list_offsets(wanted) == {tp(1): 0}
        await asyncio.sleep(60.0)
        await take_offline(brokers, 1)
        asking = asyncio.ensure_future(query.lookups.list_available_offsets(wanted))
        await asyncio.sleep(1.0)
        await brokers.start_node(node)
        assert await asking == {tp(1): 0}


async def test_metadata_are_requested_at_a_bounded_rate_while_a_partition_is_offline(
    brokers: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for the metadata of thousands of topics takes long: here half a second."""
    monkeypatch.setattr(broker_lookups, "METADATA_MAX_AGE", 1.0)
    monkeypatch.setattr(broker_lookups, "METADATA_AGE_FACTOR", 50)
    async with VirtualQuery(brokers) as query:
        end, _ = await query.batch(await query.initial())
        await take_offline(brokers, 1)
        brokers.faults.on("Metadata", times=None).delay(0.5)
        end = await query.end(end)
        brokers.history.clear()
        began = now()
        while now() - began < 30.0:
            brokers.produce(TOPIC, b"v", partition=0)
            end = await query.end(end)
            await asyncio.sleep(0.3)
        assert 2 <= len(brokers.history.of("Metadata")) <= 8


# --- the start of a query ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "starting", [None, Specific(offsets(EARLIEST, EARLIEST)), FromGroup("earliest")], ids=str
)
async def test_a_partition_that_is_offline_at_the_start(
    brokers: EmbeddedCluster, starting: OffsetLimit | None
) -> None:
    """Its first offset is looked up later, also by another process; that need not be 0, and is no loss then."""
    options: dict[str, Any] = {} if starting is None else {"starting": starting, "group_id": "g"}
    node = await take_offline(brokers, 1)
    async with VirtualQuery(brokers, **options) as query:
        start = await query.initial()
        assert start == offsets(0, EARLIEST)
        end, ranges = await query.batch(start)
        if isinstance(starting, FromGroup):
            assert (end, ranges) == (start, [])  # stores the start
            end, ranges = await query.batch(end)
        assert (end, ranges) == (offsets(5, EARLIEST), [OffsetRange(TOPIC, 0, 0, 5)])
        assert await query.end(end) == end
    async with VirtualQuery(brokers, **options | {"group_id": None}) as query:
        assert await query.end(end) == end
    await brokers.start_node(node)
    log_of(brokers, TOPIC, 1).delete_records(2)
    async with VirtualQuery(brokers, **options | {"group_id": None}) as query:
        again, ranges = await query.batch(end)
        assert (again, ranges) == (offsets(5, 3), [OffsetRange(TOPIC, 1, 2, 3)])
        assert await query.end(again) == again


def forget_partition(response: Any) -> Any:
    """Answer like a broker that does not know the topic's second partition yet."""
    for topic in response.topics:
        topic.partitions = [part for part in topic.partitions if part.partition_index != 1]
    return response


async def test_a_partition_that_seems_to_be_deleted_before_its_first_record(
    brokers: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """One answer without it is no deletion."""
    node = await take_offline(brokers, 1)
    async with VirtualQuery(brokers) as query:
        end, _ = await query.batch(await query.initial())
        assert end == offsets(5, EARLIEST)
        brokers.faults.on("Metadata", times=2).mutate(forget_partition)
        with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
            assert await query.batch(end) == (end, [])
        assert "DELETED" not in caplog.text
        await brokers.start_node(node)
        await asyncio.sleep(1.0)
        assert await query.batch(end) == (offsets(5, 3), [OffsetRange(TOPIC, 1, 0, 3)])


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("fail", [True, False])
async def test_a_partition_that_is_deleted_before_its_first_record_was_read(
    brokers: EmbeddedCluster, caplog: pytest.LogCaptureFixture, fail: bool, available_now: bool
) -> None:
    """It is reported once, as other deleted ones are, and is not in the checkpoint any more."""
    start = offsets(5, EARLIEST) | offsets(EARLIEST, topic="other")
    options = {"strategy": Subscribe((TOPIC, "other")), "fail_on_data_loss": fail}
    async with VirtualQuery(brokers, **options) as query:
        brokers.faults.on("ListOffsets", times=None).mutate(fails_at(1))
        if available_now:
            await query.prepare()
        end = await query.end(start)
        assert end == offsets(5, EARLIEST)
        if fail:
            with pytest.raises(DataLossError, match=r"PARTITIONS_DELETED.*other-0,"):
                await query.ranges(start, end)
            return
        with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
            assert await query.ranges(start, end) == []
        assert "PARTITIONS_DELETED] The partitions other-0," in caplog.text
        caplog.clear()
        assert await query.batch(end) == (end, [])
        assert "DELETED" not in caplog.text


async def test_the_first_batch_is_repeated_with_a_partition_that_is_offline_and_new(
    brokers: EmbeddedCluster,
) -> None:
    """It is part of the start that was looked up again, not of the batch; it was not deleted."""
    async with VirtualQuery(brokers) as died:
        end, first = await died.batch(await died.initial())
    brokers.create_partitions(TOPIC, 3)
    brokers.produce(TOPIC, b"v", partition=2)
    node = await take_offline(brokers, 2)
    async with VirtualQuery(brokers) as query:
        start = await query.initial()
        assert start == offsets(0, 0, EARLIEST)
        assert await query.ranges(start, end) == first
        await brokers.start_node(node)
        await asyncio.sleep(1.0)
        assert await query.batch(end) == (offsets(5, 3, 1), [OffsetRange(TOPIC, 2, 0, 1)])


async def test_the_first_batch_is_repeated_when_a_partition_is_back(brokers: EmbeddedCluster) -> None:
    node = await take_offline(brokers, 1)
    async with VirtualQuery(brokers) as died:
        end, first = await died.batch(await died.initial())
    await brokers.start_node(node)
    async with VirtualQuery(brokers) as query:
        start = await query.initial()
        assert start == offsets(0, 0)
        assert await query.ranges(start, end) == first == [OffsetRange(TOPIC, 0, 0, 5)]
        end, ranges = await query.batch(end)
        assert (end, ranges) == (offsets(5, 3), [OffsetRange(TOPIC, 1, 0, 3)])


async def test_the_first_batch_is_repeated_when_a_partition_is_offline(brokers: EmbeddedCluster) -> None:
    """It was part of that batch, so the batch waits for it; its log need not start at 0."""
    log_of(brokers, TOPIC, 1).delete_records(1)
    async with VirtualQuery(brokers) as died:
        end, first = await died.batch(await died.initial())
    node = await take_offline(brokers, 1)
    async with VirtualQuery(brokers) as query:
        start = await query.initial()
        assert start == offsets(0, EARLIEST)
        planning = asyncio.ensure_future(query.ranges(start, end))
        await asyncio.sleep(30.0)
        assert not planning.done()
        await brokers.start_node(node)
        assert await planning == first == [OffsetRange(TOPIC, 0, 0, 5), OffsetRange(TOPIC, 1, 1, 3)]


async def test_a_start_at_the_end_waits_for_its_partitions(brokers: EmbeddedCluster) -> None:
    """A later end would skip records, the log's start would read more than was asked for."""
    node = await take_offline(brokers, 1)
    async with VirtualQuery(brokers, starting=Latest()) as query:
        starting = asyncio.ensure_future(query.initial())
        await asyncio.sleep(30.0)
        assert not starting.done()
        await brokers.start_node(node)
        assert await starting == offsets(5, 3)


async def test_a_start_waits_also_for_an_unexpected_error(brokers: EmbeddedCluster) -> None:
    """Java repeats all codes but those of a wrong request (`OffsetFetcherUtils.handleListOffsetResponse`)."""
    brokers.faults.on("ListOffsets", times=20).mutate(fails_at(1))
    async with VirtualQuery(brokers, starting=Latest()) as query:
        assert await query.initial() == offsets(5, 3)


# --- Trigger.AvailableNow ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("starting", ["checkpoint", "earliest", "latest"])
async def test_available_now_leaves_an_offline_partition_to_its_next_run(
    brokers: EmbeddedCluster, starting: str
) -> None:
    options = {"starting": Latest()} if starting == "latest" else {}
    node = await take_offline(brokers, 1)
    async with VirtualQuery(brokers, **options) as query:
        await query.prepare()
        if starting == "latest":  # waits for it
            await brokers.start_node(node)
            start = await query.initial()
            assert start == offsets(5, 3)
            assert await query.end(start) == start
            return
        start = offsets(2, 1) if starting == "checkpoint" else await query.initial()
        end, ranges = await query.batch(start)
        assert ranges == [OffsetRange(TOPIC, 0, start[tp(0)], 5)]
        assert end == (offsets(5, 1) if starting == "checkpoint" else offsets(5, EARLIEST))
        await brokers.start_node(node)
        await asyncio.sleep(1.0)
        assert await query.end(end) == end, "the end of the run was found before"
    async with VirtualQuery(brokers, **options) as query:
        await query.prepare()
        end, ranges = await query.batch(end)
        assert end == offsets(5, 3)
        assert ranges == [OffsetRange(TOPIC, 1, 1 if starting == "checkpoint" else 0, 3)]
        assert await query.end(end) == end


async def test_available_now_with_a_new_partition(brokers: EmbeddedCluster) -> None:
    """Found at the start of the run, offline when it would be read for the first time; then offline all the time."""
    start = offsets(5, 3)
    brokers.create_partitions(TOPIC, 3)
    brokers.produce(TOPIC, *[b"v"] * 4, partition=2)
    brokers.produce(TOPIC, b"v", partition=0)
    async with VirtualQuery(brokers) as query:
        await query.prepare()
        node = await take_offline(brokers, 2)
        end, ranges = await query.batch(start)
        assert (end, ranges) == (offsets(6, 3), [OffsetRange(TOPIC, 0, 5, 6)])
        assert await query.end(end) == end
    async with VirtualQuery(brokers) as query:
        began = now()
        await query.prepare()
        assert now() - began < 60.0
        assert await query.batch(end) == (end, [])
    await brokers.start_node(node)
    async with VirtualQuery(brokers) as query:
        await query.prepare()
        end, ranges = await query.batch(end)
        assert (end, ranges) == (offsets(6, 3, 4), [OffsetRange(TOPIC, 2, 0, 4)])


# --- topics that may have been recreated ------------------------------------------------------------------------------


async def test_a_checkpoint_without_commits_and_an_offline_partition(brokers: EmbeddedCluster) -> None:
    """Whether the topic was recreated is checked when the partition is back; until then it is not read, nor committed."""
    start = offsets(0, 2)
    node = await take_offline(brokers, 1)
    options = {"group_id": "g", "fail_on_data_loss": False}
    async with VirtualQuery(brokers, **options) as query:
        end, ranges = await query.batch(start)
        assert (end, ranges) == (offsets(5, 2), [OffsetRange(TOPIC, 0, 0, 5)])
        assert await query.end(end) == end
        assert brokers.group("g").offsets == {}
    async with VirtualQuery(brokers, **options) as query:
        assert await query.end(offsets(0, 2)) == end
        await brokers.start_node(node)
        await asyncio.sleep(1.0)
        end = await query.end(end)
        assert end == offsets(5, 0), "back to the start of what seems to be another topic"
        assert await query.batch(end) == (offsets(5, 3), [OffsetRange(TOPIC, 1, 0, 3)])
