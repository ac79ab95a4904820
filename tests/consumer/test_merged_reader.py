"""MergedReader without brokers: turns, the record held, errors, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import pytest

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer import decoding
from asyncgroup.consumer.batch_queue import LARGE_BYTES
from asyncgroup.consumer.fetch_state import Budget
from asyncgroup.consumer.merged_reader import MergedReader, ReadyQueue
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import BrokerError, CorruptRecordsError
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.model import Record, TopicPartition
from tests.consumer.support import batch, corrupt, feed


def partition(number: int, interceptors: Iterable[object] = ()) -> PartitionConsumer:
    budget = Budget(1 << 30, 1 << 20)
    tp = TopicPartition("orders", number)
    return PartitionConsumer(tp, 0, ConsumerConfig(), budget, Hooks(), interceptors)  # type: ignore[arg-type]


@asynccontextmanager
async def following(*consumers: PartitionConsumer) -> AsyncIterator[MergedReader]:
    reader = MergedReader()
    tasks = [asyncio.ensure_future(reader.serve(consumer)) for consumer in consumers]
    await asyncio.sleep(0)
    try:
        yield reader
    finally:
        for consumer in consumers:
            consumer._inner.end()
        await asyncio.gather(*tasks)


async def take(reader: MergedReader, count: int) -> list[tuple[int, int]]:
    return [
        (record.partition, record.offset) for record in [await anext(reader.records) for _ in range(count)]
    ]


async def test_the_ready_queue_is_round_robin_without_empty_partitions() -> None:
    turns, consumers = ReadyQueue(), [partition(number)._inner for number in range(3)]
    for consumer in consumers:
        assert turns.add(consumer)
        assert not turns.add(consumer), "it is queued already"
    feed(consumers[0], batch(0, count=2))
    feed(consumers[2], batch(0, count=2))
    assert [turns.next_ready(), turns.next_ready(), turns.next_ready()] == [
        consumers[0],
        consumers[2],
        consumers[0],
    ]
    assert repr(turns) == "<ReadyQueue: orders-2, orders-0>", "the empty one was dropped from the queue"
    consumers[0].pause()
    assert [turns.next_ready(), turns.next_ready()] == [consumers[2], consumers[2]]
    turns.remove(consumers[2])
    turns.remove(consumers[2])
    assert (turns.next_ready(), repr(turns)) == (None, "<ReadyQueue: empty>")


@pytest.mark.parametrize(
    ("size", "turns"),
    [(8_000, [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]), (1, [0] * 6 + [1] * 6)],
    ids=["large batches", "small batches"],
)
async def test_a_turn_lasts_until_what_was_decoded_at_once_is_used_up(size: int, turns: list[int]) -> None:
    first, second = partition(0), partition(1)
    for consumer in (first, second):
        feed(consumer, *(batch(base, count=3, value=bytes(size)) for base in (0, 3)))
    async with following(first, second) as reader:
        assert [number for number, _ in await take(reader, 12)] == turns


async def test_a_turn_lasts_at_most_ten_milliseconds() -> None:
    first, second = partition(0), partition(1)
    feed(first, batch(0, count=100))
    feed(second, batch(0, count=100))
    async with following(first, second) as reader:
        found = []
        for _ in range(20):
            found += await take(reader, 1)
            await asyncio.sleep(0.004)
    assert [number for number, _ in found] == ([0] * 3 + [1] * 3) * 3 + [0] * 2


async def test_one_busy_partition_among_idle_ones() -> None:
    busy = partition(0)
    async with following(busy, *(partition(number) for number in range(1, 50))) as reader:
        reading = asyncio.create_task(take(reader, 6))
        for base in range(0, 6, 2):
            await asyncio.sleep(1)
            feed(busy, batch(base, count=2))
        assert await reading == [(0, offset) for offset in range(6)]
        assert len(reader._ready._queue) <= 1


async def test_the_record_held() -> None:
    first, second = partition(0), partition(1)
    feed(first, batch(0, count=2))
    async with following(first, second) as reader:
        assert not reader.holds_record
        await take(reader, 1)
        assert reader.holds_record
        await take(reader, 1)
        assert reader.holds_record
        waiting = asyncio.create_task(take(reader, 1))
        await asyncio.wait_for(reader.wait_idle(), 1)
        assert not reader.holds_record, "the next record was requested"
        await cancel_and_wait(waiting)
        feed(second, batch(0, count=1))
        await take(reader, 1)
        reader.forget(first)
        assert reader.holds_record
        reader.forget(second)
        assert not reader.holds_record


async def test_seeks_and_ends_take_effect_before_the_next_record() -> None:
    first, second = partition(0), partition(1)
    feed(first, batch(0, count=5))
    feed(second, batch(0, count=5))
    async with following(first, second) as reader:
        assert await take(reader, 2) == [(0, 0), (0, 1)]
        first.seek(100)
        feed(first, batch(100, count=2))
        assert await take(reader, 5) == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]
        assert await take(reader, 1) == [(0, 100)]
        first._inner.end()
        feed(second, batch(5, count=1))
        assert await take(reader, 1) == [(1, 5)]


async def test_errors_are_raised_in_the_partitions_turn() -> None:
    first, second = partition(0), partition(1)
    feed(first, batch(0, count=1), corrupt(batch(1, count=3)))
    feed(second, batch(0, count=1), batch(1, count=1))
    async with following(first, second) as reader:
        assert await take(reader, 3) == [(0, 0), (1, 0), (1, 1)]
        with pytest.raises(CorruptRecordsError, match="orders-0 at offset 1"):
            await anext(reader.records)
        with pytest.raises(CorruptRecordsError):
            await anext(reader.records)
        first.seek(4)
        second._inner.fail(BrokerError(29, "fetch of orders-1"))
        with pytest.raises(BrokerError, match="orders-1"):
            await anext(reader.records)
        feed(second, batch(2, count=1))
        assert await take(reader, 1) == [(1, 2)]


async def test_a_failure_is_raised_once_and_then_stop_async_iteration() -> None:
    reader = MergedReader()
    waiting = asyncio.create_task(anext(reader.records))
    await asyncio.sleep(0)
    reader.end(KeyError("once"))
    with pytest.raises(KeyError, match="once"):
        await waiting
    assert reader.failure is None
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await anext(reader.records)
    assert "ended" in repr(reader)


async def test_interceptors_are_called_once_for_each_record() -> None:
    seen: list[int] = []

    def see(record: Record) -> None:
        seen.append(record.offset)

    first = partition(0, [see])
    feed(first, batch(0, count=3))
    async with following(first) as reader:
        await take(reader, 3)
    assert seen == [0, 1, 2]


async def test_was_read() -> None:
    """`was_read` covers all offsets that may have been delivered, also after seeks back and forth."""
    first = partition(0)
    feed(first, batch(0, count=5))
    async with following(first) as reader:
        assert not first._inner.was_read(0)
        await take(reader, 2)
        assert [first._inner.was_read(offset) for offset in (-1, 0, 1, 2)] == [
            False,
            True,
            True,
            False,
        ]
        first.seek(50)
        assert [first._inner.was_read(offset) for offset in (1, 2, 49, 50)] == [
            True,
            True,
            True,
            False,
        ]
        first.seek(1)
        assert [first._inner.was_read(offset) for offset in (0, 1, 49, 50)] == [
            True,
            True,
            True,
            False,
        ]


# --- large batches ----------------------------------------------------------------------------------------------------


async def test_a_batch_decoded_in_a_thread_delays_neither_the_loop_nor_other_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def slowly(function: Callable[[], object]) -> object:
        await asyncio.sleep(30)
        return function()

    monkeypatch.setattr(decoding, "run_off_loop", slowly)
    first, second = partition(0), partition(1)
    feed(first, batch(0, value=bytes(LARGE_BYTES + 1)))
    feed(second, batch(0, count=2))
    async with following(first, second) as reader:
        time = asyncio.get_running_loop().time
        begun = time()
        assert await take(reader, 2) == [(1, 0), (1, 1)]
        assert time() == begun
        assert await take(reader, 1) == [(0, 0)]
        assert time() == begun + 30
