"""The expected results of the demonstration's pipeline: figures by hour, streaks, and the report of differences."""

from __future__ import annotations

from asyncgroup.demo.expected import (
    HourFigures,
    HourKey,
    PipelineFigures,
    StreakFigures,
    by_hour,
    streaks,
)
from asyncgroup.demo.flights import Flight


def flight(row: int, scheduled: int, delay: int | None, carrier: str = "UA") -> Flight:
    return Flight(row, carrier, delay, b"", scheduled, 0)


def test_figures_by_hour() -> None:
    found = by_hour([flight(1, 59, 1), flight(2, 60, 10), flight(3, 119, None), flight(4, 120, 7)])
    assert found == {
        HourKey("UA", 0): HourFigures(1, 1, 1),
        HourKey("UA", 60): HourFigures(2, 1, 10),
        HourKey("UA", 120): HourFigures(1, 1, 7),
    }


def test_streaks_by_carrier_in_scheduled_order() -> None:
    late = [flight(n, 100 - n, 15 + n) for n in range(10)]
    others = [flight(50 + n, 91 + n, 0, "HA") for n in range(10)]
    ended = flight(99, 101, 14)
    assert streaks([*late, *others, ended]) == [StreakFigures("UA", 91, 100, 10, 19.5)]
    assert streaks([*late, *others]) == [], "a streak that has not ended does not count"
    assert streaks([*late[1:], *others, ended]) == [], "nine departures are not a streak"


def test_the_thresholds_equal_those_of_the_pipeline() -> None:
    """They are defined twice on purpose: the expected results share no code with the pipeline."""
    from asyncgroup.demo import expected
    from asyncgroup.spark.examples.flights import streaks as example  # imports pandas

    assert (expected.LATE, expected.SHORTEST) == (example.LATE_MINUTES, example.MIN_STREAK_FLIGHTS)


def test_every_difference_is_reported() -> None:
    wanted = PipelineFigures(
        {HourKey("UA", 0): HourFigures(1, 1, 1), HourKey("UA", 60): HourFigures(1, 1, 1)},
        [StreakFigures("UA", 0, 9, 10, 20.0)],
    )
    assert wanted.differences(wanted) == []
    found = PipelineFigures(
        {HourKey("UA", 0): HourFigures(2, 1, 1), HourKey("UA", 60): HourFigures(1, 1, 1)},
        [
            StreakFigures("UA", 0, 9, 10, 20.0),
            StreakFigures("HA", 0, 9, 10, 20.0),
            StreakFigures("HA", 0, 9, 10, 20.0),
        ],
    )
    assert wanted.differences(found) == [
        "1 hours of carriers differ from the CSV: UA at 0",
        "1 streaks differ from the CSV: HA at 0",
        "1 streaks are there more than once",
    ]
