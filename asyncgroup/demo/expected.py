"""The expected results of the demonstration's Spark queries, computed from the CSV in plain Python, without Kafka and Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from asyncgroup.demo.flights import Flight

__all__ = ["HourFigures", "HourKey", "PipelineFigures", "StreakFigures", "by_hour", "streaks"]

LATE: Final = 15
"""Minutes of delay from which on a departure is late."""
SHORTEST: Final = 10
"""Late departures in a row that make a streak, at least."""


class HourKey(NamedTuple):
    """A carrier and an hour, whose `start` is in minutes since 1970, UTC."""

    carrier: str
    start: int


class HourFigures(NamedTuple):
    """The numbers of scheduled and of departed flights, and the sum of the delays of the latter in minutes."""

    flights: int
    departed: int
    delay_sum: int


class StreakFigures(NamedTuple):
    """A streak: late departures of a carrier in a row."""

    carrier: str
    first: int
    """The scheduled departure of the first flight, in minutes since 1970, UTC."""
    last: int
    """The same of the last flight."""
    flights: int
    mean_delay: float
    """Minutes."""


@dataclass(frozen=True)
class PipelineFigures:
    """The results of the pipeline, or those expected from the CSV."""

    hours: dict[HourKey, HourFigures]
    streaks: list[StreakFigures]

    @classmethod
    def of(cls, flights: Iterable[Flight]) -> PipelineFigures:
        """Compute the expected results of flights, which may be in any order."""
        flights = list(flights)
        return cls(by_hour(flights), streaks(flights))

    def differences(self, found: PipelineFigures) -> list[str]:
        """Describe how `found` differs from these expected results; empty if it is equal."""
        hours = sorted(self.hours.items() ^ found.hours.items())
        wrong_hours = sorted({key for key, _ in hours})
        wrong_streaks = sorted(set(self.streaks) ^ set(found.streaks))
        twice = len(found.streaks) - len(set(found.streaks))
        checks = [
            (wrong_hours, f"{len(wrong_hours):,} hours of carriers differ from the CSV: {_few(wrong_hours)}"),
            (wrong_streaks, f"{len(wrong_streaks):,} streaks differ from the CSV: {_few(wrong_streaks)}"),
            (twice, f"{twice:,} streaks are there more than once"),
        ]
        return [text for wrong, text in checks if wrong]


def by_hour(flights: Iterable[Flight]) -> dict[HourKey, HourFigures]:
    """Return the figures of every hour in which a carrier had a flight."""
    sums: dict[HourKey, list[int]] = defaultdict(lambda: [0, 0, 0])
    for flight in flights:
        entry = sums[HourKey(flight.carrier, flight.scheduled // 60 * 60)]
        entry[0] += 1
        if flight.dep_delay is not None:
            entry[1] += 1
            entry[2] += flight.dep_delay
    return {key: HourFigures(*entry) for key, entry in sums.items()}


def streaks(flights: Iterable[Flight]) -> list[StreakFigures]:
    """Return the streaks that have ended, sorted.

    A carrier's last run of late departures is left out, as it may not have ended.
    """
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
