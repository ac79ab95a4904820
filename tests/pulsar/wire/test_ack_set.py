"""Sets of indexes of a batch, as integers and as words."""

from __future__ import annotations

import time

from hypothesis import given, strategies as st

from asyncgroup.pulsar.wire.ack_set import bits_of, full_set, indexes_of, set_of, words_of
from tests.pulsar.wire.strategies import drawn, signed

SETS = st.sets(st.integers(0, 200))


@given(SETS)
@drawn(300)
def test_words_and_bits_are_inverse(indexes: set[int]) -> None:
    bits = set_of(indexes, 201)
    assert bits == sum(1 << index for index in indexes)
    words = words_of(bits)
    assert bits_of(words) == bits
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
    assert not words or words[-1] != 0, "high words that are zero are left out"
    assert [*indexes_of(bits)] == sorted(indexes)


@given(st.lists(signed(64), max_size=4))
@drawn(300)
def test_any_words_are_a_set(words: list[int]) -> None:
    bits = bits_of(words)
    again = words_of(bits)
    assert words[: len(again)] == again
    assert not any(words[len(again) :]), "only zeros at the end are lost"


def test_missing_words_are_acknowledged() -> None:
    assert bits_of([]) == 0
    assert [*indexes_of(bits_of([0, 1]) & full_set(70))] == [64]
    assert [*indexes_of(bits_of([5]) & full_set(70))] == [0, 2]
    assert words_of(0) == []
    assert words_of(full_set(64)) == [-1]
    assert words_of(full_set(65)) == [-1, 1]


def test_sets_of_all_and_of_none() -> None:
    assert full_set(0) == 0
    assert [*indexes_of(full_set(9))] == [*range(9)]
    assert [*indexes_of(0)] == []
    assert set_of([], 0) == set_of([-1, 5, 6], 5) == 0


def test_large_sets_take_little_time() -> None:
    start = time.process_time()
    size = 500_000
    bits = set_of(range(0, size, 2), size)
    assert sum(1 for _ in indexes_of(bits)) == size // 2
    assert bits_of(words_of(bits)) == bits
    assert time.process_time() - start < 10, "the time is not proportional to the size"
