"""Splitting ranges like Spark's `KafkaOffsetRangeCalculator`, and combining them in tasks."""

from __future__ import annotations

import itertools
import random

import pytest

from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver.planner import TASK_OFFSETS, pack, pack_small, split


@pytest.mark.parametrize(
    ("given", "cores", "least", "expected"),
    [
        ((), 4, 1, []),
        ((5,), 4, 1, [[0]]),
        ((5, 5, 5), 2, 1, [[0, 2], [1]]),
        ((5, 5, 5), 2, 3, [[0], [1], [2]]),  # minPartitions
        ((TASK_OFFSETS, 5, 5, 5), 2, 1, [[0], [1, 2, 3]]),
        ((5, TASK_OFFSETS, TASK_OFFSETS, 5), 2, 1, [[0, 3], [1], [2]]),
        ((TASK_OFFSETS * 9,) * 3, 1, 1, [[0], [1], [2]]),  # large ranges are never combined
        ((TASK_OFFSETS // 2,) * 6, 1, 1, [[0, 3], [1, 4], [2, 5]]),
    ],
)
def test_small_partitions_are_combined(
    given: tuple[int, ...], cores: int, least: int, expected: list[list[int]]
) -> None:
    groups = pack_small(ranges(*given), cores, least)
    assert [[part.partition for part in group] for group in groups] == expected


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_a_thousand_small_partitions_make_few_tasks(cores: int) -> None:
    groups = pack_small(ranges(*([100] * 1_000)), cores)
    assert len(groups) == max(10, cores)
    assert sorted(part for group in groups for part in group) == sorted(ranges(*([100] * 1_000)))
    assert all(list(group) == sorted(group) for group in groups)


def ranges(*sizes: int) -> list[OffsetRange]:
    """Return a range for each size, from offset 10 on."""
    return [OffsetRange("t", number, 10, 10 + size) for number, size in enumerate(sizes)]


def sizes(pieces: list[OffsetRange]) -> list[tuple[int, int]]:
    return [(piece.partition, piece.end - piece.start) for piece in pieces]


@pytest.mark.parametrize(
    ("given", "least", "most", "expected"),
    [
        ((5, 5), None, None, [(0, 5), (1, 5)]),
        ((5, 0, -3), None, None, [(0, 5)]),
        ((5, 5), 2, None, [(0, 5), (1, 5)]),
        ((5, 5), 1, None, [(0, 5), (1, 5)]),
        ((10,), 3, None, [(0, 3), (0, 3), (0, 4)]),
        ((10, 10), 3, None, [(0, 5), (0, 5), (1, 5), (1, 5)]),  # 1.5 rounds up twice
        (
            (100, 1),
            4,
            None,
            [(0, 33), (0, 33), (0, 34), (1, 1)],
        ),  # the small range counts, and is not divided
        ((20, 10), 3, None, [(0, 10), (0, 10), (1, 10)]),
        ((2,), 5, None, [(0, 1), (0, 1)]),  # no more ranges than offsets
        ((10,), None, 4, [(0, 3), (0, 3), (0, 4)]),
        ((10, 4), None, 4, [(0, 3), (0, 3), (0, 4), (1, 4)]),
        ((10, 4), 3, 4, [(0, 3), (0, 3), (0, 4), (1, 4)]),  # already more than the minimum
        ((8,), 4, 4, [(0, 2), (0, 2), (0, 2), (0, 2)]),
        ((), 4, 4, []),
    ],
)
def test_computed_examples(given, least, most, expected):
    assert sizes(split(ranges(*given), least, most)) == expected


def test_split_ranges_cover_the_given_ones_in_order():
    rng = random.Random(3)
    for _ in range(500):
        given = ranges(
            *(rng.choice([0, -1, rng.randint(1, 9), rng.randint(1, 10**6)]) for _ in range(rng.randint(0, 8)))
        )
        least, most = rng.choice([None, rng.randint(1, 40)]), rng.choice([None, rng.randint(5000, 10**6)])
        pieces = split(given, least, most)
        assert pieces == split(given, least, most)
        assert all(piece.start < piece.end for piece in pieces)
        if most is not None:
            assert all(piece.end - piece.start <= most for piece in pieces)
        for part in given:
            own = [piece for piece in pieces if piece.partition == part.partition]
            joined = [(part.start, part.start), *((piece.start, piece.end) for piece in own)]
            assert all(before[1] == after[0] for before, after in itertools.pairwise(joined))
            assert joined[-1][1] == max(part.end, part.start)


def test_offsets_larger_than_the_precision_of_a_double():
    start = 2**62
    pieces = split([OffsetRange("t", 0, start, start + 10)], 3)
    assert [(piece.start - start, piece.end - start) for piece in pieces] == [(0, 3), (3, 6), (6, 10)]


# --- packing ----------------------------------------------------------------------------------------------------------


def loads(groups: list[tuple[OffsetRange, ...]]) -> list[int]:
    return [sum(part.end - part.start for part in group) for group in groups]


def test_without_a_number_of_tasks_each_range_has_its_own():
    assert pack(ranges(3, 2, 1)) == pack(ranges(3, 2, 1), 3) == pack(ranges(3, 2, 1), 9)
    assert pack(ranges(3, 2)) == [(part,) for part in ranges(3, 2)]
    assert pack([], 4) == []


def test_groups_are_about_equal():
    assert loads(pack(ranges(*[100] * 8), 2)) == [400, 400]
    assert sorted(loads(pack(ranges(7, 5, 4, 4, 4), 2))) == [11, 13]
    assert sorted(loads(pack(ranges(100, 1, 1, 1), 2))) == [3, 100]


def test_no_group_is_empty():
    assert [len(group) for group in pack(ranges(0, 0, 0, 0), 2)] == [2, 2]


def test_packing_any_ranges():
    rng = random.Random(4)
    for _ in range(300):
        given = split(ranges(*(rng.randint(1, 10**5) for _ in range(rng.randint(1, 30)))), None, 5000)
        tasks = rng.randint(1, 12)
        groups = pack(given, tasks)
        assert groups == pack(given, tasks)
        assert len(groups) == min(tasks, len(given))
        assert sorted(part for group in groups for part in group) == sorted(given)
        assert all(list(group) == sorted(group) and group for group in groups)
        total, largest = sum(loads(groups)), max(part.end - part.start for part in given)
        best = max(total / len(groups), largest)
        assert max(loads(groups)) <= best * 4 / 3 + largest  # Graham's bound, loosely
        assert max(loads(groups)) - min(loads(groups)) <= largest
