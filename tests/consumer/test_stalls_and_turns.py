"""Stalls (MaxProcessingTime), and readers that never wait but yield to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from asyncgroup.consumer.partition_consumer import TURN_BYTES, TURN_SECONDS, PartitionConsumer
from tests.consumer.support import Seen, batch, feed, make_consumer
from tests.stories.virtual import block

SIZE = len(batch(0, count=4))


async def tick(consumer, periods: int = 1) -> None:
    for _ in range(periods):
        consumer._inner.check_progress()


# -- stalls ------------------------------------------------------------------------------------------------------------


async def test_a_stall_takes_one_to_two_periods() -> None:
    """Records that arrive just before a check wait for one period, and records that arrive just after it for almost two."""
    before, after = make_consumer(), make_consumer()
    feed(before, batch(0, count=1))
    await tick(before)
    await tick(after)
    feed(after, batch(0, count=1))
    await tick(before)
    await tick(after)
    assert (before.stalled, after.stalled) == (True, False)
    await tick(after)
    assert after.stalled


async def test_a_stalled_partition_is_not_fetched_keeps_its_buffer_and_is_not_paused() -> None:
    seen = Seen()
    consumer = make_consumer(hooks=[seen])
    feed(consumer, batch(0, count=4))
    await tick(consumer, 5)
    assert (consumer.stalled, consumer.paused, consumer._inner.is_fetchable) == (True, False, False)
    assert not consumer._inner.is_buffer_full, (
        "a stalled partition must not shorten the max_wait of the others"
    )
    assert consumer.buffered_bytes == SIZE
    assert seen.events == [("stalled", "orders", 3)], "told once"


@pytest.mark.parametrize("reader", ["records", "batches"])
async def test_a_record_handed_out_is_progress(consumer: PartitionConsumer, reader: str) -> None:
    feed(consumer, *(batch(4 * n, count=4) for n in range(10)))
    batches = consumer.batches(max_records=1)
    for _ in range(20):
        await anext(consumer if reader == "records" else batches)
        await tick(consumer)
        assert not consumer.stalled
    await tick(consumer)
    assert consumer.stalled


async def test_it_resumes_when_half_of_its_share_is_free() -> None:
    woken: list[bool] = []
    seen = Seen()
    consumer = make_consumer(
        share=8 * SIZE, ask=SIZE, hooks=[seen], wake=lambda: woken.append(consumer._inner.is_fetchable)
    )
    feed(consumer, *(batch(4 * n, count=4) for n in range(8)))
    await tick(consumer, 2)
    assert consumer.stalled
    for n in range(16):
        assert consumer.stalled, n
        await anext(consumer)
    assert not consumer.stalled, "the fourth of eight batches is used up"
    assert consumer.buffered_bytes == 4 * SIZE
    assert woken[-1:] == [True], "the fetcher is woken at once"
    assert [event for event, *_ in seen.events] == ["stalled", "resumed"]


async def test_reading_batches_resumes_it() -> None:
    consumer = make_consumer(share=8 * SIZE, ask=SIZE)
    feed(consumer, *(batch(4 * n, count=4) for n in range(8)))
    await tick(consumer, 2)
    batches = consumer.batches(max_records=12)
    await anext(batches)
    assert consumer.stalled
    await anext(batches)
    assert not consumer.stalled


async def test_progress_within_a_large_batch_resumes_it() -> None:
    """Found by review: progress inside a batch did not count, so the buffer ran empty before the next fetch."""
    woken: list[bool] = []
    consumer = make_consumer(
        share=10 * SIZE, ask=SIZE, wake=lambda: woken.append(consumer._inner.is_fetchable)
    )
    feed(consumer, batch(0, count=4))
    await anext(consumer)
    await tick(consumer, 2)
    assert consumer.stalled
    await tick(consumer, 3)
    assert consumer.stalled, "no record was read since"
    await anext(consumer)
    await tick(consumer)
    assert not consumer.stalled
    assert consumer.buffered_bytes == SIZE, "three quarters of its records are unread"
    assert woken[-1:] == [True]


async def test_progress_alone_does_not_end_a_stall() -> None:
    consumer = make_consumer(share=3 * SIZE, ask=SIZE)
    feed(consumer, *(batch(4 * n, count=4) for n in range(3)))
    await tick(consumer, 2)
    for _ in range(4):
        await anext(consumer)
        await tick(consumer)
        assert consumer.stalled, "more than half of its share is still used"
    await anext(consumer)
    assert consumer.stalled


async def test_no_stall_without_records_or_while_paused_or_at_the_end() -> None:
    empty, paused, ended = make_consumer(), make_consumer(), make_consumer()
    for consumer in (paused, ended):
        feed(consumer, batch(0, count=1))
    paused.pause()
    ended._inner.end()
    for consumer in (empty, paused, ended):
        await tick(consumer, 5)
        assert not consumer.stalled
    paused.resume()
    await tick(paused)
    assert not paused.stalled, "the time of the pause does not count"
    await tick(paused)
    assert paused.stalled


async def test_a_pause_does_not_end_a_stall(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, count=2))
    await tick(consumer, 2)
    consumer.pause()
    await tick(consumer, 3)
    consumer.resume()
    await tick(consumer)
    assert consumer.stalled
    await anext(consumer)
    await anext(consumer)
    assert not consumer.stalled


async def test_a_seek_ends_a_stall() -> None:
    seen = Seen()
    consumer = make_consumer(hooks=[seen])
    feed(consumer, batch(0, count=1))
    await tick(consumer, 2)
    consumer.seek(5)
    assert not consumer.stalled
    assert [event for event, *_ in seen.events] == ["stalled", "resumed"]


# -- yielding to the event loop ----------------------------------------------------------------------------------------


class Neighbour:
    """Another task on the loop; it counts its steps and the longest time between two."""

    def __init__(self) -> None:
        self.turns = 0
        self.longest = 0.0
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        last = clock()
        while True:
            await asyncio.sleep(0)
            self.turns += 1
            self.longest, last = max(self.longest, clock() - last), clock()

    async def gone(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def read_all(consumer, count: int, work: Callable[[], None]) -> Neighbour:
    neighbour = Neighbour()
    await asyncio.sleep(0)
    async for record in consumer:
        work()
        if record.offset == count - 1:
            break
    await neighbour.gone()
    return neighbour


@pytest.mark.parametrize(("size", "batches"), [(5_000, 50), (1, 2_000)], ids=["large", "small"])
async def test_a_reader_yields_after_the_work_of_a_full_batch(size: int, batches: int) -> None:
    """That is 64 KiB or 256 records, whichever comes first, in one batch or in many."""
    consumer = make_consumer()
    feed(consumer, *(batch(4 * n, count=4, value=bytes(size)) for n in range(batches)))
    neighbour = await read_all(consumer, 4 * batches, lambda: None)
    full = 4 * batches * max(size, 256) // TURN_BYTES
    assert full / 2 <= neighbour.turns <= 2 * full


@pytest.mark.parametrize("each", [0.001, 0.004, 0.03])
async def test_a_reader_yields_every_ten_milliseconds(consumer: PartitionConsumer, each: float) -> None:
    """A single record that takes longer cannot be interrupted, but the reader yields right after it."""
    feed(consumer, batch(0, count=300))
    neighbour = await read_all(consumer, 300, lambda: block(each))
    assert neighbour.longest < max(TURN_SECONDS + each, 2 * each) + 1e-9


@pytest.mark.parametrize(("size", "limit"), [(20_000, 4), (1, 256), (1, 1)])
async def test_a_reader_of_batches_yields_after_as_much_work(size: int, limit: int) -> None:
    consumer = make_consumer()
    feed(consumer, *(batch(4 * n, count=4, value=bytes(size)) for n in range(512)))
    neighbour, batches, read = Neighbour(), consumer.batches(max_records=limit), 0
    await asyncio.sleep(0)
    while read < 2048:
        read += len(await anext(batches))
    await neighbour.gone()
    full = 2048 * max(size, 256) // TURN_BYTES
    assert full / 2 <= neighbour.turns <= 2 * full


async def test_a_reader_of_batches_yields_every_ten_milliseconds(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, count=200))
    neighbour, batches = Neighbour(), consumer.batches(max_records=2)
    await asyncio.sleep(0)
    for _ in range(100):
        await anext(batches)
        block(0.004)
    await neighbour.gone()
    assert neighbour.longest < TURN_SECONDS + 0.004 + 1e-9


async def test_two_readers_that_never_wait_share_the_loop() -> None:
    first, second = make_consumer(), make_consumer()
    order: list[int] = []
    for consumer in (first, second):
        feed(consumer, *(batch(4 * n, count=4, value=bytes(17_000)) for n in range(20)))

    async def read(number: int, consumer) -> None:
        async for record in consumer:
            order.append(number)
            if record.offset == 79:
                break

    await asyncio.gather(read(1, first), read(2, second))
    runs = [len(run) for run in "".join(map(str, order)).replace("12", "1 2").replace("21", "2 1").split()]
    assert max(runs) <= 8
