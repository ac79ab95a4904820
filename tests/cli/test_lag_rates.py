"""Rates of a group and the time to catch up, from lags at several times."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.cli.lag_rates import LagRate, LagRates, PartitionLagPoint, total_rate


def test_a_group_that_consumes_faster_than_records_come() -> None:
    rates = LagRates[str]()
    assert rates.add(100.0, {"a": PartitionLagPoint(1000, 400)}) == {}
    found = rates.add(110.0, {"a": PartitionLagPoint(1100, 300)})
    assert found == {"a": LagRate(300, 10.0, 20.0)}
    assert found["a"].catch_up == 30.0


def test_a_group_that_does_not_catch_up_and_one_that_has() -> None:
    assert LagRate(300, 10.0, 10.0).catch_up is None
    assert LagRate(300, 10.0, 0.0).catch_up is None
    assert LagRate(0, 10.0, 10.0).catch_up == 0.0


@pytest.mark.parametrize(
    "after",
    [PartitionLagPoint(1000, 900), PartitionLagPoint(10, 0), PartitionLagPoint(1100, 501)],
    ids=["the offset was reset", "the topic was created again", "reset while records came"],
)
def test_what_starts_again_has_no_rate_yet(after: PartitionLagPoint) -> None:
    rates = LagRates[str]()
    rates.add(0.0, {"a": PartitionLagPoint(1000, 400)})
    assert rates.add(1.0, {"a": after}) == {}
    assert rates.add(2.0, {"a": after}) == {"a": LagRate(after.lag, 0.0, 0.0)}


def test_a_partition_that_was_away_is_new() -> None:
    rates = LagRates[str]()
    rates.add(0.0, {"a": PartitionLagPoint(10, 5)})
    assert rates.add(1.0, {}) == {}
    assert rates.add(2.0, {"a": PartitionLagPoint(20, 5)}) == {}


def test_two_samples_at_one_time_have_no_rate() -> None:
    rates = LagRates[str]()
    rates.add(1.0, {"a": PartitionLagPoint(10, 5)})
    assert rates.add(1.0, {"a": PartitionLagPoint(10, 5)}) == {}


def test_rates_are_those_of_the_last_minute() -> None:
    rates = LagRates[str](window=60.0)
    end, found = 0, dict[str, LagRate]()
    for now in range(0, 300, 10):
        end += 1000 if now < 150 else 10
        found = rates.add(float(now), {"a": PartitionLagPoint(end, 0)})
    assert found["a"] == LagRate(0, 1.0, 1.0)
    seldom = LagRates[str](window=60.0)
    for now in (0, 600, 1200):
        found = seldom.add(float(now), {"a": PartitionLagPoint(now, 0)})
    assert found["a"].produced == 1.0


def test_a_group_is_the_sum_of_its_partitions() -> None:
    assert total_rate([]) is None
    assert total_rate([LagRate(1, 2.0, 3.0), LagRate(10, 20.0, 30.0)]) == LagRate(11, 22.0, 33.0)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100), st.integers(0, 100)), min_size=2, max_size=8)
)
def test_rates_are_those_of_what_was_produced_and_consumed(steps: list[tuple[int, int, int]]) -> None:
    rates = LagRates[str](window=1e9)
    now, end, committed = 0.0, 0, 0
    found = rates.add(now, {"a": PartitionLagPoint(0, 0)})
    for passed, produced, consumed in steps:
        now, end = now + passed, end + produced
        committed = min(end, committed + consumed)
        found = rates.add(now, {"a": PartitionLagPoint(end, end - committed)})
    assert found["a"].produced == pytest.approx(end / now)
    assert found["a"].consumed == pytest.approx(committed / now)
