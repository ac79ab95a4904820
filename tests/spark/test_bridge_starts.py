"""Where a ForeachBatch begins: numbers that count on from commits, offsets that the sink knows."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgroup import OffsetManager
from asyncgroup.testing import VirtualKafka
from tests.spark.virtual_bridge import (
    GROUP,
    Sink,
    committed,
    loop_jobs,
    member,
    metadata,
    produce,
    run_until,
)

__all__ = ["loop_jobs"]

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.virtual,
    pytest.mark.kafka(topics={"numbers": 4}),
]


async def test_numbers_go_on_where_the_last_owner_of_a_partition_has_stopped(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 40)
    sink = Sink()
    await run_until(virtual_kafka, sink, lambda: sum(committed(virtual_kafka).values()) == 40, max_rows=8)
    numbers = [int(batch_id) for _, batch_id in sink.calls]
    assert numbers == list(range(len(numbers)))
    found = metadata(virtual_kafka)
    assert set(found) == {0, 1, 2, 3}
    assert max(found.values(), key=lambda text: int(text.split(":")[1])) == f"foreachBatch/1:{numbers[-1]}"

    # another handler, as after a restart
    await produce(virtual_kafka, 4, start=40)
    again = Sink()
    await run_until(virtual_kafka, again, lambda: sum(committed(virtual_kafka).values()) == 44)
    assert int(again.calls[0][1]) == numbers[-1] + 1


async def test_metadata_of_strangers_is_no_trouble(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 8)
    async with OffsetManager(virtual_kafka.bootstrap_servers, GROUP) as manager:
        for partition, text in enumerate(["foreachBatch/1:99", "foreachBatch/9:1e9", "by hand", ""]):
            (await manager.manage("numbers", partition)).mark(1, text)
        await manager.commit()
    sink = Sink()
    await run_until(virtual_kafka, sink, lambda: sum(committed(virtual_kafka).values()) == 8)
    assert next(int(batch_id) for _, batch_id in sink.calls) == 100
    assert sink.values == [4, 5, 6, 7]


async def test_the_leader_epoch_is_committed_with_the_offset(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 4)
    await run_until(virtual_kafka, Sink(), lambda: sum(committed(virtual_kafka).values()) == 4)
    found = virtual_kafka.group(GROUP).offsets
    assert {offset.leader_epoch for offset in found.values()} == {0}


class SinkWithOffsets(Sink):
    """Stores its offsets; `stored` is where it says it is."""

    def __init__(self, stored: dict[int, int]) -> None:
        super().__init__()
        self.stored = stored
        self.asked: list[list[int]] = []

    def start_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        self.asked.append([tp.partition for tp in partitions])
        return {tp: self.stored[tp.partition] for tp in partitions if tp.partition in self.stored}


async def test_a_session_starts_where_the_sink_is_ahead_of_the_group_or_behind_it(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 40)
    async with OffsetManager(virtual_kafka.bootstrap_servers, GROUP) as manager:
        for partition in range(4):
            (await manager.manage("numbers", partition)).mark(5, "foreachBatch/1:7")
        await manager.commit()
    sink = SinkWithOffsets({0: 2, 1: 8, 2: 5})
    await run_until(virtual_kafka, sink, lambda: sum(committed(virtual_kafka).values()) == 40)
    assert sink.asked == [[0, 1, 2, 3]]
    starts: dict[int, int] = {}
    for _, batch_id in sink.calls:
        for part in batch_id.ranges:
            starts.setdefault(part.partition, part.start)
    assert starts == {0: 2, 1: 8, 2: 5, 3: 5}
    assert {int(batch_id) for _, batch_id in sink.calls} >= {8}
    assert committed(virtual_kafka) == dict.fromkeys(range(4), 10)


async def test_a_sink_behind_the_group_takes_the_commit_back(virtual_kafka: VirtualKafka) -> None:
    """Otherwise the group would start beyond rows that the sink has lost, were it asked in another way."""
    await produce(virtual_kafka, 8)
    async with OffsetManager(virtual_kafka.bootstrap_servers, GROUP) as manager:
        for partition in range(4):
            (await manager.manage("numbers", partition)).mark(2)
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
async def test_a_sink_that_cannot_say_where_it_is_ends_the_session(
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
