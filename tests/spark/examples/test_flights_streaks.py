"""The stateful processor of the flights pipeline: streaks depend on event times, not on batches."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("pyspark")
pytest.importorskip("google.protobuf")

import pandas as pd
from pyspark.sql.streaming.tws_tester import TwsTester

from asyncgroup.spark.examples.flights.streaks import (
    LATE_MINUTES,
    MIN_STREAK_FLIGHTS,
    DelayStreak,
    DelayStreakProcessor,
    Departure,
    fold_departures,
)

MINUTE = 60_000


Flight = tuple[int, int | None, int | None]


def departures(*delays: int | None, start: int = 1) -> list[Flight]:
    """Return a flight for every minute from `start` on."""
    return [((start + n) * MINUTE, start + n, delay) for n, delay in enumerate(delays)]


class Simulated:
    """Spark's tester of a processor, with rows as lists instead of frames."""

    def __init__(self) -> None:
        self._tester = TwsTester(
            DelayStreakProcessor(),
            timeMode="EventTime",
            eventTimeExtractor=lambda row: int(row["scheduled_ms"]),
        )
        self.peekValueState = self._tester.peekValueState

    def test(self, key: str | None, rows: list[Flight]) -> list[Any]:
        frame = pd.DataFrame(rows, columns=["scheduled_ms", "row", "dep_delay"])
        return rows_of(self._tester.testInPandas(key, frame))

    def setWatermark(self, milliseconds: int) -> list[Any]:
        return rows_of(self._tester.setWatermark(milliseconds))


def rows_of(found: Any) -> list[Any]:
    return list(found.itertuples(index=False)) if isinstance(found, pd.DataFrame) else list(found)


def simulated() -> Simulated:
    return Simulated()


def streak(row: Any) -> tuple[str, int, int, int, int]:
    return row.carrier, row.first_ms // MINUTE, row.last_ms // MINUTE, row.flights, row.delay_sum


def test_a_streak_is_emitted_when_the_watermark_has_passed_its_end() -> None:
    test = simulated()
    late = departures(*[LATE_MINUTES] * MIN_STREAK_FLIGHTS, 0)
    assert test.test("UA", late) == []
    assert test.setWatermark(MIN_STREAK_FLIGHTS * MINUTE) == []
    (found,) = test.setWatermark((MIN_STREAK_FLIGHTS + 1) * MINUTE)
    assert streak(found) == (
        "UA",
        1,
        MIN_STREAK_FLIGHTS,
        MIN_STREAK_FLIGHTS,
        MIN_STREAK_FLIGHTS * LATE_MINUTES,
    )
    assert test.peekValueState("waiting", "UA") is None
    assert test.peekValueState("streak", "UA") is None


def test_an_open_streak_is_kept_until_it_ends() -> None:
    test = simulated()
    test.test("UA", departures(*[20] * 8))
    assert test.setWatermark(8 * MINUTE) == []
    assert test.peekValueState("streak", "UA") == (MINUTE, 8 * MINUTE, 8, 160)
    test.test("UA", departures(*[30] * 4, 14, start=9))
    (found,) = test.setWatermark(13 * MINUTE)
    assert streak(found) == ("UA", 1, 12, 12, 280)


@pytest.mark.parametrize("delay", [LATE_MINUTES - 1, 0, -10])
def test_a_punctual_departure_ends_a_streak(delay: int) -> None:
    going, ended = fold_departures(DelayStreak(0, 9, MIN_STREAK_FLIGHTS, 500), [Departure(10, 1, delay)])
    assert (going, ended) == (None, [DelayStreak(0, 9, MIN_STREAK_FLIGHTS, 500)])


def test_short_streaks_are_not_emitted() -> None:
    assert fold_departures(DelayStreak(0, 9, MIN_STREAK_FLIGHTS - 1, 500), [Departure(10, 1, 0)]) == (
        None,
        [],
    )


def test_cancelled_flights_neither_end_a_streak_nor_count() -> None:
    test = simulated()
    test.test("UA", departures(*[15, None] * MIN_STREAK_FLIGHTS, 0))
    (found,) = test.setWatermark(100 * MINUTE)
    assert streak(found) == ("UA", 1, 2 * MIN_STREAK_FLIGHTS - 1, MIN_STREAK_FLIGHTS, MIN_STREAK_FLIGHTS * 15)


def test_carriers_are_independent() -> None:
    test = simulated()
    for carrier in ("UA", "HA"):
        test.test(carrier, departures(*[15] * 6))
    assert test.setWatermark(6 * MINUTE) == []
    assert [test.peekValueState("streak", carrier)[2] for carrier in ("UA", "HA")] == [6, 6]


def test_heartbeats_have_no_carrier_and_no_streak() -> None:
    test = simulated()
    assert test.test(None, [(1, None, None)]) == []
    assert test.setWatermark(10 * MINUTE) == []


def plainly(rows: list[Flight]) -> list[tuple[str, int, int, int, int]]:
    """Compute the streaks from all sorted rows; without streaks that have not ended."""
    left = sorted((at // MINUTE, delay) for at, _, delay in rows if delay is not None)
    runs = [(late, list(run)) for late, run in groupby(left, lambda each: each[1] >= LATE_MINUTES)]
    return [
        ("UA", run[0][0], run[-1][0], len(run), sum(delay for _, delay in run))
        for late, run in runs[:-1]
        if late and len(run) >= MIN_STREAK_FLIGHTS
    ]


DELAYS = st.lists(
    st.sampled_from([None, 0, 14, 15, 16, 300, 300, 300, 300, 300, 300, 300, 300]), min_size=1, max_size=80
)


@given(DELAYS, st.randoms(use_true_random=False), st.integers(1, 30))
def test_streaks_do_not_depend_on_order_and_batches(
    delays: list[int | None], random: Any, disorder: int
) -> None:
    """Rows come up to `disorder` minutes late, in batches of any size; the watermark advances as in Spark."""
    rows = departures(*delays)
    arriving = sorted(rows, key=lambda row: row[0] + random.randrange(disorder) * MINUTE)
    test, found, newest, watermark = simulated(), [], 0, 0
    while arriving:
        size = random.randint(1, 12)
        batch, arriving = arriving[:size], arriving[size:]
        found += test.test("UA", random.sample(batch, len(batch)))
        newest = max([newest, *(row[0] for row in batch)])
        if newest - disorder * MINUTE > watermark:
            watermark = newest - disorder * MINUTE
            found += test.setWatermark(watermark)
    found += test.setWatermark(1_000 * MINUTE)
    assert [streak(each) for each in found] == plainly(rows)
