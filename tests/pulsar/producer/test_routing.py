"""Routing: hashes as in Java, round robin by time, one partition, growth."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from asyncgroup.hashing.java_string import java_string_hash
from asyncgroup.pulsar.producer.routing import HASHINGS, message_router


@pytest.mark.parametrize(
    ("text", "number"),
    # what `text.hashCode() & Integer.MAX_VALUE` is in Java
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("key1", 3288498),
        ("polygenelubricants", 0),  # hashCode is Integer.MIN_VALUE
        ("ä", 228),
        ("😀", 1772899),  # two UTF-16 units
    ],
)
def test_java_string_hash(text: str, number: int) -> None:
    assert java_string_hash(text) == number


@pytest.mark.parametrize(
    # test vectors of the Java and C++ clients (Murmur3_32HashTest, HashTest)
    ("text", "number"),
    [
        ("k1", 2110152746),
        ("k2", 1479966664),
        ("key1", 462881061),
        ("key2", 1936800180),
        ("key01", 39696932),
        ("key02", 751761803),
    ],
)
def test_murmur3(text: str, number: int) -> None:
    assert HASHINGS["murmur3_32"](text) == number


@given(st.text(st.characters(codec="utf-8")))
def test_hashes_are_31_bits(text: str) -> None:
    for hash_key in HASHINGS.values():
        assert 0 <= hash_key(text) < 2**31


def test_round_robin_moves_at_multiples_of_the_interval() -> None:
    now = 100.0
    router = message_router("round_robin", "java_string_hash", 0.01, 4, lambda: now, random.Random(1))
    first = router(None, 4)
    assert {router(None, 4) for _ in range(10)} == {first}
    seen = []
    for step in range(8):
        now = 100.0001 + 0.01 * step
        seen.append(router(None, 4))
    assert seen == [(first + step) % 4 for step in range(8)]


def test_without_batches_each_message_goes_to_the_next_partition() -> None:
    router = message_router("round_robin", "java_string_hash", 0, 3, lambda: 0.0, random.Random(1))
    first = router(None, 3)
    assert [router(None, 3) for _ in range(5)] == [(first + step) % 3 for step in range(1, 6)]


def test_a_single_partition_stays_as_partitions_are_added() -> None:
    router = message_router("single_partition", "java_string_hash", 0.01, 3, lambda: 0.0, random.Random(1))
    (only,) = {router(None, 3) for _ in range(10)}
    assert router(None, 30) == only


@pytest.mark.parametrize("routing", ["round_robin", "single_partition"])
@pytest.mark.parametrize("hashing", list(HASHINGS))
@pytest.mark.parametrize("interval", [0, 0.01])
def test_a_key_decides_before_the_mode(routing: str, hashing: str, interval: float) -> None:
    router = message_router(routing, hashing, interval, 7, lambda: 0.0, random.Random(1))
    for partitions in (2, 7, 64):
        assert router("eggs", partitions) == HASHINGS[hashing]("eggs") % partitions


@given(st.integers(1, 100), st.integers(1, 100), st.floats(0, 1e6))
def test_partitions_that_are_added_are_used(partitions: int, more: int, now: float) -> None:
    router = message_router(
        "round_robin", "java_string_hash", 0.01, partitions, lambda: now, random.Random(1)
    )
    assert 0 <= router(None, partitions) < partitions
    assert 0 <= router(None, partitions + more) < partitions + more
