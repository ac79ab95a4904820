"""Runs of small record batches: read as a whole, with the results and the errors of single batches."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from hypothesis import example, given, settings, strategies as st

from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.columns import RecordColumns
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.consumer.merged_reader import MergedReader
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.spark.source.executor.range_columns import read_before
from asyncgroup.wire import batch_run, messages as m
from asyncgroup.wire.batch_view import iter_batches
from tests.broker.transactional import Writer
from tests.consumer.support import TP, batch, corrupt, feed, make_consumer, pop, with_bad_content
from tests.profiles import examples

pytestmark = pytest.mark.real

ListedTransaction = m.FetchResponse.AbortedTransaction
CODECS = ["none", "none", "gzip", "snappy", "lz4", "zstd"]


@contextmanager
def without_runs() -> Iterator[None]:
    least, batch_run._LEAST = batch_run._LEAST, 1 << 62
    try:
        yield
    finally:
        batch_run._LEAST = least


def random_log(seed: int) -> bytes:
    """Return batches with gaps in and between them, markers, several epochs and codecs, some damaged or malformed."""
    rng = random.Random(seed)
    parts, base, epoch, damage = [], rng.randrange(3), 1, rng.random() < 0.5
    for _ in range(rng.randrange(1, 14)):
        base += rng.choice([0, 0, 0, 0, 2])
        epoch += rng.random() < 0.1
        count, codec = rng.randint(1, 4), rng.choice(CODECS)
        value = bytes(rng.choice([1, 5, 200, 500_000 if rng.random() < 0.2 else 300]))
        data = batch(base, count=count, codec=codec, epoch=epoch, value=value)
        kind = rng.random()
        if kind < 0.15:
            data, count = batch(base, control=True, epoch=epoch), 1
        elif kind < 0.25:
            data = batch(base, [base, base + count], last=base + count + 1, epoch=epoch)
            count += 2
        elif damage and kind < 0.35:
            data = corrupt(data)
        elif damage and kind < 0.4:
            data = with_bad_content(base, count)
        parts.append(data)
        base += count
    cut = rng.randrange(80) if rng.random() < 0.3 else 0
    return b"".join(parts) + batch(base, count=2)[:cut]


def steps(buffer: RecordBuffer, log: bytes, seed: int, skipped: list[str]) -> Iterator[object]:
    """Read a log in random steps; yield what each of them returns or raises."""
    rng = random.Random(seed)
    buffer.add(log, zero_copy=rng.random() < 0.5)
    yield buffer.fetch_offset, buffer.fetched_epoch, buffer.bytes, buffer.records, buffer.records_end
    for _ in range(60):
        how, limit, size = rng.randrange(4), rng.randint(1, 20), rng.choice([1, 150, 1 << 20])
        try:
            if how < 2:
                record = pop(buffer)
                yield record, record and (record.key, record.value, record.leader_epoch, record.timestamp)
            elif how == 2:
                taken = buffer.pop_records(limit, size)
                yield (
                    [(record, record.value) for record in taken],
                    len(taken),
                    taken.last_offset if taken else -1,
                )
            else:
                columns = RecordColumns()
                end = buffer.position + limit
                while read_before(buffer, columns, end):
                    pass
                offsets = [offset for run in columns.runs for offset in run.offsets]
                yield columns.keys, columns.values, columns.timestamps, offsets
        except AsyncGroupError as error:
            yield str(error)
            buffer.seek(buffer.fetch_offset if rng.random() < 0.2 else buffer.position + 1)
            buffer.add(log, zero_copy=True)
        yield buffer.position if not buffer.decoded else buffer.decoded[-1].offset, list(skipped)
        yield bool(buffer), buffer.bytes > 0 or not buffer


def read(log: bytes, seed: int, *, check_crcs: bool, skips: bool) -> list[object]:
    skipped: list[str] = []
    on_skip = (lambda error: skipped.append(str(error))) if skips else None
    buffer = RecordBuffer(TP, seed % 4, check_crcs, on_skip)
    buffer.high_watermark = 1 << 40
    return list(steps(buffer, log, seed, skipped))


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 1 << 40), st.booleans(), st.booleans())
@example(698917911030, False, True)  # it was read before: its epoch does not count
@example(540469046082, False, True)  # a run that was taken apart counted twice in the bytes of a batch
@example(205025314690, False, True)  # a run that was split and then taken apart repeated its rest
def test_a_buffer_with_runs_reads_as_one_without(seed: int, check_crcs: bool, skips: bool) -> None:
    log = random_log(seed)
    found = read(log, seed, check_crcs=check_crcs, skips=skips)
    with without_runs():
        assert found == read(log, seed, check_crcs=check_crcs, skips=skips)


# --- what a batch costs ------------------------------------------------------------------------------------------------

BATCHES = 1000


@contextmanager
def counting() -> Iterator[list[int]]:
    """Count the calls of functions of the package."""
    calls = [0]

    def count(frame: FrameType, event: str, _argument: object) -> None:
        calls[0] += event == "call" and "asyncgroup" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def one_by_one(consumer: PartitionConsumer) -> int:
    return len([await anext(consumer) for _ in range(BATCHES)])


async def in_batches(consumer: PartitionConsumer) -> int:
    records, batches = 0, consumer.batches()
    while records < BATCHES:
        records += len(list(await anext(batches)))
    return records


async def merged(consumer: PartitionConsumer) -> int:
    reader = MergedReader()
    serving = asyncio.create_task(reader.serve(consumer))
    records = len([await anext(reader.records) for _ in range(BATCHES)])
    await cancel_and_wait(serving)
    return records


async def in_columns(consumer: PartitionConsumer) -> int:
    columns = RecordColumns()
    while read_before(consumer._inner.buffer, columns, BATCHES):
        pass
    return len(columns)


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("read_all", [one_by_one, in_batches, merged, in_columns])
async def test_a_batch_of_one_record_takes_no_turn_and_few_calls(
    read_all: Callable[[PartitionConsumer], Awaitable[int]], codec: str
) -> None:
    consumer, turns = make_consumer(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        handle[0] = loop.call_soon(turn)

    log = b"".join(batch(offset, codec=codec) for offset in range(BATCHES))
    loop = asyncio.get_running_loop()
    handle = [loop.call_soon(turn)]
    try:
        with counting() as calls:
            feed(consumer, log)
            assert await read_all(consumer) == BATCHES
    finally:
        handle[0].cancel()
    assert turns < BATCHES / 50, "the event loop has a turn after 256 records or 64 KiB"
    # one or two for the record, and seven to decompress and expand the batch
    assert calls[0] / BATCHES < (4 if codec == "none" else 11)


def test_an_aborted_transaction_makes_no_other_batch_more_expensive() -> None:
    """A response lists one of three records, before and after which the same producer has committed many."""
    log, data = PartitionLog("orders", 3), b""
    writer = Writer(log, 1)
    for count, end in ((BATCHES // 2, writer.commit), (3, writer.abort), (BATCHES // 2, writer.commit)):
        for _ in range(count):
            writer.write(b"v")
        end()
    offset = 0
    while part := log.read(offset, 1 << 20):
        data += part
        offset = [view.next_offset for view in iter_batches(part)][-1]
    aborted = [ListedTransaction(writer.id, BATCHES // 2 + 1)]
    buffer, records = RecordBuffer(TP, 0, check_crcs=True), list[int]()
    with counting() as calls:
        buffer.add(data, zero_copy=True, aborted=aborted)
        while taken := buffer.pop_records(BATCHES, 1 << 20):
            records += [record.offset for record in taken]
    assert records == [*range(BATCHES // 2), *range(BATCHES // 2 + 5, BATCHES + 5)]
    assert buffer.fetch_offset == BATCHES + 6
    assert calls[0] / BATCHES < 4
