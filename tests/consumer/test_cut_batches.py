"""Responses with only the beginning of a record batch: an error or a pause, but never a busy loop of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import CorruptRecordsError, RecordTooLargeError
from tests.broker.internals import log_of
from tests.consumer.brokers import client, fetches, fill, now, read


def cut_to(length: int, partition: int = 0) -> Callable[[Any], Any]:
    """Truncate the records of a partition in a Fetch response."""

    def change(response: Any) -> Any:
        for topic in response.responses:
            for data in topic.partitions:
                if data.partition_index == partition and data.records:
                    data.records = bytes(data.records)[:length]
        return response

    return change


@pytest.mark.parametrize("length", [1, 16, 17, 60, 100])
async def test_a_batch_cut_on_the_network_is_fetched_again_with_pauses(
    brokers: EmbeddedCluster, length: int
) -> None:
    fill(brokers, "orders", 0, batches=1, size=200)
    fault = brokers.faults.on("Fetch", times=None).mutate(cut_to(length))
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        await asyncio.sleep(60)
        assert 20 <= len(fetches(brokers)) <= 60
        assert len(reader.errors) >= 20
        assert isinstance(reader.errors[0], CorruptRecordsError)
        text = str(reader.errors[0])
        assert "orders-0" in text
        assert "offset 0" in text
        assert f"{length} bytes" in text
        fault.cancel()
        start = now()
        assert await read(consumer, 1) == [0]
        assert now() - start < 3


async def test_batches_before_a_cut_batch_are_handed_out(brokers: EmbeddedCluster) -> None:
    """A response may end with an incomplete batch: that is no error (KIP-74)."""
    fill(brokers, "orders", 0, batches=2, size=200)
    brokers.faults.on("Fetch", times=1).mutate(cut_to(300))
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 2) == [0, 1]
        assert reader.errors == []


async def test_a_first_batch_above_the_limit_that_the_broker_cuts_is_an_error(
    brokers: EmbeddedCluster,
) -> None:
    """As brokers before KIP-74 do; `max_partition_fetch_bytes` has to be increased, as with the Java client."""
    fill(brokers, "orders", 0, batches=1, size=5000)
    fill(brokers, "orders", 0, batches=1)
    brokers.faults.on("Fetch", times=None).mutate(cut_to(1000))
    async with client(brokers, max_partition_fetch_bytes=1000) as reader:
        (consumer,) = reader.read("orders", 0)
        for _ in range(3):
            with pytest.raises(RecordTooLargeError) as caught:
                await asyncio.wait_for(anext(consumer), 10)
        error = caught.value
        data = log_of(brokers, "orders", 0).segments.batch_index.batches[0].chunk.data
        size = 12 + int.from_bytes(data[8:12])
        assert (error.tp, error.offset, error.size, error.limit) == (("orders", 0), 0, size, 1000)
        assert f"orders-0 at offset 0: a record batch of {size} bytes" in str(error)
        assert "max_partition_fetch_bytes" in str(error)
        await asyncio.sleep(60)
        assert len(fetches(brokers)) < 10, "not fetched again before the error was raised"
        brokers.faults.clear()
        consumer.seek(1)
        assert await asyncio.wait_for(read(consumer, 1), 5) == [1]


async def test_a_reader_that_ignores_a_too_large_batch_is_slowed_down(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=1, size=5000)
    brokers.faults.on("Fetch", times=None).mutate(cut_to(1000))
    async with client(brokers, max_partition_fetch_bytes=1000) as reader:
        (consumer,) = reader.read("orders", 0)

        async def ignore_errors() -> None:
            while True:
                with pytest.raises(RecordTooLargeError):
                    await anext(consumer)

        task = asyncio.ensure_future(ignore_errors())
        await asyncio.sleep(60)
        assert 20 <= len(fetches(brokers)) <= 60
        task.cancel()


async def test_a_large_batch_after_another_partition_waits_for_its_turn(brokers: EmbeddedCluster) -> None:
    """A broker that cuts it there returns it in full when its partition comes first: no error, and less than a second."""
    for partition in (0, 1):
        brokers.move_leader("orders", partition, 1)
    fill(brokers, "orders", 0, batches=1)
    fill(brokers, "orders", 1, batches=1, size=5000)
    brokers.faults.on("Fetch", times=1).mutate(cut_to(1000, partition=1))
    async with client(brokers, max_partition_fetch_bytes=1000) as reader:
        first, second = reader.read("orders", 0, 1)
        start = now()
        assert await read(first, 1) == [0]
        assert await read(second, 1) == [0]
        assert now() - start < 1
        assert reader.errors == []
