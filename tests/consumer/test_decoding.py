"""Decoding of large record batches in a worker thread: the loop keeps running, and records stay complete and in order."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer import batch_queue, decoding
from asyncgroup.consumer.batch_queue import LARGE_BYTES, LARGE_COUNT, plain_form
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.off_loop import run_off_loop
from asyncgroup.wire.batch_view import batch_at
from asyncgroup.wire.records import CODECS, decode_batch
from tests.consumer.support import batch, corrupt, feed, legacy, make_consumer
from tests.profiles import thinned

COMPRESSED = [codec for codec in CODECS if codec != "none"]

LARGE = bytes(LARGE_BYTES + 1)
HUGE = 90 << 20


def virtually(function):
    return pytest.mark.virtual(function)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The decoding functions that ran in a thread."""
    done: list[object] = []

    async def run(function, *args):
        done.append(function)
        return await run_off_loop(function, *args)

    monkeypatch.setattr(decoding, "run_off_loop", run)
    return done


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """As `elsewhere`, and decoding takes 30 s."""
    done: list[object] = []

    async def run(function, *args):
        done.append(function)
        await asyncio.sleep(30)
        return function(*args)

    monkeypatch.setattr(decoding, "run_off_loop", run)
    return done


async def offsets(consumer: PartitionConsumer, count: int, *, by_batches: bool) -> list[int]:
    found: list[int] = []
    batches = consumer.batches(max_records=3)
    while len(found) < count:
        async with asyncio.timeout(60):
            if by_batches:
                found += [record.offset for record in await anext(batches)]
            else:
                found.append((await anext(consumer)).offset)
    return found


@pytest.mark.real
@pytest.mark.parametrize("codec", thinned(COMPRESSED, every=2))
async def test_a_huge_compressed_value_does_not_stop_the_loop(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only copying the value holds the interpreter lock, for some hundredths of a second.

    Times are CPU times of the process: on a busy machine the loop may also have to wait for other processes.
    """
    consumer, gaps, threads = make_consumer(), [], set[threading.Thread]()

    def decoded(*args: object) -> object:
        threads.add(threading.current_thread())
        return decode_batch(*args)

    monkeypatch.setattr(batch_queue, "decode_batch", decoded)
    feed(consumer, batch(0, codec=codec, value=bytes(HUGE)))

    async def beat() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0.002)
            gaps.append(time.process_time() - last)
            last = time.process_time()

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.01)
    began = time.process_time()
    record = await anext(consumer)
    taken = time.process_time() - began
    beating.cancel()
    assert record.value is not None
    assert len(record.value) == HUGE
    assert threads
    assert threading.current_thread() not in threads
    assert max(gaps) < max(1.0, taken / 2)


@virtually
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("by_batches", [False, True])
async def test_small_and_large_batches_stay_in_order(
    elsewhere: list[object], codec: str, *, by_batches: bool
) -> None:
    consumer = make_consumer()
    rng, data, count, large = random.Random(1), [], 0, 0
    for _ in range(12):
        is_large = rng.random() < 0.5
        value = LARGE if is_large else b"v"
        data.append(batch(count, count=2, codec=codec, value=value))
        count, large = count + 2, large + is_large
    feed(consumer, *data)
    assert await offsets(consumer, count, by_batches=by_batches) == list(range(count))
    assert len(elsewhere) == large
    assert consumer.buffered_bytes == 0


@virtually
@pytest.mark.parametrize("by_batches", [False, True])
async def test_a_canceled_read_loses_nothing_and_decodes_nothing_twice(
    slowly: list[object], *, by_batches: bool
) -> None:
    consumer = make_consumer()
    feed(consumer, batch(0, count=2, codec="zstd", value=LARGE))
    for pause in (0.0, 1.0, 2.0, 26.0):
        reading = asyncio.create_task(offsets(consumer, 1, by_batches=by_batches))
        await asyncio.sleep(pause)
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
    await asyncio.sleep(10)
    assert await offsets(consumer, 2, by_batches=by_batches) == [0, 1]
    assert len(slowly) == 1


@virtually
async def test_a_seek_discards_a_batch_being_decoded(elsewhere: list[object]) -> None:
    consumer = make_consumer()
    feed(consumer, batch(0, count=2, codec="zstd", value=LARGE))
    reading = asyncio.create_task(offsets(consumer, 1, by_batches=False))
    while not elsewhere:
        await asyncio.sleep(0)
    consumer.seek(7)
    feed(consumer, batch(7, count=1))
    assert await reading == [7]
    assert not consumer._inner.decoder.is_busy


@virtually
async def test_closing_ends_a_read_that_waits_for_a_thread(elsewhere: list[object]) -> None:
    consumer = make_consumer()
    feed(consumer, batch(0, count=2, codec="zstd", value=LARGE))
    reading = asyncio.create_task(anext(consumer, None))
    while not elsewhere:
        await asyncio.sleep(0)
    await consumer.aclose()
    assert await reading is None
    assert not consumer._inner.decoder.is_busy


@virtually
@pytest.mark.parametrize("by_batches", [False, True])
async def test_a_corrupt_large_batch_raises_at_every_read(*, by_batches: bool) -> None:
    consumer = make_consumer()
    feed(consumer, batch(0), corrupt(batch(1, value=LARGE)), batch(2))
    assert await offsets(consumer, 1, by_batches=by_batches) == [0]
    for _ in range(3):
        with pytest.raises(CorruptRecordsError, match=r"orders-3 at offset 1: .*CRC"):
            await offsets(consumer, 1, by_batches=by_batches)
        assert consumer.position == 1
    consumer.seek(2)
    feed(consumer, batch(2))
    assert await offsets(consumer, 1, by_batches=by_batches) == [2]


@virtually
async def test_a_corrupt_large_batch_can_be_skipped() -> None:
    consumer = make_consumer(config=ConsumerConfig(on_corrupt_batch="skip"))
    feed(consumer, batch(0), corrupt(batch(1, value=LARGE)), batch(2))
    assert await offsets(consumer, 2, by_batches=False) == [0, 2]


@virtually
@pytest.mark.usefixtures("slowly")
async def test_a_reader_that_waits_for_a_thread_is_not_stalled(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, value=LARGE))
    reading = asyncio.create_task(offsets(consumer, 1, by_batches=False))
    for _ in range(5):
        await asyncio.sleep(1)
        consumer._inner.check_progress()
    assert not consumer.stalled
    assert await reading == [0]


@pytest.mark.real
@pytest.mark.parametrize("codec", CODECS)
async def test_which_batches_are_decoded_in_a_thread(codec: str) -> None:
    def looks_slow(data: bytes) -> bool:
        view = batch_at(data)
        assert view is not None
        return plain_form(view) is None

    assert not looks_slow(batch(0, count=100, codec=codec, value=bytes(10_000)))
    assert not looks_slow(batch(0, count=1000, codec=codec, value=random.Random(1).randbytes(500)))
    assert looks_slow(batch(0, codec=codec, value=LARGE))
    assert looks_slow(batch(0, count=LARGE_COUNT + 1, codec=codec, value=b""))
    damaged = bytearray(batch(0, count=100, codec=codec, value=bytes(100)))
    damaged[61:] = bytes(len(damaged) - 61)
    looks_slow(bytes(damaged))


@pytest.mark.real
async def test_a_compressed_message_set_is_large_sooner() -> None:
    """No compiled code decodes it."""
    for count, slow in ((10, False), (3000, False), (5000, True), (100_000, True)):
        data = legacy(range(count), compressed=True)
        view = batch_at(data)
        assert view is not None
        assert (plain_form(view) is None) is slow
