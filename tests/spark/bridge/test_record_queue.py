"""Batch ids, ranges, and the queue from which batches are made."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.model import Batch, TopicPartition
from asyncgroup.spark import BatchId, OffsetRange
from asyncgroup.spark.bridge.record_queue import Chunk, RecordQueue, chunk_ranges
from tests.spark.bridge.fakes import TOPIC, records


def chunk(partition: int, start: int, count: int = 10, at: float = 0.0) -> Chunk:
    batch = Batch(TOPIC, partition, records(partition, start, count))
    return Chunk(TopicPartition(TOPIC, partition), start, start + count, at, batch.to_arrow())


def spans(chunks: list[Chunk]) -> list[tuple[int, int, int]]:
    return [(each.tp.partition, each.start, each.end) for each in chunks]


# -- batch ids -----------------------------------------------------------------------------------------------------------


def test_a_batch_id_is_an_int_with_ranges() -> None:
    ranges = (OffsetRange("a", 0, 5, 9), OffsetRange("a", 1, 0, 3))
    batch_id = BatchId(7, ranges)
    assert batch_id == 7
    assert isinstance(batch_id, int)
    assert f"batch_id={batch_id}" == "batch_id=7"
    assert batch_id.ranges == ranges
    assert repr(batch_id) == "<BatchId 7: a-0[5, 9), a-1[0, 3)>"
    assert {7: "x"}[batch_id] == "x"


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_batch_id_survives_copying(clone: Any) -> None:
    cloned = clone(BatchId(3, [OffsetRange("a", 0, 5, 9)]))
    assert type(cloned) is BatchId
    assert (cloned, cloned.ranges) == (3, (OffsetRange("a", 0, 5, 9),))


def test_consecutive_chunks_become_one_range_and_ranges_are_sorted() -> None:
    chunks = [chunk(1, 40), chunk(0, 0), chunk(0, 10, 5), chunk(1, 50)]
    assert chunk_ranges(chunks) == (OffsetRange(TOPIC, 0, 0, 15), OffsetRange(TOPIC, 1, 40, 60))


# -- the queue -----------------------------------------------------------------------------------------------------------


def test_a_batch_has_chunks_of_all_partitions_in_order_of_arrival() -> None:
    queue = RecordQueue(1_000, 1 << 30)
    for each in (chunk(0, 0), chunk(1, 0), chunk(0, 10)):
        queue.put(each)
    assert spans(queue.pop_batch()) == [(0, 0, 10), (1, 0, 10), (0, 10, 20)]
    assert (queue.rows, queue.bytes, queue.oldest) == (0, 0, None)


def test_a_batch_respects_max_rows_and_the_rest_stays_queued() -> None:
    queue = RecordQueue(25, 1 << 30)
    for start in (0, 10, 20):
        queue.put(chunk(0, start, at=float(start)))
    assert queue.is_full
    assert spans(queue.pop_batch()) == [(0, 0, 10), (0, 10, 20)]
    assert queue.oldest == 20.0
    assert not queue.is_full
    assert spans(queue.pop_batch()) == [(0, 20, 30)]


def test_a_batch_respects_max_bytes() -> None:
    one = chunk(0, 0)
    queue = RecordQueue(1_000, one.bytes + 1)
    queue.put(one)
    queue.put(chunk(0, 10))
    assert spans(queue.pop_batch()) == [(0, 0, 10)]


def test_a_chunk_larger_than_the_limits_is_a_batch_of_its_own() -> None:
    queue = RecordQueue(5, 1)
    queue.put(chunk(0, 0))
    queue.put(chunk(1, 0))
    assert spans(queue.pop_batch()) == [(0, 0, 10)]


def test_a_full_queue_accepts_a_first_chunk_of_every_partition() -> None:
    queue = RecordQueue(10, 1 << 30)
    queue.put(chunk(0, 0))
    assert queue.is_full
    assert queue.accepts(TopicPartition(TOPIC, 0)), "two batches may be queued"
    queue.put(chunk(0, 10))
    assert not queue.accepts(TopicPartition(TOPIC, 0))
    assert queue.accepts(TopicPartition(TOPIC, 1))


def test_chunks_of_dropped_and_dead_partitions_are_removed() -> None:
    queue = RecordQueue(1_000, 1 << 30)
    for partition in (0, 1, 2):
        queue.put(chunk(partition, 0))
    queue.drop(TopicPartition(TOPIC, 0))
    assert queue.rows == 20
    assert spans(queue.pop_batch(lambda tp: tp.partition != 1)) == [(2, 0, 10)]
    assert (queue.rows, queue.oldest) == (0, None)


def test_requeued_chunks_come_first() -> None:
    queue = RecordQueue(1_000, 1 << 30)
    queue.put(chunk(0, 0))
    taken = [*queue.pop_batch()]
    queue.put(chunk(0, 10))
    queue.requeue(taken)
    assert spans(queue.pop_batch()) == [(0, 0, 10), (0, 10, 20)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=30),
    st.integers(1, 60),
    st.lists(st.booleans(), max_size=40),
)
def test_every_record_is_in_one_batch_in_the_order_of_its_partition(
    puts: list[tuple[int, int]], max_rows: int, takes: list[bool]
) -> None:
    queue = RecordQueue(max_rows, 1 << 30)
    ends: dict[int, int] = {}
    given_out: dict[int, list[tuple[int, int]]] = {}
    steps = iter(takes)

    def take() -> bool:
        taken = queue.pop_batch()
        assert len(taken) <= 1 or sum(each.rows for each in taken) <= max_rows
        for each in taken:
            given_out.setdefault(each.tp.partition, []).append((each.start, each.end))
        return bool(taken)

    for partition, count in puts:
        start = ends.get(partition, 0)
        queue.put(chunk(partition, start, count))
        ends[partition] = start + count
        if next(steps, False):
            take()
    while take():
        pass
    for partition, end in ends.items():
        position = 0
        for start, stop in given_out[partition]:
            assert start == position
            position = stop
        assert position == end
