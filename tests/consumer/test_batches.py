"""`PartitionConsumer.batches()`: buffered records, waiting for more, and the limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import ConfigError
from tests.consumer.support import Seen, batch, feed, make_consumer
from tests.stories.virtual import now


def offsets(records) -> list[int]:
    return [record.offset for record in records]


async def test_buffered_records_are_returned_at_once(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, count=3), batch(3, count=3))
    first = await anext(consumer.batches())
    assert (first.topic, first.partition, first.first_offset, first.last_offset) == ("orders", 3, 0, 5)
    assert now() == 0


async def test_without_max_wait_the_first_records_are_returned_at_once(consumer: PartitionConsumer) -> None:
    task = asyncio.ensure_future(anext(consumer.batches()))
    await asyncio.sleep(3)
    feed(consumer, batch(0, count=2))
    assert offsets(await task) == [0, 1]
    assert now() == 3


async def test_max_wait_counts_from_the_first_record(consumer: PartitionConsumer) -> None:
    task = asyncio.ensure_future(anext(consumer.batches(max_wait=2)))
    await asyncio.sleep(3)
    feed(consumer, batch(0, count=1))
    await asyncio.sleep(1.9)
    feed(consumer, batch(1, count=1))
    assert offsets(await task) == [0, 1]
    assert now() == 5


async def test_max_records_ends_the_wait(consumer: PartitionConsumer) -> None:
    batches = consumer.batches(max_records=3, max_wait=60)
    task = asyncio.ensure_future(anext(batches))
    for base in (0, 2):
        await asyncio.sleep(1)
        feed(consumer, batch(base, count=2))
    assert offsets(await task) == [0, 1, 2]
    assert now() == 2
    assert offsets(await anext(batches)) == [3]
    assert now() == 62


async def test_max_bytes_ends_the_wait_and_keeps_batches_whole(consumer: PartitionConsumer) -> None:
    size = len(batch(0, count=2))
    batches = consumer.batches(max_bytes=2 * size + 1, max_wait=60)
    task = asyncio.ensure_future(anext(batches))
    for base in (0, 2, 4):
        await asyncio.sleep(1)
        feed(consumer, batch(base, count=2))
    assert offsets(await task) == [0, 1, 2, 3]
    assert now() == 3
    assert offsets(await anext(consumer.batches())) == [4, 5]


async def test_a_full_share_ends_the_wait() -> None:
    """No more records can arrive before the reader takes some, so waiting is useless."""
    size = len(batch(0, count=4))
    consumer = make_consumer(share=2 * size, ask=size)
    feed(consumer, batch(0, count=4), batch(4, count=4))
    assert offsets(await anext(consumer.batches(max_wait=60))) == list(range(8))
    assert now() == 0


async def test_waiting_for_a_larger_batch_is_no_stall() -> None:
    """Found by review: a reader that waited for a larger batch counted as stalled, and got no more records."""
    seen = Seen()
    consumer = make_consumer(hooks=[seen])
    task = asyncio.ensure_future(anext(consumer.batches(max_records=100, max_wait=5)))
    feed(consumer, batch(0, count=1))
    for _ in range(20):
        await asyncio.sleep(0.1)
        consumer._inner.check_progress()
    assert seen.events == []
    assert consumer._inner.is_fetchable
    feed(consumer, batch(1, count=99))
    assert len(await task) == 100
    feed(consumer, batch(100, count=1))
    consumer._inner.check_progress()
    consumer._inner.check_progress()
    assert [event for event, *_ in seen.events] == ["stalled"], "the reader has stopped waiting"


async def test_waiting_for_a_larger_batch_ends_a_stall() -> None:
    seen = Seen()
    consumer = make_consumer(hooks=[seen])
    feed(consumer, batch(0, count=1))
    consumer._inner.check_progress()
    consumer._inner.check_progress()
    assert consumer.stalled
    task = asyncio.ensure_future(anext(consumer.batches(max_records=2, max_wait=5)))
    await asyncio.sleep(0.1)
    assert not consumer.stalled
    assert consumer._inner.is_fetchable
    feed(consumer, batch(1, count=1))
    assert offsets(await task) == [0, 1]


async def test_reading_a_large_batch_in_small_ones_frees_its_bytes() -> None:
    """Found by review: a batch read up to its last record still counted against the share, and nothing more was fetched."""
    data = batch(0, count=4, value=b"x" * 1000)
    consumer = make_consumer(share=len(data), ask=len(data) // 2)
    feed(consumer, data)
    found = []
    batches = consumer.batches(max_records=2)
    for _ in range(2):
        found += offsets(await anext(batches))
    assert found == [0, 1, 2, 3]
    assert consumer._inner.is_fetchable
    task = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(1)
    assert consumer._inner.is_fetchable
    feed(consumer, batch(4, count=1))
    assert offsets(await task) == [4]


async def test_a_pause_during_max_wait_holds_the_records_back(consumer: PartitionConsumer) -> None:
    task = asyncio.ensure_future(anext(consumer.batches(max_records=4, max_wait=2)))
    feed(consumer, batch(0, count=2))
    await asyncio.sleep(1)
    consumer.pause()
    await asyncio.sleep(10)
    assert not task.done()
    consumer.resume()
    feed(consumer, batch(2, count=2))
    assert offsets(await task) == [0, 1, 2, 3]


async def test_batches_without_records_to_hand_out_are_skipped() -> None:
    consumer = make_consumer(2)
    feed(consumer, batch(0, [0, 1], last=3), batch(4, [], last=5))
    task = asyncio.ensure_future(anext(consumer.batches()))
    await asyncio.sleep(1)
    assert not task.done()
    assert (consumer.buffered_bytes, consumer.position) == (0, 6)
    feed(consumer, batch(6, count=1))
    assert offsets(await task) == [6]


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"max_records": 0}, "max_records=0"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"max_wait": -1}, "max_wait=-1"),
        ({"max_records": None}, "max_records=None"),
        ({"max_bytes": 1.5}, "max_bytes=1.5"),
        ({"max_wait": float("nan")}, "max_wait=nan"),
    ],
)
async def test_invalid_limits_are_refused(limits: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_consumer(config=ConsumerConfig()).batches(**limits)
