"""A consumer without a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup import Cluster, Consumer, ConsumerConfig
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer import broker_fetcher
from asyncgroup.errors import BrokerError, ClosedError, ConfigError
from tests.consumer.brokers import fill

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(2, host="10.0.0.1", seed=1) as cluster:
        cluster.create_topic("orders", 3)
        cluster.create_topic("audit", 1)
        fill(cluster, "orders", 0, batches=5)
        yield cluster


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


async def test_names_topics_and_partitions(brokers: EmbeddedCluster) -> None:
    async with Consumer(brokers.bootstrap_servers) as consumer:
        assert await consumer.topics() == ["audit", "orders"]
        assert await consumer.partitions("orders") == [0, 1, 2]
        with pytest.raises(BrokerError, match="'nowhere'"):
            await consumer.partitions("nowhere")


async def test_refuses_what_cannot_be_read(brokers: EmbeddedCluster) -> None:
    config = ConsumerConfig(metadata_retry_max=0)
    async with Consumer(brokers.bootstrap_servers, config) as consumer:
        await consumer.partition("orders", 1, 0)
        with pytest.raises(ConfigError, match="orders-1"):
            await consumer.partition("orders", 1, 0)
        for offset in (-1, "first", None, 1.5):
            with pytest.raises(ConfigError, match="offset="):
                await consumer.partition("orders", 2, offset)  # type: ignore[arg-type]
        with pytest.raises(BrokerError, match=r"orders-3.*does not exist"):
            await consumer.partition("orders", 3, 0)
        with pytest.raises(BrokerError, match="nowhere"):
            await consumer.partition("nowhere", 0, 0)


async def test_two_calls_at_once_for_a_partition_make_one_reader(brokers: EmbeddedCluster) -> None:
    """Found by review: both passed the check, since looking the offset up lies between it and the reading."""
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


async def test_a_closed_or_unopened_consumer_says_so(brokers: EmbeddedCluster) -> None:
    """Found by review: on a cluster of its user's a closed consumer took the call, and nothing was ever fetched."""
    async with Cluster(brokers.bootstrap_servers) as cluster:
        consumer = Consumer(cluster)
        with pytest.raises(ClosedError, match="Consumer"):
            await consumer.partition("orders", 0, 0)
        async with consumer:
            await consumer.partition("orders", 0, 0)
        with pytest.raises(ClosedError, match="Consumer"):
            await consumer.partition("orders", 1, 0)
        assert cluster.is_open, "it belongs to its user"


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


async def test_a_fetcher_that_breaks_is_told_to_the_readers(
    brokers: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A programming error must not leave readers waiting for ever (aiokafka #983)."""

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    consumer = await Consumer(brokers.bootstrap_servers).__aenter__()
    partition = await consumer.partition("orders", 0, "earliest")
    monkeypatch.setattr(broker_fetcher, "make_plan", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        while True:
            await asyncio.wait_for(anext(partition), 10)
    with pytest.raises(RuntimeError, match="a bug"):
        await consumer.aclose()
    assert "a bug" in caplog.text
