"""Batch numbers and their metadata, retries, sizes of frames, statistics."""

from __future__ import annotations

import random
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from asyncgroup.checks import check_metadata
from asyncgroup.errors import ConfigError
from asyncgroup.model import Batch
from asyncgroup.spark import BatchId, ForeachBatch, OffsetRange, QueueForeachBatch, Retry
from asyncgroup.spark.bridge.batches import RetryState
from asyncgroup.spark.bridge.commits import BatchNumbers, from_metadata, to_metadata
from asyncgroup.spark.bridge.frames import resize_batches
from asyncgroup.spark.bridge.statistics import BridgeMetrics
from tests.spark.bridge.fakes import TOPIC, FakeSpark, records

# -- numbers -------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**18 - 1), st.integers(0, 2**63 - 1))
def test_metadata_round_trip(number: int, end: int) -> None:
    metadata = to_metadata(number, end)
    assert from_metadata(metadata) == (number, end)
    assert len(check_metadata(metadata)) <= 53


@pytest.mark.parametrize(
    "strange",
    [
        "",
        "7",
        "spark",
        "foreachBatch/1:",
        "foreachBatch/1:7",
        "foreachBatch/1:7@",
        "foreachBatch/1:-1@3",
        "foreachBatch/1:7@-3",
        "foreachBatch/1:007@3",
        "foreachBatch/1:7@3 ",
        "foreachBatch/1:7@3\n",
        "foreachBatch/1:٧@3",
        "foreachBatch/2:7@3",
        "foreachBatch/1:" + "9" * 19 + "@3",
        '{"batch": 7}',
    ],
)
def test_metadata_of_other_programs_is_no_batch_number(strange: str) -> None:
    assert from_metadata(strange) is None
    numbers = BatchNumbers()
    numbers.observe(strange)
    assert numbers.next() == 0


def test_numbers_continue_after_the_largest_found_and_never_decrease() -> None:
    numbers = BatchNumbers()
    for metadata in (to_metadata(6, 0), "by hand", to_metadata(41, 0), to_metadata(3, 0)):
        numbers.observe(metadata)
    assert [numbers.next(), numbers.next()] == [42, 43]
    numbers.observe(to_metadata(10, 0))
    assert numbers.next() == 44


# -- retries -------------------------------------------------------------------------------------------------------------


def pauses(policy: Any, *errors: BaseException) -> list[float | None]:
    retries = RetryState(policy, random.Random(1))
    return [retries.retry.seconds if retries.failed(error) else None for error in errors]


def test_retries_back_off_and_end() -> None:
    found = pauses(Retry(times=4, backoff=1.0, backoff_max=3.0), *[OSError("no")] * 5)
    assert found[4] is None
    for pause, middle in zip(found[:4], (1.0, 2.0, 3.0, 3.0), strict=True):
        assert pause is not None
        assert middle * 0.8 <= pause <= middle * 1.2


def test_only_the_listed_exceptions_are_retried() -> None:
    policy = Retry(only=(OSError,))
    assert pauses(policy, ConnectionResetError("gone"))[0] is not None
    assert pauses(policy, ValueError("wrong")) == [None]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_only_exceptions_are_retried(error: BaseException) -> None:
    assert pauses(Retry(), error) == [None]


def test_without_a_policy_nothing_is_retried() -> None:
    assert pauses("raise", OSError("no")) == [None]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"times": 0}, "times=0"),
        ({"backoff": -1.0}, "backoff=-1.0"),
        ({"backoff_max": float("nan")}, "backoff_max=nan"),
        ({"only": ValueError}, "only="),
        ({"only": (KeyboardInterrupt,)}, "only="),
    ],
)
def test_a_bad_policy_is_refused(arguments: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        Retry(**arguments)


# -- frames --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=12), st.integers(1, 16))
def test_a_frame_is_split_into_even_parts_with_every_row_in_order(counts: list[int], cores: int) -> None:
    chunks, start = [], 0
    for count in counts:
        offsets = pa.array(range(start, start + count), pa.int64())
        chunks.append(pa.RecordBatch.from_arrays([offsets], names=["offset"]))
        start += count
    parts = resize_batches(chunks, cores)
    assert [offset for part in parts for offset in part["offset"].to_pylist()] == list(range(start))
    wanted = max(2_000, -(-start // cores))
    assert all(part.num_rows <= 2 * wanted for part in parts)
    assert len(parts) <= max(1, 2 * start / wanted)


def test_large_rows_make_more_parts_and_large_batches_are_not_copied() -> None:
    values = list(records(0, 0, 12_000))
    for record in values:
        record.value = b"v" * 2_000
    whole = Batch(TOPIC, 0, values).to_arrow()
    parts = resize_batches([whole], 2)
    assert len(parts) == 6
    assert {part.num_rows for part in parts} == {2_000}
    assert parts[0]["value"].buffers()[2].address == whole["value"].buffers()[2].address


# -- statistics ----------------------------------------------------------------------------------------------------------


def test_statistics_have_totals_and_the_current_state() -> None:
    metrics = BridgeMetrics()
    metrics.record_call(0.25, 1.5)
    metrics.record_failure(OSError("the warehouse\nis closed"), 10.0)
    metrics.record_call(0.25, 2.0)
    done = BatchId(7, [OffsetRange("a", 0, 5, 9)])
    metrics.record_batch(done, 4, 400)
    now = metrics.snapshot(30, 3_000, (BatchId(8), 11.0), 12.5)
    assert (now.batches, now.rows, now.bytes, now.failures) == (1, 4, 400, 1)
    assert (now.frame_seconds, now.fn_seconds) == (0.5, 3.5)
    assert (now.running, now.running_for, now.last_batch) == (8, 1.5, 7)
    assert (now.last_error, now.last_error_age) == ("OSError: the warehouse\nis closed", 2.5)
    assert repr(now) == (
        "<BridgeStatistics: 1 batches, 4 rows, 400 bytes; 3.5 s in the function; 1 failures, 0 interrupted; "
        "30 rows queued; batch 8 for 1.5 s; last error 2.5 s ago: OSError: the warehouse is closed>"
    )
    assert now.as_dict()["last_batch"] == {"number": 7, "ranges": ["a-0[5, 9)"]}


def test_statistics_without_any_batch() -> None:
    now = BridgeMetrics().snapshot(0, 0, None, 5.0)
    assert (now.running, now.running_for, now.last_error, now.last_error_age) == (None, None, None, None)
    assert str(now) == "0 batches, 0 rows, 0 bytes; 0.0 s in the function"


# -- arguments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bridge", [ForeachBatch, QueueForeachBatch])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"maxOffsetsPerTrigger": 5}, "maxOffsetsPerTrigger=5 is not allowed: there is no such argument; max_rows=…"),
        ({"checkpointLocation": "c"}, "there is no such argument; the group's committed offsets take its place"),
        ({"maxwait": 3}, "there is no such argument; did you mean max_wait?"),
        ({"include_headers": "false"}, "include_headers='false' is not allowed: True or False"),
        ({"max_wait": 5000}, "max_wait=5000 is not allowed: in seconds; durations are seconds: 5.0?"),
        ({"max_rows": "5"}, "max_rows='5' is not allowed: a whole number, 1 or more"),
    ],
)  # fmt: skip
def test_arguments_that_are_refused(bridge: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        bridge(FakeSpark(), lambda df, number: None, **arguments)
