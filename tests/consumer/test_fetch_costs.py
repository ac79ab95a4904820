"""The cost of a fetch does not grow with the partitions that it does not concern, and a backlog takes few fetches."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType

import pytest

from asyncgroup.broker import EmbeddedCluster
from tests.consumer.brokers import client, fetches, fill, read
from tests.consumer.fetch_stories import ScheduledPartitions
from tests.consumer.support import batch, pop

WIDE = 1000
"""Partitions of a wide topic."""


def calls_of_a_fetch(partitions: int) -> float:
    """Return the Python calls for each fetch of a topic of which one partition has records."""
    story = ScheduledPartitions(partitions)
    hot, *_ = [story.add(number) for number in range(partitions)]
    plan = story.send()
    assert plan is not None
    assert len(plan.partitions) == partitions
    story.answer(plan, {})
    calls = 0

    def count(_frame: FrameType, event: str, _value: object) -> None:
        nonlocal calls
        calls += event == "call"

    rounds = 20
    for _ in range(rounds):
        sys.setprofile(count)
        plan = story.send()
        sys.setprofile(None)
        assert plan is not None
        assert len(plan.partitions) == len(story.session.wanted) == partitions
        data = {hot.tp: batch(hot.fetch_offset, count=3, epoch=5)}
        session = story.broker.session
        assert session is not None
        session.session_id = session.session_id or 7
        sys.setprofile(count)
        story.answer(plan, data, high_watermark=hot.fetch_offset + 3)
        hot.buffer.advance()
        while pop(hot.buffer) is not None:
            pass
        hot.made_room()
        sys.setprofile(None)
    return calls / rounds


def test_a_fetch_does_not_look_at_all_partitions() -> None:
    """A plan walked over all partitions four times: 12,000 calls for each fetch of a topic with a thousand."""
    few, many = calls_of_a_fetch(3), calls_of_a_fetch(WIDE)
    assert many <= 1.2 * few < 400


@pytest.mark.virtual(max_virtual_time=600)
async def test_batches_larger_than_half_a_share_are_fetched_together() -> None:
    """A broker returns a batch larger than the requested bytes for the first partition only (KIP-74): each of a thousand
    partitions, whose batches of 64 KiB were larger than half of their share of the buffer, was fetched alone.
    """
    partitions, batches, records, size = 100, 3, 4, 250
    async with EmbeddedCluster() as brokers:
        brokers.create_topic("orders", partitions)
        for number in range(partitions):
            fill(brokers, "orders", number, batches=batches, records=records, size=size)
        # a batch fits in a share of 1500 bytes, and not in half of it
        async with client(brokers, buffer_bytes=1500 * partitions, fetch_max_wait=0.5) as reader:
            consumers = reader.read("orders", *range(partitions))
            offsets = await asyncio.gather(*(read(consumer, batches * records) for consumer in consumers))
            assert offsets == [list(range(batches * records))] * partitions
            assert len(fetches(brokers)) < partitions


@pytest.mark.virtual(max_virtual_time=600)
async def test_large_batches_of_many_partitions_stay_within_the_buffer() -> None:
    """Without a reader, records that exceed the buffer are fetched one batch at a time."""
    partitions, size = 50, 3000
    async with EmbeddedCluster() as brokers:
        brokers.create_topic("orders", partitions)
        for number in range(partitions):
            fill(brokers, "orders", number, batches=2, records=1, size=size)
        total = 10 * size
        async with client(brokers, buffer_bytes=total, fetch_max_wait=0.5) as reader:
            consumers = reader.read("orders", *range(partitions))
            held, steps = 0, [0]
            while held < partitions * size:  # each is guaranteed one batch
                before, held = held, sum(consumer.buffered_bytes for consumer in consumers)
                steps.append(held - max(before, total))
                await asyncio.sleep(0)
            assert max(steps) <= 2 * size, "beyond the total one by one"
            offsets = await asyncio.gather(*(read(consumer, 2) for consumer in consumers))
            assert offsets == [[0, 1]] * partitions


@pytest.mark.virtual(max_virtual_time=600)
async def test_a_hot_partition_of_many_is_fetched_in_large_pieces() -> None:
    """The partition's share of the buffer is small, but the others do not use theirs. Before, each fetch had half a share."""
    partitions, batches, size = 100, 400, 250
    async with EmbeddedCluster() as brokers:
        brokers.create_topic("orders", partitions)
        fill(brokers, "orders", 7, batches=batches, records=1, size=size)
        async with client(brokers, buffer_bytes=2500 * partitions, fetch_max_wait=0.5) as reader:
            consumers = reader.read("orders", *range(partitions))
            assert await read(consumers[7], batches) == list(range(batches))
            # half a share has three batches
            assert sum(exchange.node_id == 1 for exchange in fetches(brokers)) < batches / 3 / 3
