"""Fetching from an embedded cluster in virtual time: records come, come fairly, and nobody waits for a parked poll."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer.fetch_plan import SHORT_WAIT
from tests.consumer.brokers import PARTITIONS, caught_up, client, fetches, fill, now, read

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


# -- records come, and come fairly --------------------------------------------------------------------------------------


async def test_every_partition_of_every_broker_is_read(brokers: EmbeddedCluster) -> None:
    for partition in range(PARTITIONS):
        fill(brokers, "orders", partition, batches=3, records=5)
    async with client(brokers) as reader:
        consumers = reader.read("orders", *range(PARTITIONS))
        for consumer in consumers:
            assert await read(consumer, 15) == list(range(15))
            assert (consumer.lag, consumer.high_water_mark, consumer.log_start_offset) == (0, 15, 0)
        assert {exchange.node_id for exchange in fetches(brokers)} == {1, 2}
        assert reader.errors == []
        assert "6 partitions at 2 brokers" in repr(reader.fetchers)


async def test_partitions_come_first_in_turn(brokers: EmbeddedCluster) -> None:
    """Found by review: answers are filled in the order asked (KIP-74) and that order never changed, so that the first
    partitions took every answer for as long as they had records.
    """
    brokers.create_topic("wide", 4)
    for partition in range(4):
        brokers.move_leader("wide", partition, 1)
        fill(brokers, "wide", partition, batches=40, size=4000)
    async with client(brokers, ["wide"], fetch_max_bytes=9000) as reader:
        consumers = reader.read("wide", *range(4))
        found: list[int] = []

        async def collect(consumer) -> None:
            async for record in consumer:
                found.append(record.partition)  # noqa: PERF401  watched from outside

        tasks = [asyncio.ensure_future(collect(consumer)) for consumer in consumers]
        while len(found) < 160:
            await asyncio.sleep(0.001)
        for consumer in consumers:
            consumer.end()
        await asyncio.gather(*tasks)
    counts = [found[:40].count(partition) for partition in range(4)]
    assert min(counts) >= 8, f"of the first forty records {counts} came from each"


async def test_a_batch_larger_than_an_ask_is_reached_beside_busy_neighbours(brokers: EmbeddedCluster) -> None:
    """A broker gives an oversized batch to the first partition of a request only."""
    for partition in range(2):
        brokers.move_leader("orders", partition, 1)
    fill(brokers, "orders", 0, batches=200, size=500)
    fill(brokers, "orders", 1, batches=1, size=20_000)
    async with client(brokers, buffer_bytes=8000) as reader:
        busy, large = reader.read("orders", 0, 1)
        drain = asyncio.ensure_future(read(busy, 200))
        assert await read(large, 1) == [0]
        assert not drain.done(), "long before the neighbour has no more"
        await drain


async def test_a_partition_that_nobody_reads_holds_no_other_up(brokers: EmbeddedCluster) -> None:
    for partition in range(2):
        brokers.move_leader("orders", partition, 1)
        fill(brokers, "orders", partition, batches=60, records=10, size=100)
    async with client(brokers, buffer_bytes=20_000) as reader:
        stuck, flowing = reader.read("orders", 0, 1)
        start = now()
        assert await read(flowing, 600) == list(range(600))
        assert now() - start < 0.5
        await asyncio.sleep(1)
        assert stuck.buffered_bytes <= 10_000 + 2000, "its share, and at most a batch above it"
        assert stuck.stalled
        assert await read(stuck, 600) == list(range(600))


# -- who waits for a parked poll ----------------------------------------------------------------------------------------


async def test_a_partition_added_during_a_parked_poll_is_asked_at_once(brokers: EmbeddedCluster) -> None:
    for partition in (0, 1):
        brokers.move_leader("orders", partition, 1)
    fill(brokers, "orders", 1, batches=1)
    async with client(brokers, fetch_max_wait=20.0) as reader:
        (first,) = reader.read("orders", 0)
        await caught_up(first)
        start = now()
        (second,) = reader.read("orders", 1)
        assert await read(second, 1) == [0]
        assert now() - start < 0.05


async def test_a_partition_resumed_during_a_parked_poll_is_asked_at_once(brokers: EmbeddedCluster) -> None:
    for partition in (0, 1):
        brokers.move_leader("orders", partition, 1)
    fill(brokers, "orders", 1, batches=1)
    async with client(brokers, fetch_max_wait=20.0) as reader:
        paused = reader.consumer("orders", 1)
        paused.pause()
        reader.fetchers.add(paused)
        (first,) = reader.read("orders", 0)
        await caught_up(first)
        start = now()
        paused.resume()
        assert await read(paused, 1) == [0]
        assert now() - start < 0.05


async def test_a_sought_partition_is_asked_at_once_though_its_old_ask_is_parked(
    brokers: EmbeddedCluster,
) -> None:
    """Found by review: it was left out until the broker had answered for the old offset, up to fetch_max_wait later."""
    fill(brokers, "orders", 0, batches=5)
    async with client(brokers, fetch_max_wait=20.0) as reader:
        (consumer,) = reader.read("orders", 0)
        await read(consumer, 5)
        await caught_up(consumer)
        start = now()
        consumer.seek(2)
        assert await read(consumer, 3) == [2, 3, 4]
        assert now() - start < 0.05
        await asyncio.sleep(30)
        assert consumer.position == 5, "the old answer is not taken for the new one"


async def test_a_drained_partition_is_asked_at_once(brokers: EmbeddedCluster) -> None:
    """While a partition is full the others' fetch is parked for a moment only, so that it can be asked for soon."""
    for partition in (0, 1):
        brokers.move_leader("orders", partition, 1)
    fill(brokers, "orders", 0, batches=12, size=1000)
    async with client(brokers, fetch_max_wait=20.0, buffer_bytes=8000, max_processing_time=60.0) as reader:
        full, _idle = reader.read("orders", 0, 1)
        while not full.is_buffer_full:
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        waits = [exchange.request.max_wait_ms for exchange in fetches(brokers)[-3:]]
        assert waits == [SHORT_WAIT * 1000] * 3
        start = now()
        assert await read(full, 12) == list(range(12))
        assert now() - start < 1


async def test_one_ask_is_under_way_for_a_partition_at_a_time(brokers: EmbeddedCluster) -> None:
    for partition in (0, 1):
        brokers.move_leader("orders", partition, 1)
        fill(brokers, "orders", partition, batches=20, size=100)
    async with client(brokers, fetch_max_wait=1.0) as reader:
        consumers = reader.read("orders", 0, 1)
        for consumer in consumers:
            await read(consumer, 20)
        await asyncio.sleep(5)
        open_until: dict[int, float] = {}
        for exchange in fetches(brokers, node=1):
            for topic in exchange.request.topics:
                for asked in topic.partitions:
                    assert open_until.get(asked.partition, -1.0) <= exchange.time
                    answered = exchange.answered_at
                    open_until[asked.partition] = float("inf") if answered is None else answered
        assert [consumer.reserved > 0 for consumer in consumers] == [True, True]
