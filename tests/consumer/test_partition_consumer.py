"""PartitionConsumer's iterators: order, breaks, cancellations, pauses, seeks, errors, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from asyncgroup.consumer.fetch_outcome import FetchedRecords
from asyncgroup.consumer.partition_consumer import TURN_SECONDS, PartitionConsumer
from asyncgroup.errors import BrokerError, ConfigError, CorruptRecordsError, ErrorCode
from asyncgroup.model import Record
from tests.consumer.support import TP, Seen, batch, corrupt, feed, make_consumer


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def offset_of(record: Awaitable[Record]) -> int:
    return (await record).offset


def reading(consumer) -> asyncio.Task[int]:
    """Start a task that reads one record and returns its offset."""
    return asyncio.ensure_future(offset_of(anext(consumer)))


async def rest_of(consumer, count: int) -> list[int]:
    return [await offset_of(anext(consumer)) for _ in range(count)]


# -- order -------------------------------------------------------------------------------------------------------------


async def test_records_in_order_over_batches_and_responses(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, count=3), batch(3, [4, 6], last=9), batch(10, control=True))
    task = asyncio.ensure_future(rest_of(consumer, 6))
    await turns(20)
    assert not task.done()
    assert (consumer.position, consumer._inner.fetch_offset) == (11, 11)
    feed(consumer, batch(11, count=2))
    assert await task == [0, 1, 2, 4, 6, 11]
    assert consumer.position == 12


async def test_after_a_break_a_second_loop_continues_at_the_next_record() -> None:
    consumer, found = make_consumer(), []
    feed(consumer, batch(0, count=4), batch(4, count=4))
    for stop in (1, 4, 5, 7):
        async for record in consumer:
            found.append(record.offset)
            if record.offset == stop:
                break
    assert found == list(range(8))


async def test_loops_and_batches_share_one_position(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, count=4), batch(4, count=4))
    assert await rest_of(consumer, 2) == [0, 1]
    assert [r.offset for r in await anext(consumer.batches(max_records=3))] == [2, 3, 4]
    assert await rest_of(consumer, 1) == [5]
    assert [r.offset for r in await anext(consumer.batches())] == [6, 7]


async def test_batches_without_records_to_hand_out_make_room() -> None:
    woken: list[bool] = []
    consumer = make_consumer(2, share=100, ask=60, wake=lambda: woken.append(consumer._inner.is_fetchable))
    feed(consumer, batch(0, [0, 1], last=3))
    assert not consumer._inner.is_fetchable
    task = reading(consumer)
    await turns(10)
    assert not task.done()
    assert woken[-1:] == [True]
    feed(consumer, batch(4, count=1))
    assert await task == 4


async def test_several_readers_share_the_records() -> None:
    consumer, found = make_consumer(), []

    async def read() -> None:
        async for record in consumer:
            found.append(record.offset)
            await asyncio.sleep(0.001)

    tasks = [asyncio.ensure_future(read()) for _ in range(3)]
    for base in range(0, 30, 3):
        feed(consumer, batch(base, count=3))
        await asyncio.sleep(0.0015)
    await asyncio.sleep(1)
    consumer._inner.end()
    await asyncio.gather(*tasks)
    assert sorted(found) == list(range(30))


async def test_repr_shows_the_state(consumer: PartitionConsumer) -> None:
    assert (consumer.lag, consumer.high_watermark, consumer.log_start_offset) == (0, -1, -1)
    consumer._inner.fetched(FetchedRecords(batch(0, count=4), 10, 0, zero_copy=True))
    assert (consumer.topic, consumer.partition, consumer.initial_offset) == (*TP, 0)
    assert (consumer.lag, consumer.position) == (10, 0)
    await rest_of(consumer, 4)
    assert (consumer.lag, consumer.position, consumer.buffered_bytes) == (6, 4, 0)
    consumer.pause()
    consumer._inner.end()
    assert repr(consumer) == "<PartitionConsumer orders-3: at 4 of 10, 0 bytes buffered, paused, ended>"


# -- cancellation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_batches", [False, True])
@pytest.mark.parametrize("fed_before", [0, 1, 2])
@pytest.mark.parametrize("fed_later", range(4))
async def test_a_canceled_read_loses_nothing(as_batches: bool, fed_before: int, fed_later: int) -> None:
    """Canceled at every step of the event loop."""
    for cancelled in range(9):
        await cancel_a_read(as_batches, fed_before, fed_later, cancelled)


async def cancel_a_read(as_batches: bool, fed_before: int, fed_later: int, cancelled: int) -> None:
    consumer = make_consumer()
    batches = consumer.batches(max_records=3, max_wait=0.5)
    feed(consumer, *(batch(2 * n, count=2) for n in range(fed_before)))

    async def read() -> list[int]:
        if as_batches:
            return [record.offset for record in await anext(batches)]
        return await rest_of(consumer, 1)

    task = asyncio.ensure_future(read())
    for turn in range(cancelled):
        await turns(1)
        if turn == fed_later:
            feed(consumer, batch(2 * fed_before, count=2))
            fed_before += 1
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    found = [] if isinstance(result, asyncio.CancelledError) else list(result)
    feed(consumer, batch(2 * fed_before, count=1))
    found += await rest_of(consumer, 2 * fed_before + 1 - len(found))
    assert found == list(range(2 * fed_before + 1)), cancelled


async def test_timeouts_around_a_read_lose_nothing() -> None:
    """All ways to limit a read, with records that arrive at every moment around its end."""
    consumer, found = make_consumer(), []

    async def produce() -> None:
        for base in range(0, 60, 2):
            await asyncio.sleep(0.05)
            feed(consumer, batch(base, count=2))
        await asyncio.sleep(1)
        consumer._inner.end()

    producing = asyncio.ensure_future(produce())
    loops = 0
    while not producing.done():
        loops += 1
        try:
            if loops % 2:
                found.append((await asyncio.wait_for(anext(consumer), 0.025)).offset)
            else:
                async with asyncio.timeout(0.05):
                    async for record in consumer:
                        found.append(record.offset)  # noqa: PERF401  a cut comprehension would lose them
                    await asyncio.sleep(0.05)
        except (TimeoutError, StopAsyncIteration):
            continue
    await producing
    assert found == list(range(60))


# -- pause, resume, end ------------------------------------------------------------------------------------------------


async def test_a_pause_stops_before_the_next_record_and_keeps_the_buffer() -> None:
    woken: list[str] = []
    consumer = make_consumer(wake=lambda: woken.append("wake"))
    feed(consumer, batch(0, count=3))
    assert await rest_of(consumer, 1) == [0]
    consumer.pause()
    assert not consumer._inner.is_fetchable
    assert not consumer._inner.is_buffer_full
    task = reading(consumer)
    await turns(10)
    assert not task.done()
    assert consumer.buffered_bytes > 0
    woken.clear()
    consumer.resume()
    assert woken, "the fetcher must be woken"
    assert await task == 1
    assert consumer._inner.is_fetchable


async def test_a_pause_between_decoding_and_handing_out_takes_effect(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, count=2))
    assert await reading(consumer) == 0
    await asyncio.sleep(2 * TURN_SECONDS)
    task = reading(consumer)
    await turns(
        1
    )  # the next record is decoded; the reader gives the event loop a turn before it hands it out
    consumer.pause()
    await turns(5)
    assert not task.done()
    consumer.resume()
    assert await task == 1


async def test_an_end_stops_every_reader_before_its_next_record(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, count=9))
    waiting_for_more = asyncio.ensure_future(anext(consumer.batches(max_records=100, max_wait=60)))
    await turns()
    consumer._inner.end()
    consumer._inner.end()
    with pytest.raises(StopAsyncIteration):
        await waiting_for_more
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)
    assert [record async for record in consumer] == []
    assert [records async for records in consumer.batches()] == []
    assert consumer.ended
    assert consumer.position == 0, "no record was handed out"


async def test_an_end_wakes_waiting_and_paused_readers(consumer: PartitionConsumer) -> None:
    tasks = [reading(consumer), asyncio.ensure_future(anext(consumer.batches()))]
    await turns()
    consumer.pause()
    await turns()
    consumer._inner.end()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [StopAsyncIteration] * 2


# -- seek --------------------------------------------------------------------------------------------------------------


async def test_a_seek_drops_the_buffer_and_wakes_the_fetcher() -> None:
    woken: list[str] = []
    consumer = make_consumer(wake=lambda: woken.append("wake"))
    feed(consumer, batch(0, count=5))
    assert await rest_of(consumer, 2) == [0, 1]
    consumer._inner.reserved, version = 500, consumer._inner.version
    woken.clear()
    consumer.seek(40)
    assert woken
    assert (consumer.position, consumer._inner.fetch_offset, consumer.buffered_bytes) == (40, 40, 0)
    assert consumer._inner.version > version, "requests in flight for the old offset become void"
    assert consumer._inner.reserved == 0
    task = reading(consumer)
    await turns()
    feed(consumer, batch(38, count=4))
    assert await task == 40


async def test_a_seek_back_hands_out_again(consumer: PartitionConsumer) -> None:
    for _ in range(3):
        feed(consumer, batch(0, count=2))
        assert await rest_of(consumer, 2) == [0, 1]
        consumer.seek(0)


@pytest.mark.parametrize("offset", [-1, 1.5, float("nan"), float("inf"), 2**63, "5", None], ids=repr)
async def test_bad_offsets_are_refused(consumer: PartitionConsumer, offset: Any) -> None:
    """Found by review: every fetch from that broker failed because of it, without an error."""
    with pytest.raises(ConfigError, match=rf"offset={offset!r} is not allowed: (an offset \()?0 or more"):
        consumer.seek(offset)
    assert (consumer.position, consumer._inner.version) == (0, 0)


async def test_a_seek_during_max_wait(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, count=2))
    task = asyncio.ensure_future(anext(consumer.batches(max_records=4, max_wait=1)))
    await asyncio.sleep(0.5)
    consumer.seek(10)
    feed(consumer, batch(10, count=4))
    assert [record.offset for record in await task] == [10, 11, 12, 13]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_batches", [False, True])
async def test_an_error_is_raised_once_and_then_fetching_continues(as_batches: bool) -> None:
    """Found by review: the fetcher was not woken after the error was raised, so a reader of batches waited without end."""
    woken: list[bool] = []
    consumer = make_consumer(wake=lambda: woken.append(consumer._inner.is_fetchable))
    iterator = consumer.batches() if as_batches else consumer
    error = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "fetch of orders-3")
    task = asyncio.ensure_future(anext(iterator))
    await turns()
    consumer._inner.fail(error)
    assert not consumer._inner.is_fetchable, "not before the error was raised"
    with pytest.raises(BrokerError) as raised:
        await task
    assert raised.value is error
    assert consumer._inner.is_fetchable
    assert woken[-1:] == [True]
    feed(consumer, batch(0, count=1))
    await anext(iterator)


async def test_an_error_is_raised_before_buffered_records_and_drops_none(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, count=2))
    consumer._inner.fail(CorruptRecordsError("behind it"))
    with pytest.raises(CorruptRecordsError):
        await anext(consumer)
    assert await rest_of(consumer, 2) == [0, 1]


async def test_a_seek_clears_an_error(consumer: PartitionConsumer) -> None:
    consumer._inner.fail(CorruptRecordsError("at the old position"))
    consumer.seek(7)
    assert consumer._inner.is_fetchable
    feed(consumer, batch(7, count=1))
    assert await rest_of(consumer, 1) == [7]


async def test_a_corrupt_batch_raises_until_a_seek_past_it(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, count=1), corrupt(batch(1, count=2)), batch(3, count=1))
    assert await rest_of(consumer, 1) == [0]
    for _ in range(3):
        with pytest.raises(CorruptRecordsError, match="orders-3 at offset 1"):
            await anext(consumer)
        with pytest.raises(CorruptRecordsError):
            await anext(consumer.batches())
    assert consumer.position == 1
    consumer.seek(3)
    feed(consumer, batch(3, count=1))
    assert await rest_of(consumer, 1) == [3]


# -- interceptors ------------------------------------------------------------------------------------------------------


async def test_interceptors_are_called_once_for_each_record_however_it_is_read() -> None:
    """In sarama they are called twice for the record at which MaxProcessingTime ends."""
    seen: list[int] = []
    consumer = make_consumer(interceptors=[lambda record: seen.append(record.offset)])
    cancelled = reading(consumer)
    await turns(2)
    feed(consumer, batch(0, count=4), batch(4, count=4))
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert await rest_of(consumer, 3) == [0, 1, 2]
    for _ in range(5):
        consumer._inner.check_progress()
    assert [r.offset for r in await anext(consumer.batches(max_records=2))] == [3, 4]
    assert await rest_of(consumer, 3) == [5, 6, 7]
    assert seen == list(range(8))


async def test_no_interceptor_can_break_the_chain(caplog: pytest.LogCaptureFixture) -> None:
    def replace(record: Record) -> Record:
        return Record(record.topic, record.partition, record.offset, value=b"replaced")

    def broken(record: Record) -> Record:
        raise ValueError("no luck")

    values: list[bytes | None] = []
    consumer = make_consumer(interceptors=[replace, broken, lambda record: values.append(record.value)])
    feed(consumer, batch(0, count=1))
    assert (await anext(consumer)).value == b"replaced"
    assert values == [b"replaced"]
    assert "no luck" in caplog.text
    assert "orders-3@0" in caplog.text


async def test_hooks_are_called_by_name() -> None:
    seen = Seen()
    consumer = make_consumer(hooks=[seen])
    feed(consumer, batch(0, count=1))
    consumer._inner.check_progress()
    consumer._inner.check_progress()
    consumer.seek(0)
    assert seen.events == [("stalled", "orders", 3), ("resumed", "orders", 3)]


async def test_a_partition_consumer_shows_what_a_user_may_call_and_nothing_else() -> None:
    shown = {name for name in dir(make_consumer()) if not name.startswith("_")}
    values = {"topic", "partition", "tp", "initial_offset", "position", "lag", "paused", "stalled", "ended"}
    values |= {"high_watermark", "last_stable_offset", "log_start_offset", "buffered_bytes"}
    assert shown == values | {"pause", "resume", "seek", "errors", "batches", "aclose"}
