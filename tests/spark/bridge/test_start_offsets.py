"""The start of a ForeachBatch: batch numbers continued from commits, start offsets from the sink."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from asyncgroup import OffsetManager
from asyncgroup.spark import BatchId
from asyncgroup.spark.bridge.commits import from_metadata
from asyncgroup.testing import VirtualKafka
from tests.scenario.reading.test_read_committed import Transactions
from tests.spark.bridge.virtual import (
    GROUP,
    IN_VIRTUAL_TIME,
    Sink,
    committed,
    member,
    metadata,
    produce,
    run_until,
    until,
)

pytestmark = [*IN_VIRTUAL_TIME]


async def test_batch_numbers_continue_after_those_of_the_last_owner(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 40)
    sink = Sink()
    await run_until(virtual_kafka, sink, lambda: sum(committed(virtual_kafka).values()) == 40, max_rows=8)
    numbers = [int(batch_id) for _, batch_id in sink.calls]
    assert numbers == list(range(len(numbers)))
    found = metadata(virtual_kafka)
    assert set(found) == {0, 1, 2, 3}
    last = max(map(from_metadata, found.values()), key=lambda each: each.number if each else -1)
    assert last == (numbers[-1], 10)

    # a new handler, as after a restart
    await produce(virtual_kafka, 4, start=40)
    again = Sink()
    await run_until(virtual_kafka, again, lambda: sum(committed(virtual_kafka).values()) == 44)
    assert int(again.calls[0][1]) == numbers[-1] + 1


async def test_metadata_of_other_programs_is_ignored(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 8)
    async with OffsetManager(virtual_kafka.bootstrap_servers, GROUP) as manager:
        for partition, text in enumerate(["foreachBatch/1:99@1", "foreachBatch/9:1e9", "by hand", ""]):
            (await manager.manage("numbers", partition)).mark_offset(1, text)
        await manager.commit()
    sink = Sink()
    await run_until(virtual_kafka, sink, lambda: sum(committed(virtual_kafka).values()) == 8)
    assert next(int(batch_id) for _, batch_id in sink.calls) == 100
    assert sink.values == [4, 5, 6, 7]


class UnluckySink(Sink):
    """A sink that fails after it has stored the batch with the number `bad`."""

    bad = 1

    def __call__(self, batches: list[Any], batch_id: BatchId) -> float:
        took = super().__call__(batches, batch_id)
        if batch_id == self.bad:
            raise OSError("written, but nobody knows")
        return took


async def test_a_redelivered_range_has_the_same_start_after_transaction_markers(
    virtual_kafka: VirtualKafka,
) -> None:
    """Committed offsets are after a transaction's marker; for sinks that overwrite by the start, ranges must not change."""
    topic = SimpleNamespace(cluster=virtual_kafka, topic="numbers")
    writer, sink = Transactions(topic), UnluckySink()  # type: ignore[arg-type]  # all that it asks for
    writer.write(0, b"0", b"1")
    writer.end(commit=True)
    group, handler = member(virtual_kafka, sink)
    async with group:
        run = asyncio.create_task(group.run("numbers", handler))
        await until(lambda: committed(virtual_kafka) == {0: 3})
        writer.write(0, b"2", b"3")
        writer.end(commit=True)
        with pytest.raises(OSError, match="nobody knows"):
            await run
    assert metadata(virtual_kafka) == {0: "foreachBatch/1:0@2"}
    sink.bad = -1
    await run_until(virtual_kafka, sink, lambda: committed(virtual_kafka) == {0: 6})
    assert sorted(sink.files) == [(0, 0), (0, 2)]
    assert sink.values == [0, 1, 2, 3]


async def test_the_leader_epoch_is_committed_with_the_offset(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 4)
    await run_until(virtual_kafka, Sink(), lambda: sum(committed(virtual_kafka).values()) == 4)
    found = virtual_kafka.group(GROUP).offsets
    assert {offset.leader_epoch for offset in found.values()} == {0}


class SinkWithOffsets(Sink):
    """A sink that stores its offsets; `stored` are the offsets that it returns."""

    def __init__(self, stored: dict[int, int]) -> None:
        super().__init__()
        self.stored = stored
        self.asked: list[list[int]] = []

    def start_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        self.asked.append([tp.partition for tp in partitions])
        return {tp: self.stored[tp.partition] for tp in partitions if tp.partition in self.stored}


async def test_a_session_starts_at_the_sinks_offsets_before_or_after_the_groups(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 40)
    async with OffsetManager(virtual_kafka.bootstrap_servers, GROUP) as manager:
        for partition in range(4):
            (await manager.manage("numbers", partition)).mark_offset(5, f"foreachBatch/1:7@{5 - partition}")
        await manager.commit()
    sink = SinkWithOffsets({0: 2, 1: 8, 2: 5})
    await run_until(virtual_kafka, sink, lambda: sum(committed(virtual_kafka).values()) == 40)
    assert sink.asked == [[0, 1, 2, 3]]
    starts: dict[int, int] = {}
    for _, batch_id in sink.calls:
        for part in batch_id.ranges:
            starts.setdefault(part.partition, part.start)
    assert starts == {0: 2, 1: 8, 2: 5, 3: 2}, "at the sink's offset, or where the last batch ended"
    assert {int(batch_id) for _, batch_id in sink.calls} >= {8}
    assert committed(virtual_kafka) == dict.fromkeys(range(4), 10)


async def test_a_smaller_offset_of_the_sink_resets_the_committed_offset(virtual_kafka: VirtualKafka) -> None:
    """Otherwise a program that uses the committed offset would skip rows that the sink has lost."""
    await produce(virtual_kafka, 8)
    async with OffsetManager(virtual_kafka.bootstrap_servers, GROUP) as manager:
        for partition in range(4):
            (await manager.manage("numbers", partition)).mark_offset(2)
        await manager.commit()
    sink = SinkWithOffsets({0: 0})
    sink.seconds = lambda _: 1_000.0
    await run_until(virtual_kafka, sink, lambda: bool(sink.calls))
    assert committed(virtual_kafka) == {0: 0, 1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "a function that returns offsets by TopicPartition"),
        ({("numbers", 9): 0}, "offsets of the partitions asked for"),
        ({("numbers", 0): -2}, "0 or more"),
        (LookupError("no table"), "no table"),
        (StopIteration("odd"), "raised StopIteration"),
    ],
)
async def test_invalid_start_offsets_end_the_session(
    virtual_kafka: VirtualKafka, answer: Any, words: str
) -> None:
    def start_from(_partitions: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    sink = Sink()
    group, handler = member(virtual_kafka, sink, start_from=start_from)
    async with group:
        with pytest.raises(Exception, match=words) as caught:
            await group.run("numbers", handler)
    assert "raised by on_assigned of ForeachBatch" in "\n".join(caught.value.__notes__)
    assert sink.calls == []
