"""What the demonstration expects of its pipeline: figures by hour, streaks, and words for what differs."""

from __future__ import annotations

from asyncgroup.cli.demo.expected import (
    HourFigures,
    HourKey,
    PipelineFigures,
    StreakFigures,
    by_hour,
    streaks,
)
from asyncgroup.cli.demo.flights import Flight
from asyncgroup.spark.examples.flights import streaks as example


def flight(row: int, scheduled: int, delay: int | None, carrier: str = "UA") -> Flight:
    return Flight(row, carrier, delay, b"", scheduled, 0)


def test_an_hour_begins_with_its_first_minute() -> None:
    found = by_hour([flight(1, 59, 1), flight(2, 60, 10), flight(3, 119, None), flight(4, 120, 7)])
    assert found == {
        HourKey("UA", 0): HourFigures(1, 1, 1),
        HourKey("UA", 60): HourFigures(2, 1, 10),
        HourKey("UA", 120): HourFigures(1, 1, 7),
    }


def test_streaks_are_of_one_carrier_and_in_the_order_of_the_schedule() -> None:
    late = [flight(n, 100 - n, 15 + n) for n in range(10)]
    others = [flight(50 + n, 91 + n, 0, "HA") for n in range(10)]
    ended = flight(99, 101, 14)
    assert streaks([*late, *others, ended]) == [StreakFigures("UA", 91, 100, 10, 19.5)]
    assert streaks([*late, *others]) == [], "nobody knows how it goes on"
    assert streaks([*late[1:], *others, ended]) == [], "nine are no streak"


def test_the_example_means_the_same_by_late_and_by_streak() -> None:
    """Both are written down twice on purpose: the expectation shares no code with what it checks."""
    from asyncgroup.cli.demo import expected

    assert (expected.LATE, expected.SHORTEST) == (example.LATE_MINUTES, example.MIN_STREAK_FLIGHTS)


def test_every_difference_is_said() -> None:
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
