"""The pure parts: batch ids, ranges, and what goes into a batch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.model import Batch, TopicPartition
from asyncgroup.spark import BatchId, OffsetRange
from asyncgroup.spark.bridge.gatherer import Gatherer, Piece, ranges_of
from tests.spark.bridge.fakes import TOPIC, records


def piece(partition: int, start: int, count: int = 10, at: float = 0.0) -> Piece:
    batch = Batch(TOPIC, partition, records(partition, start, count))
    return Piece(TopicPartition(TOPIC, partition), start, start + count, at, batch.to_arrow())


def spans(pieces: list[Piece]) -> list[tuple[int, int, int]]:
    return [(each.tp.partition, each.start, each.end) for each in pieces]


# -- batch ids -----------------------------------------------------------------------------------------------------------


def test_a_batch_id_is_an_int_that_knows_its_ranges() -> None:
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


def test_ranges_join_the_pieces_of_a_partition_and_are_sorted() -> None:
    pieces = [piece(1, 40), piece(0, 0), piece(0, 10, 5), piece(1, 50)]
    assert ranges_of(pieces) == (OffsetRange(TOPIC, 0, 0, 15), OffsetRange(TOPIC, 1, 40, 60))


# -- the gatherer --------------------------------------------------------------------------------------------------------


def test_a_batch_takes_pieces_of_all_partitions_in_order_of_arrival() -> None:
    gatherer = Gatherer(1_000, 1 << 30)
    for each in (piece(0, 0), piece(1, 0), piece(0, 10)):
        gatherer.put(each)
    assert spans(gatherer.take()) == [(0, 0, 10), (1, 0, 10), (0, 10, 20)]
    assert (gatherer.rows, gatherer.bytes, gatherer.oldest) == (0, 0, None)


def test_a_batch_keeps_to_its_limits_and_the_rest_waits() -> None:
    gatherer = Gatherer(25, 1 << 30)
    for start in (0, 10, 20):
        gatherer.put(piece(0, start, at=float(start)))
    assert gatherer.is_full
    assert spans(gatherer.take()) == [(0, 0, 10), (0, 10, 20)]
    assert gatherer.oldest == 20.0
    assert not gatherer.is_full
    assert spans(gatherer.take()) == [(0, 20, 30)]


def test_bytes_are_a_limit_as_well() -> None:
    one = piece(0, 0)
    gatherer = Gatherer(1_000, one.bytes + 1)
    gatherer.put(one)
    gatherer.put(piece(0, 10))
    assert spans(gatherer.take()) == [(0, 0, 10)]


def test_a_piece_larger_than_the_limits_makes_a_batch_alone() -> None:
    gatherer = Gatherer(5, 1)
    gatherer.put(piece(0, 0))
    gatherer.put(piece(1, 0))
    assert spans(gatherer.take()) == [(0, 0, 10)]


def test_a_full_gatherer_still_takes_a_first_piece_of_every_partition() -> None:
    gatherer = Gatherer(10, 1 << 30)
    gatherer.put(piece(0, 0))
    assert gatherer.is_full
    assert gatherer.may_pull(TopicPartition(TOPIC, 0)), "two batches may wait"
    gatherer.put(piece(0, 10))
    assert not gatherer.may_pull(TopicPartition(TOPIC, 0))
    assert gatherer.may_pull(TopicPartition(TOPIC, 1))


def test_dropped_and_dead_partitions_leave_nothing_behind() -> None:
    gatherer = Gatherer(1_000, 1 << 30)
    for partition in (0, 1, 2):
        gatherer.put(piece(partition, 0))
    gatherer.drop(TopicPartition(TOPIC, 0))
    assert gatherer.rows == 20
    assert spans(gatherer.take(lambda tp: tp.partition != 1)) == [(2, 0, 10)]
    assert (gatherer.rows, gatherer.oldest) == (0, None)


def test_what_is_put_back_comes_first_again() -> None:
    gatherer = Gatherer(1_000, 1 << 30)
    gatherer.put(piece(0, 0))
    taken = [*gatherer.take()]
    gatherer.put(piece(0, 10))
    gatherer.put_back(taken)
    assert spans(gatherer.take()) == [(0, 0, 10), (0, 10, 20)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=30),
    st.integers(1, 60),
    st.lists(st.booleans(), max_size=40),
)
def test_every_record_is_taken_once_in_the_order_of_its_partition(
    puts: list[tuple[int, int]], max_rows: int, takes: list[bool]
) -> None:
    gatherer = Gatherer(max_rows, 1 << 30)
    ends: dict[int, int] = {}
    given_out: dict[int, list[tuple[int, int]]] = {}
    steps = iter(takes)

    def take() -> bool:
        taken = gatherer.take()
        assert len(taken) <= 1 or sum(each.rows for each in taken) <= max_rows
        for each in taken:
            given_out.setdefault(each.tp.partition, []).append((each.start, each.end))
        return bool(taken)

    for partition, count in puts:
        start = ends.get(partition, 0)
        gatherer.put(piece(partition, start, count))
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
