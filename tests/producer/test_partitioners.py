"""Partitioners: the same partition as Java for every key, and equal shares for records without one."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from aiokafka.partitioner import DefaultPartitioner, murmur2 as aiokafka_murmur2
from hypothesis import given, strategies as st

from asyncgroup.hashing.murmur2 import murmur2, partition_for_key, to_positive
from asyncgroup.producer.partitioners import StickyPartition

# vectors of Kafka's UtilsTest.testMurmur2, as signed 32-bit integers
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def signed(number: int) -> int:
    return number - (1 << 32) if number & 0x80000000 else number


@pytest.mark.parametrize(("key", "expected"), JAVA.items())
def test_murmur2_of_javas_test_vectors(key: bytes, expected: int) -> None:
    assert signed(murmur2(key)) == expected


@given(st.binary(max_size=80))
def test_murmur2_equals_aiokafkas(key: bytes) -> None:
    assert murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=80), st.integers(1, 10_000))
def test_partition_for_key_equals_aiokafkas(key: bytes, partitions: int) -> None:
    numbers = list(range(partitions))
    assert partition_for_key(key, partitions) == DefaultPartitioner()(key, numbers, numbers)


@pytest.mark.parametrize(
    ("number", "positive"), [(0, 0), (-1, 2**31 - 1), (-(2**31), 0), (5, 5), (2**32 - 1, 2**31 - 1)]
)
def test_to_positive_clears_the_sign_bit(number: int, positive: int) -> None:
    assert to_positive(number) == positive


def test_keys_are_spread_evenly() -> None:
    counts = Counter(partition_for_key(b"key-%d" % number, 7) for number in range(70_000))
    assert set(counts) == set(range(7))
    assert all(9_300 < count < 10_700 for count in counts.values())


def test_sticky_moves_to_another_partition_each_time() -> None:
    sticky = StickyPartition(random.Random(1))
    seen = [sticky.next_partition(range(5)) for _ in range(1000)]
    assert all(one != other for one, other in itertools.pairwise(seen))
    assert all(150 < count < 250 for count in Counter(seen).values())


def test_sticky_stays_if_there_is_no_other() -> None:
    sticky = StickyPartition(random.Random(1))
    assert [sticky.next_partition([3]) for _ in range(3)] == [3, 3, 3]


@given(st.integers(0, 2**32), st.lists(st.sets(st.integers(0, 20), min_size=1), min_size=1, max_size=20))
def test_sticky_chooses_only_available_partitions(seed: int, steps: list[set[int]]) -> None:
    sticky = StickyPartition(random.Random(seed))
    for available in steps:
        before = sticky.current
        now = sticky.next_partition(sorted(available))
        assert now in available
        assert now != before or available == {before}
