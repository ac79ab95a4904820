"""What must come out, computed from the CSV in plain Python: without Kafka, without Spark, flight by flight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from asyncgroup.cli.demo.flights import Flight

__all__ = ["HourFigures", "HourKey", "PipelineFigures", "StreakFigures", "by_hour", "streaks"]

LATE: Final = 15
SHORTEST: Final = 10
"""Minutes, and departures: what the pipeline calls late, and a streak."""


class HourKey(NamedTuple):
    """A carrier in an hour: `start` in minutes since 1970, UTC."""

    carrier: str
    start: int


class HourFigures(NamedTuple):
    """Flights that were scheduled, those of them that left, and the sum of their delays in minutes."""

    flights: int
    departed: int
    delay_sum: int


class StreakFigures(NamedTuple):
    """Late departures of a carrier in a row: when the first and the last should have left (minutes since 1970, UTC)."""

    carrier: str
    first: int
    last: int
    flights: int
    mean_delay: float


@dataclass(frozen=True)
class PipelineFigures:
    """The results of the pipeline, or of the CSV."""

    hours: dict[HourKey, HourFigures]
    streaks: list[StreakFigures]

    @classmethod
    def of(cls, flights: Iterable[Flight]) -> PipelineFigures:
        """Of flights in any order."""
        flights = list(flights)
        return cls(by_hour(flights), streaks(flights))

    def differences(self, found: PipelineFigures) -> list[str]:
        """What is otherwise in `found`, in words; empty if all of it is equal."""
        hours = sorted(self.hours.items() ^ found.hours.items())
        wrong_hours = sorted({key for key, _ in hours})
        wrong_streaks = sorted(set(self.streaks) ^ set(found.streaks))
        twice = len(found.streaks) - len(set(found.streaks))
        said = [
            (wrong_hours, f"{len(wrong_hours):,} hours of carriers differ from the CSV: {_few(wrong_hours)}"),
            (wrong_streaks, f"{len(wrong_streaks):,} streaks differ from the CSV: {_few(wrong_streaks)}"),
            (twice, f"{twice:,} streaks are there more than once"),
        ]
        return [text for wrong, text in said if wrong]


def by_hour(flights: Iterable[Flight]) -> dict[HourKey, HourFigures]:
    """The figures of every hour in which a carrier had a flight."""
    sums: dict[HourKey, list[int]] = defaultdict(lambda: [0, 0, 0])
    for flight in flights:
        entry = sums[HourKey(flight.carrier, flight.scheduled // 60 * 60)]
        entry[0] += 1
        if flight.dep_delay is not None:
            entry[1] += 1
            entry[2] += flight.dep_delay
    return {key: HourFigures(*entry) for key, entry in sums.items()}


def streaks(flights: Iterable[Flight]) -> list[StreakFigures]:
    """Streaks that have ended, in order. Of a streak that goes on when the flights end, nothing is known."""
    left = [flight for flight in flights if flight.dep_delay is not None]
    left.sort(key=lambda flight: (flight.carrier, flight.scheduled, flight.row))
    return sorted(
        streak
        for carrier, its in groupby(left, lambda flight: flight.carrier)
        for streak in _of(carrier, its)
    )


def _of(carrier: str, flights: Iterable[Flight]) -> Iterator[StreakFigures]:
    runs = [
        (late, list(run)) for late, run in groupby(flights, lambda flight: (flight.dep_delay or 0) >= LATE)
    ]
    for late, run in runs[:-1]:
        if late and len(run) >= SHORTEST:
            delays = sum(flight.dep_delay or 0 for flight in run)
            yield StreakFigures(carrier, run[0].scheduled, run[-1].scheduled, len(run), delays / len(run))


def _few(keys: list[HourKey] | list[StreakFigures]) -> str:
    return ", ".join(f"{key[0]} at {key[1]}" for key in keys[:3]) + (", …" if len(keys) > 3 else "")
