"""The partitions of a column of keys are those that the producer chooses for each key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from asyncgroup.hashing.murmur2 import partition_for_key
from asyncgroup.spark.sink.key_partitions import LONGEST_KEY, key_partitions
from asyncgroup.spark.sink.writer import outgoing_rows

KEYS = st.lists(st.none() | st.binary(max_size=20) | st.binary(min_size=250, max_size=262), max_size=30)


def expected(keys: list[bytes | None], partitions: int) -> list[int | None]:
    return [
        None if key is None or len(key) > LONGEST_KEY else partition_for_key(key, partitions) for key in keys
    ]


@given(KEYS, st.integers(1, 1000), st.integers(0, 5), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_as_one_by_one(keys: list[bytes | None], partitions: int, skipped: int, kind: Any) -> None:
    column = pa.array(keys, kind).slice(skipped)
    assert key_partitions(column, partitions) == expected(keys[skipped:], partitions)


@pytest.mark.parametrize("keys", [[], [None, None], [b""], [b"", b""]])
def test_columns_without_bytes(keys: list[bytes | None]) -> None:
    assert key_partitions(pa.array(keys, pa.binary()), 7) == expected(keys, 7)


def test_rows_with_a_partition_keep_it() -> None:
    keys = pa.array([b"a", b"b", None, b"long" * 100])
    batch = pa.record_batch({"key": keys, "value": pa.array([b"v"] * 4)})
    chosen = [row[4] for row in outgoing_rows(batch, "t", 16)]
    assert chosen == [partition_for_key(b"a", 16), partition_for_key(b"b", 16), None, None]
    assert [row[4] for row in outgoing_rows(batch, "t")] == [None] * 4
    given = batch.append_column("partition", pa.array([3, None, 1, 0], pa.int32()))
    assert [row[4] for row in outgoing_rows(given, "t", 16)] == [3, None, 1, 0]


def test_text_keys_are_hashed_as_utf_8() -> None:
    batch = pa.record_batch({"key": pa.array(["ä", "b"]), "value": pa.array(["x", "y"])})
    assert [row[4] for row in outgoing_rows(batch, "t", 50)] == [
        partition_for_key("ä".encode(), 50), partition_for_key(b"b", 50)
    ]  # fmt: skip
