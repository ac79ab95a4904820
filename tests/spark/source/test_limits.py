"""Limits of a batch: shares, delays, bytes."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.driver.limits import (
    BytesPerOffset,
    TriggerDelay,
    TriggerLimits,
    byte_limit,
    rate_limit,
)
from asyncgroup.spark.source.options.parser import read_settings
from asyncgroup.spark.source.options.settings import ReadSettings

LONG = 2**63 - 1
TPS = [TopicPartition("t", number) for number in range(6)]


def offsets(*values: int) -> dict[TopicPartition, int]:
    return dict(zip(TPS, values, strict=False))


@pytest.mark.parametrize(
    ("limit", "start", "end", "expected"),
    [
        (10, (0, 0), (100, 100), (5, 5)),
        (10, (0, 0), (90, 10), (9, 1)),
        (10, (50, 0), (140, 10), (59, 1)),
        (10, (0, 0), (1000, 1), (9, 1)),  # the small one is not starved: 0.01 becomes 1
        (1, (0, 0), (10, 10), (1, 1)),  # nor are any others
        (7, (0, 0), (10, 10), (3, 3)),  # 3.5 is rounded down
        (100, (0, 0), (10, 20), (10, 20)),  # never after the end
        (10, (5, 5), (5, 5), (5, 5)),
        (10, (5, 9), (5, 4), (5, 4)),  # went back: keeps its end
        (LONG, (0, 0), (LONG, 5), (LONG, 5)),
        (LONG, (LONG - 5, 0), (LONG, 10), (LONG, 10)),
    ],
)
def test_computed_examples(limit, start, end, expected):
    assert rate_limit(limit, offsets(*start), offsets(*end)) == offsets(*expected)


def test_new_partitions_start_at_their_first_offset():
    start, end = offsets(0), offsets(100, 200)
    assert rate_limit(10, start, end, {TPS[1]: 100}) == offsets(5, 105)
    assert rate_limit(10, start, end, {TPS[1]: 200}) == offsets(10, 200)
    # without it the number of offsets is unknown, and the partition keeps its end
    assert rate_limit(10, start, end) == offsets(10, 200)


def restated(limit: int, start: dict, end: dict, new: dict) -> dict:
    """A simple implementation of Spark's rule."""
    known = {tp: (start[tp] if tp in start else new[tp]) for tp in end if tp in start or tp in new}
    backlog = {tp: end[tp] - begin for tp, begin in known.items() if end[tp] > begin}
    everything = float(sum(backlog.values()))
    found = {}
    for tp, last in end.items():
        if tp not in backlog:
            found[tp] = last
            continue
        part = float(limit) * (float(backlog[tp]) / everything)
        whole = 1 if 0 < part < 1 else int(part)
        found[tp] = min(last, known[tp] + min(whole, LONG - known[tp]))
    return found


def test_any_offsets():
    rng = random.Random(5)
    for _ in range(2000):
        count = rng.randint(1, 6)
        start = {tp: rng.choice([0, rng.randint(0, 1000), 2**62]) for tp in TPS[:count] if rng.random() < 0.8}
        new = {tp: rng.randint(0, 50) for tp in TPS[:count] if tp not in start}
        base = {**new, **start}
        end = {
            tp: base[tp] + rng.choice([0, -1, rng.randint(0, 9), rng.randint(0, 10**6), 2**60]) for tp in base
        }
        limit = rng.choice([1, rng.randint(1, 100), rng.randint(1, 10**7), LONG])
        found = rate_limit(limit, start, end, new)
        assert found == restated(limit, start, end, new)
        for tp, offset in found.items():
            assert offset <= end[tp]
            assert offset > base[tp] or end[tp] <= base[tp]


# --- delays -----------------------------------------------------------------------------------------------------------


def test_a_batch_is_delayed_until_it_has_enough_offsets_or_max_delay():
    delay = TriggerDelay(10, max_delay=60.0)
    assert not delay.delays(offsets(1), offsets(0), now=1000.0)  # the first one is never delayed
    assert delay.delays(offsets(5), offsets(1), now=1001.0)
    assert delay.delays(offsets(10), offsets(1), now=1059.0)
    assert not delay.delays(offsets(11), offsets(1), now=1059.5)  # enough
    assert delay.delays(offsets(12), offsets(11), now=1060.0)  # counted from the batch before
    assert delay.delays(offsets(12), offsets(11), now=1119.4)
    assert not delay.delays(offsets(12), offsets(11), now=1119.5)  # long enough
    assert delay.delays(offsets(13), offsets(12), now=1119.6)


def test_new_partitions_count_from_zero():
    delay = TriggerDelay(10, max_delay=60.0)
    delay.delays({}, {}, now=0.0)
    assert delay.delays(offsets(5, 4), offsets(0), now=1.0)
    assert not delay.delays(offsets(5, 5), offsets(0), now=1.0)


def test_no_delay_at_all():
    delay = TriggerDelay(10, max_delay=0.0)
    assert not any(delay.delays({}, {}, now=5.0) for _ in range(3))


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_sizes_are_moving_averages():
    sizes = BytesPerOffset()
    assert sizes.mean(TPS[0]) is None
    sizes.observe(TPS[0], 1000, 10)
    assert sizes.mean(TPS[0]) == sizes.mean(TPS[1]) == 100.0
    sizes.observe(TPS[0], 2000, 10)
    assert sizes.mean(TPS[0]) == pytest.approx(130.0)
    sizes.observe(TPS[1], 300, 10)
    assert sizes.mean(TPS[2]) == pytest.approx(80.0)
    for _ in range(50):
        sizes.observe(TPS[0], 50, 10)
    assert sizes.mean(TPS[0]) == pytest.approx(5.0, rel=0.01)
    sizes.retain({TPS[1]: 0})
    assert sizes.mean(TPS[0]) == pytest.approx(30.0)


def test_empty_observations_are_ignored():
    sizes = BytesPerOffset()
    sizes.observe(TPS[0], 100, 0)
    sizes.observe(TPS[0], -1, 10)
    assert sizes.mean(TPS[0]) is None


def test_a_limit_in_bytes():
    sizes = BytesPerOffset()
    sizes.observe(TPS[0], 100, 1)
    sizes.observe(TPS[1], 10, 1)
    start, end = offsets(0, 0), offsets(1000, 1000)
    assert byte_limit(11_000, start, end, None, sizes) == offsets(100, 100)
    assert byte_limit(110_000, start, end, None, sizes) == end
    assert byte_limit(1, start, end, None, sizes) == offsets(1, 1)
    assert byte_limit(11_000, offsets(900), offsets(1000, 1000), {TPS[1]: 900}, sizes) == end


def test_without_known_sizes_each_partition_gets_one_offset():
    assert byte_limit(10**9, offsets(0, 5), offsets(10, 5), None, BytesPerOffset()) == offsets(1, 5)


def test_offsets_without_bytes():
    sizes = BytesPerOffset()
    sizes.observe(TPS[0], 0, 1000)
    assert byte_limit(1, offsets(0), offsets(10), None, sizes) == offsets(10)


def test_bytes_of_any_offsets():
    rng = random.Random(6)
    for _ in range(500):
        sizes = BytesPerOffset()
        start = {tp: rng.randint(0, 100) for tp in TPS}
        end = {
            tp: begin + rng.choice([0, rng.randint(1, 9), rng.randint(1, 10**6)])
            for tp, begin in start.items()
        }
        for tp in TPS:
            sizes.observe(tp, rng.randint(1, 10**6), rng.randint(1, 1000))
        limit = rng.choice([1, 10**4, 10**8, 10**12])
        found = byte_limit(limit, start, end, None, sizes)
        taken = sum((found[tp] - start[tp]) * (sizes.mean(tp) or 0) for tp in TPS)
        least = sum(sizes.mean(tp) or 0 for tp in TPS)
        assert taken <= limit + least
        assert all(min(start[tp] + 1, end[tp]) <= found[tp] <= end[tp] for tp in TPS)
        if taken < limit - least:
            assert found == end


# --- all limits -------------------------------------------------------------------------------------------------------


def admission(**changes: float | None) -> TriggerLimits:
    options = {"kafka.bootstrap.servers": "x:1", "subscribe": "t"}
    settings: ReadSettings = replace(read_settings(options, stream=True), **changes)
    return TriggerLimits(settings)


def test_no_limits():
    assert admission().end_offsets(offsets(0), offsets(50, 60), None, now=0.0) == offsets(50, 60)


def test_the_smaller_of_both_maximums():
    both = admission(max_offsets_per_trigger=100, max_bytes_per_trigger=1000)
    both.sizes.observe(TPS[0], 100, 1)
    both.sizes.observe(TPS[1], 1, 1)
    assert both.end_offsets(offsets(0, 0), offsets(1000, 1000), None, now=0.0) == offsets(9, 9)
    both.sizes.observe(TPS[0], 0, 10**9)
    for _ in range(100):
        both.sizes.observe(TPS[0], 1, 1)
    assert both.end_offsets(offsets(0, 0), offsets(1000, 1000), None, now=0.0) == offsets(50, 50)


def test_minimum_and_maximum_like_sparks_composite():
    both = admission(min_offsets_per_trigger=10, max_offsets_per_trigger=20, max_trigger_delay=60.0)
    assert both.end_offsets(offsets(0), offsets(5), None, now=0.0) == offsets(5)
    assert both.end_offsets(offsets(5), offsets(9), None, now=1.0) == offsets(5)
    assert both.end_offsets(offsets(5), offsets(500), None, now=2.0) == offsets(25)
    assert both.end_offsets(offsets(25), offsets(30), None, now=62.0) == offsets(30)


def test_shares_are_finite():
    assert math.isfinite(rate_limit(LONG, {TPS[0]: 0}, {TPS[0]: LONG})[TPS[0]])
