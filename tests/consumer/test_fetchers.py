"""Fetching from an embedded cluster in virtual time: all partitions, fairly, and without waiting for a long poll."""

from __future__ import annotations

import asyncio

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer.fetch_plan import SHORT_WAIT
from tests.consumer.brokers import PARTITIONS, caught_up, client, fetches, fill, now, read

# -- fairness ----------------------------------------------------------------------------------------------------------


async def test_every_partition_of_every_broker_is_fetched(brokers: EmbeddedCluster) -> None:
    for partition in range(PARTITIONS):
        fill(brokers, "orders", partition, batches=3, records=5)
    async with client(brokers) as reader:
        consumers = reader.read("orders", *range(PARTITIONS))
        for consumer in consumers:
            assert await read(consumer, 15) == list(range(15))
            assert (consumer.lag, consumer.high_watermark, consumer.log_start_offset) == (0, 15, 0)
        assert {exchange.node_id for exchange in fetches(brokers)} == {1, 2}
        assert reader.errors == []
        assert "6 partitions at 2 brokers" in repr(reader.fetchers)


async def test_each_partition_comes_first_in_turn(brokers: EmbeddedCluster) -> None:
    """Found by review: responses are filled in the order of the request (KIP-74), which never changed, so the first
    partitions filled every response for as long as they had records.
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
            consumer._inner.end()
        await asyncio.gather(*tasks)
    counts = [found[:40].count(partition) for partition in range(4)]
    assert min(counts) >= 8, f"of the first forty records {counts} came from each"


async def test_a_batch_larger_than_the_fetch_size_is_fetched_beside_busy_partitions(
    brokers: EmbeddedCluster,
) -> None:
    """A broker returns an oversized batch only for the first partition of a request."""
    for partition in range(2):
        brokers.move_leader("orders", partition, 1)
    fill(brokers, "orders", 0, batches=200, size=500)
    fill(brokers, "orders", 1, batches=1, size=20_000)
    async with client(brokers, buffer_bytes=8000) as reader:
        busy, large = reader.read("orders", 0, 1)
        drain = asyncio.ensure_future(read(busy, 200))
        assert await read(large, 1) == [0]
        assert not drain.done(), "long before the other partition is read to its end"
        await drain


async def test_a_partition_without_a_reader_does_not_delay_others(brokers: EmbeddedCluster) -> None:
    for partition in range(2):
        brokers.move_leader("orders", partition, 1)
        fill(brokers, "orders", partition, batches=60, records=10, size=100)
    async with client(brokers, buffer_bytes=20_000) as reader:
        stuck, flowing = reader.read("orders", 0, 1)
        start = now()
        assert await read(flowing, 600) == list(range(600))
        assert now() - start < 0.5
        await asyncio.sleep(1)
        assert stuck.buffered_bytes <= 10_000 + 2000, "its share, exceeded by at most one batch"
        assert stuck.stalled
        assert await read(stuck, 600) == list(range(600))


# -- partitions that become fetchable during a long poll ---------------------------------------------------------------


async def test_a_partition_added_during_a_long_poll_is_fetched_at_once(brokers: EmbeddedCluster) -> None:
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


async def test_a_partition_resumed_during_a_long_poll_is_fetched_at_once(brokers: EmbeddedCluster) -> None:
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


async def test_after_a_seek_a_partition_is_fetched_at_once_despite_its_long_poll(
    brokers: EmbeddedCluster,
) -> None:
    """Found by review: it was left out until the response for the old offset, up to fetch_max_wait later."""
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
        assert consumer.position == 5, "the response for the old offset is not used"


async def test_a_drained_partition_is_fetched_at_once(brokers: EmbeddedCluster) -> None:
    """While a partition is full, the fetch of the others has a short max_wait, so that the full one can be fetched soon."""
    for partition in (0, 1):
        brokers.move_leader("orders", partition, 1)
    fill(brokers, "orders", 0, batches=12, size=1000)
    async with client(brokers, fetch_max_wait=20.0, buffer_bytes=8000, max_processing_time=60.0) as reader:
        full, _idle = reader.read("orders", 0, 1)
        while not full._inner.is_buffer_full:
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        waits = [exchange.request.max_wait_ms for exchange in fetches(brokers)[-3:]]
        assert waits == [SHORT_WAIT * 1000] * 3
        start = now()
        assert await read(full, 12) == list(range(12))
        assert now() - start < 1


async def test_a_partition_is_in_flight_once_at_a_time(brokers: EmbeddedCluster) -> None:
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
        assert [consumer._inner.reserved > 0 for consumer in consumers] == [True, True]
