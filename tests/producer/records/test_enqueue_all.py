"""`enqueue_all`: many records in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from asyncgroup.errors import ClosedError, DeliveryFailedError, InvalidRecordError
from asyncgroup.producer import Producer
from asyncgroup.producer.arguments import RecordFields
from tests.producer.support import TOPIC, stored, writing


def numbers(count: int, partition: int | None = 0) -> Iterator[RecordFields]:
    for number in range(count):
        yield TOPIC, b"%d" % number, None, (), partition, None


def used(producer: Producer) -> int:
    return int(repr(producer).split(" batches, ")[1].split()[0])


async def test_all_are_written_in_order_with_all_their_fields() -> None:
    async with writing() as (cluster, producer):
        fields: list[RecordFields] = [
            (TOPIC, b"value", b"key", [("name", b"content")], 3, 7), (TOPIC, None, b"key", (), None, None),
        ]  # fmt: skip
        await producer.enqueue_all(fields)
        await producer.enqueue_all(numbers(100))
        await producer.flush()
        (first,) = cluster.records(TOPIC, 3)
        assert (first.value, first.key, list(first.headers)) == (b"value", b"key", [("name", b"content")])
        assert first.timestamp == 7
        by_key = [record for record in cluster.records(TOPIC) if record.value is None]
        assert [(record.key, record.timestamp) for record in by_key] == [(b"key", 1_700_000_000_000)]
        written = [value for value in stored(cluster, 0) if value is not None]
        assert written == [b"%d" % number for number in range(100)]


async def test_an_invalid_record_stops_it_and_the_earlier_ones_are_written() -> None:
    async with writing() as (cluster, producer):
        bad: Any = [*numbers(3), (TOPIC, "text", None, (), 0, None), *numbers(3)]
        with pytest.raises(InvalidRecordError, match="value='text'"):
            await producer.enqueue_all(bad)
        with pytest.raises(InvalidRecordError, match="topic"):
            await producer.enqueue_all([("a b", b"", None, (), 0, None)])
        short: Any = [(TOPIC, b"value")]
        with pytest.raises(
            InvalidRecordError, match=r"six values .*None, for headers \(\), where there is none"
        ):
            await producer.enqueue_all(short)
        await producer.flush()
        assert stored(cluster) == [b"0", b"1", b"2"]
        assert used(producer) == 0


async def test_the_fields_of_a_record_are_read_once() -> None:
    """Those of a large one as well: an iterator is empty then."""
    async with writing(chunking=True, max_chunk_size=1024) as (cluster, producer):
        fields = [(TOPIC, value, None, (), 0, None) for value in (b"small", b"." * 3000, b"last")]
        records: Any = map(iter, fields)
        await producer.enqueue_all(records)
        await producer.flush()
        values = [value or b"" for value in stored(cluster)]
        assert (values[0], b"".join(values[1:-1]), values[-1]) == (b"small", b"." * 3000, b"last")


async def test_it_waits_for_memory_and_a_cancelled_call_frees_it() -> None:
    async with writing(buffer_bytes=1000) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").delay(1.0)
        writing_all = asyncio.create_task(producer.enqueue_all(numbers(1000)))
        await asyncio.sleep(0.5)
        assert "1 callers waiting" in repr(producer)
        writing_all.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing_all
        await producer.flush()
        assert used(producer) == 0
        assert 40 < len(stored(cluster)) < 60
        await producer.enqueue_all(numbers(1000))
        await producer.flush()
        assert len(stored(cluster)) > 1000


async def test_other_tasks_run_in_between() -> None:
    async with writing(batch_records=10) as (_, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await producer.enqueue_all(numbers(1000))
        counting.cancel()
        assert turns >= 100


async def test_errors_come_at_flush_and_a_closed_producer_refuses() -> None:
    async with writing(delivery_timeout=40.0) as (_, producer):
        await producer.enqueue_all(numbers(2, partition=99))
        with pytest.raises(
            DeliveryFailedError, match="partition=99 is not allowed: orders-99 does not exist"
        ):
            await producer.flush()
    with pytest.raises(ClosedError):
        await producer.enqueue_all(numbers(1))
    assert used(producer) == 0
