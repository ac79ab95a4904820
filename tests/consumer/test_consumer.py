"""Consumer: reading partitions without a consumer group."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from asyncgroup import Cluster, Consumer, ConsumerConfig, TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer import fetch_scheduler
from asyncgroup.errors import BrokerError, ClosedError, ConfigError, ErrorCode
from tests.consumer.brokers import fill


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(2, host="10.0.0.1", seed=1) as cluster:
        cluster.create_topic("orders", 3)
        cluster.create_topic("audit", 1)
        fill(cluster, "orders", 0, batches=5)
        yield cluster


async def test_a_canceled_enter_leaves_nothing_open(
    brokers: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Consumer(brokers.bootstrap_servers)

    async def start() -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(consumer._tasks, "start", start)
    with pytest.raises(asyncio.CancelledError):
        await consumer.__aenter__()
    assert not consumer.cluster.is_open


async def test_reads_from_an_offset_the_start_and_the_end(brokers: EmbeddedCluster) -> None:
    for where, first in (("earliest", 0), (3, 3), ("latest", 5)):
        async with Consumer(brokers.bootstrap_servers) as consumer:
            partition = await consumer.partition("orders", 0, where)
            assert partition.initial_offset == first
            task = asyncio.ensure_future(anext(partition))
            await asyncio.sleep(0.1)
            if where == "latest":
                fill(brokers, "orders", 0, batches=1)
            assert (await task).offset == first


@pytest.mark.parametrize(
    ("where", "first"),
    [
        (datetime.fromtimestamp(1.0, UTC), 0),
        (datetime.fromtimestamp(1.001, UTC), 5),
        (timedelta(seconds=10), 0),  # it is 11 s past the epoch, the records have timestamp 1000
        (timedelta(seconds=9), 5),
    ],
)
async def test_reads_from_a_time(brokers: EmbeddedCluster, where: datetime | timedelta, first: int) -> None:
    config = ConsumerConfig(client_id="reader")
    async with Consumer(brokers.bootstrap_servers, config, clock=lambda: 11_000) as consumer:
        assert (await consumer.partition("orders", 0, where)).initial_offset == first
        # a second request for the end if there is no record of that time
        assert len(brokers.history.of("ListOffsets", client_id="reader")) == (1 if first == 0 else 2)


async def test_a_numeric_offset_is_not_looked_up(brokers: EmbeddedCluster) -> None:
    async with Consumer(brokers.bootstrap_servers, ConsumerConfig(client_id="reader")) as consumer:
        await consumer.partition("orders", 0, 3)
        assert brokers.history.of("ListOffsets", client_id="reader") == []


async def test_names_topics_and_partitions(brokers: EmbeddedCluster) -> None:
    async with Consumer(brokers.bootstrap_servers) as consumer:
        assert await consumer.topics() == ["audit", "orders"]
        assert await consumer.partitions("orders") == [0, 1, 2]
        with pytest.raises(BrokerError, match="'nowhere'"):
            await consumer.partitions("nowhere")


async def test_refuses_bad_offsets_and_unknown_partitions(brokers: EmbeddedCluster) -> None:
    config = ConsumerConfig(metadata_retry_max=0)
    async with Consumer(brokers.bootstrap_servers, config) as consumer:
        await consumer.partition("orders", 1, 0)
        with pytest.raises(ConfigError, match="orders-1"):
            await consumer.partition("orders", 1, 0)
        for offset in (-1, "first", None, 1.5, True, datetime(2026, 1, 1), timedelta()):  # noqa: DTZ001
            with pytest.raises(ConfigError, match="offset="):
                await consumer.partition("orders", 2, offset)  # type: ignore[arg-type]
        with pytest.raises(BrokerError, match=r"orders-3.*does not exist"):
            await consumer.partition("orders", 3, 0)
        with pytest.raises(BrokerError, match="nowhere"):
            await consumer.partition("nowhere", 0, 0)


async def test_concurrent_calls_for_a_partition_create_one_reader(brokers: EmbeddedCluster) -> None:
    """Found by review: both passed the check, because the offset lookup happened after it."""
    async with Consumer(brokers.bootstrap_servers) as consumer:
        calls = [consumer.partition("orders", 0, "earliest") for _ in range(2)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(type(result).__name__ for result in results) == ["ConfigError", "PartitionConsumer"]


async def test_closing_ends_the_iterators(brokers: EmbeddedCluster) -> None:
    async with Consumer(brokers.bootstrap_servers) as consumer:
        partition = await consumer.partition("orders", 0, 0)
        offsets = []

        async def read() -> None:
            async for record in partition:
                offsets.append(record.offset)  # noqa: PERF401  watched from outside

        task = asyncio.ensure_future(read())
        await asyncio.sleep(1)
        assert repr(consumer) == "<Consumer: open, 1 partitions>"
    await task
    assert offsets == [0, 1, 2, 3, 4]
    assert repr(consumer) == "<Consumer: closed, 0 partitions>"
    await consumer.aclose()


async def test_a_consumer_that_is_not_open_raises(brokers: EmbeddedCluster) -> None:
    """Found by review: a closed consumer on a user's Cluster accepted the call and never fetched anything."""
    async with Cluster(brokers.bootstrap_servers) as cluster:
        consumer = Consumer(cluster)
        with pytest.raises(ClosedError, match="Consumer"):
            await consumer.partition("orders", 0, 0)
        async with consumer:
            await consumer.partition("orders", 0, 0)
        with pytest.raises(ClosedError, match="Consumer"):
            await consumer.partition("orders", 1, 0)
        assert cluster.is_open, "it belongs to the user"


async def test_a_partition_that_is_closed_can_be_read_again(brokers: EmbeddedCluster) -> None:
    async with Consumer(brokers.bootstrap_servers) as consumer:
        first = await consumer.partition("orders", 0, 0)
        assert (await anext(first)).offset == 0
        await first.aclose()
        await first.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(first)
        asked = len(brokers.history.of("Fetch"))
        await asyncio.sleep(5)
        assert len(brokers.history.of("Fetch")) <= asked + 1
        again = await consumer.partition("orders", 0, 2)
        await first.aclose()
        assert (await anext(again)).offset == 2


async def test_interceptors_and_hooks_reach_the_partitions(brokers: EmbeddedCluster) -> None:
    class Fetched:
        def __init__(self) -> None:
            self.bytes = 0

        def on_fetch(self, node_id: int, size: int, partitions: int) -> None:
            self.bytes += size

    seen: list[int] = []
    hook = Fetched()
    async with Consumer(
        brokers.bootstrap_servers, hooks=[hook], interceptors=[lambda record: seen.append(record.offset)]
    ) as consumer:
        partition = await consumer.partition("orders", 0, "earliest")
        for _ in range(5):
            await anext(partition)
    assert seen == [0, 1, 2, 3, 4]
    assert hook.bytes > 0


async def test_a_fetchers_bug_is_raised_to_the_readers(
    brokers: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A programming error must not leave readers waiting without end (aiokafka #983)."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    consumer = await Consumer(brokers.bootstrap_servers).__aenter__()
    partition = await consumer.partition("orders", 0, "earliest")
    monkeypatch.setattr(fetch_scheduler, "PlannedFetch", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        while True:
            await asyncio.wait_for(anext(partition), 10)
    with pytest.raises(RuntimeError, match="a bug"):
        await consumer.aclose()
    assert "a bug" in caplog.text


# -- marks, pauses, errors ---------------------------------------------------------------------------------------------


async def test_high_watermarks_of_all_consumed_partitions(brokers: EmbeddedCluster) -> None:
    async with Consumer(brokers.bootstrap_servers) as consumer:
        assert consumer.high_watermarks() == {}
        for number in (1, 0):
            await consumer.partition("orders", number, 0)
        assert consumer.high_watermarks() == {("orders", 0): -1, ("orders", 1): -1}
        await asyncio.sleep(1)
        assert consumer.high_watermarks() == {("orders", 0): 5, ("orders", 1): 0}


async def test_pause_and_resume(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 1, batches=2)
    async with Consumer(brokers.bootstrap_servers) as consumer:
        first, second = [await consumer.partition("orders", number, 0) for number in (0, 1)]
        consumer.pause([("orders", 0), TopicPartition("orders", 2), ("nowhere", 0)])
        assert (first.paused, second.paused) == (True, False)
        assert (await anext(second)).offset == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(first), 5)
        assert not first.stalled, "a pause is no stall"
        consumer.pause_all()
        assert (first.paused, second.paused) == (True, True)
        consumer.resume([("orders", 0)])
        assert (await anext(first)).offset == 0
        consumer.resume_all()
        assert (first.paused, second.paused) == (False, False)
        consumer.pause(("orders", 0))
        consumer.pause(TopicPartition("orders", 1))
        assert (first.paused, second.paused) == (True, True)
        consumer.resume(TopicPartition("orders", 0))
        consumer.resume([("orders", 1)])
        assert (first.paused, second.paused) == (False, False)
        with pytest.raises(ConfigError, match=r"partitions='orders' is not allowed: a partition as"):
            consumer.pause("orders")  # type: ignore[arg-type]
        assert (await anext(second)).offset == 1


async def test_recovered_errors_are_reported_and_delay_nothing(brokers: EmbeddedCluster) -> None:
    config = ConsumerConfig(error_buffer=3)
    async with Consumer(brokers.bootstrap_servers, config) as consumer:
        partition = await consumer.partition("orders", 0, 0)
        slow, quick = partition.errors(), partition.errors()
        reported: list[Exception] = []

        async def watch() -> None:
            async for error in quick:
                reported.append(error)  # noqa: PERF401  watched from outside

        task = asyncio.ensure_future(watch())
        brokers.faults.on("Fetch", topic="orders", times=5).error(ErrorCode.KAFKA_STORAGE_ERROR)
        offsets = [(await anext(partition)).offset for _ in range(5)]
        assert offsets == [0, 1, 2, 3, 4], "although the slow reader reads no errors"
        assert len(reported) == 5
        assert (slow.dropped, quick.dropped) == (2, 0)
        await partition.aclose()
        await task
        assert [repr(error) async for error in slow] == list(map(repr, reported[2:])), (
            "it ends after the unread errors"
        )
        assert [error async for error in partition.errors()] == []


async def test_an_error_that_was_not_raised_is_logged_at_close(
    brokers: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.faults.on("Fetch", topic="orders").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with Consumer(brokers.bootstrap_servers) as consumer:
        partition = await consumer.partition("orders", 0, 0)
        await asyncio.sleep(1)
        assert partition._inner.error is not None
        caplog.set_level(logging.WARNING)
    assert "orders-0: closed before an error was raised to its reader" in caplog.text
    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text


async def test_a_dropped_error_reader_does_not_count(brokers: EmbeddedCluster) -> None:
    async with Consumer(brokers.bootstrap_servers) as consumer:
        partition = await consumer.partition("orders", 0, 0)
        error = RuntimeError("test")
        assert not partition._inner.report(error)
        errors = partition.errors()
        assert partition._inner.report(error)
        assert repr(await anext(errors)) == repr(error)
        del errors
        assert not partition._inner.report(error), "so that it is logged again"


async def test_a_partition_can_be_closed_and_opened_repeatedly(brokers: EmbeddedCluster) -> None:
    async with Consumer(brokers.bootstrap_servers) as consumer:
        for turn in range(20):
            partition = await consumer.partition("orders", 0, turn % 5)
            assert (await anext(partition)).offset == turn % 5
            closing = asyncio.ensure_future(partition.aclose())
            await closing
            assert list(consumer.high_watermarks()) == []


async def test_stalls_repeat_no_record_for_readers_or_interceptors(brokers: EmbeddedCluster) -> None:
    """In sarama interceptors run twice for the record at which a partition stalls."""
    events: list[str] = []

    class Stalls:
        def on_stalled(self, _topic: str, _partition: int) -> None:
            events.append("stalled")

        def on_resumed(self, _topic: str, _partition: int) -> None:
            events.append("resumed")

    seen: list[int] = []
    got: list[int] = []
    fill(brokers, "orders", 1, batches=100, records=10, size=100)
    config = ConsumerConfig(buffer_bytes=40_000, max_partition_fetch_bytes=10_000)
    async with Consumer(
        brokers.bootstrap_servers,
        config,
        hooks=[Stalls()],
        interceptors=[lambda record: seen.append(record.offset)],
    ) as consumer:
        partition = await consumer.partition("orders", 1, 0)
        batches = partition.batches(max_records=37)
        while len(got) < 1000:
            with contextlib.suppress(TimeoutError):  # a canceled read loses no record
                await asyncio.wait_for(anext(partition), 0)
                raise AssertionError("a read that is canceled before its first step returns no record")
            got += [(await anext(partition)).offset for _ in range(min(13, 1000 - len(got)))]
            if len(got) < 1000:
                got += [record.offset for record in await anext(batches)]
            await asyncio.sleep(0.25)  # two and a half periods of max_processing_time: the partition stalls
    assert got == list(range(1000))
    assert seen == got
    assert events.count("stalled") > 5
    assert all(one != other for one, other in itertools.pairwise(events))
