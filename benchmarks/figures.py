"""Summaries of measurements for `benchmarks.consume`: medians, ranges, and ratios within a round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.clients import CASES

__all__ = ["Measurement", "Spread", "Summary", "summarize"]

MILLION = 1e6


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One case in one round: `counted` records in `seconds`, after a start that took `start_seconds`.

    `committed` is the number of records below the group's committed offsets afterwards.
    """

    case: str
    partitions: int
    round: int
    records: int
    bytes: int
    counted: int
    seconds: float
    cpu_seconds: float
    start_seconds: float
    start_cpu_seconds: float
    committed: int

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.counted / self.seconds if self.seconds else 0.0

    @property
    def megabytes(self) -> float:
        """Megabytes (10⁶ bytes) of keys and values per second."""
        return self.rate * self.bytes / self.records / MILLION if self.records else 0.0

    @property
    def cpu_per_million(self) -> float:
        """CPU seconds per million records."""
        return self.cpu_seconds / self.counted * MILLION if self.counted else 0.0


class Spread(NamedTuple):
    """Median, minimum and maximum of a figure over all rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of the values of all rounds."""
        return cls(statistics.median(values), min(values), max(values))


class Summary(NamedTuple):
    """The figures of one case over all rounds; `ratio` and `cpu_ratio` are None if its baseline wasn't measured."""

    case: str
    partitions: int
    rate: Spread
    megabytes: Spread
    cpu_per_million: Spread
    start_seconds: Spread
    ratio: Spread | None
    cpu_ratio: Spread | None


def summarize(measurements: Sequence[Measurement]) -> list[Summary]:
    """Return one summary per number of partitions and case, in the order of `CASES`."""
    by_case: dict[int, dict[str, dict[int, Measurement]]] = {}
    for each in measurements:
        by_case.setdefault(each.partitions, {}).setdefault(each.case, {})[each.round] = each
    return [_summary(name, found) for found in by_case.values() for name in CASES if name in found]


def _summary(name: str, by_case: Mapping[str, Mapping[int, Measurement]]) -> Summary:
    own, base = by_case[name], by_case.get(CASES[name].baseline, {})

    def spread(value: Callable[[Measurement], float]) -> Spread:
        return Spread.of([value(measurement) for measurement in own.values()])

    # ratios are taken within a round: on a busy machine rounds differ more than clients
    pairs = [(own[index], base[index]) for index in own if index in base]
    return Summary(
        name,
        next(iter(own.values())).partitions,
        spread(lambda each: each.rate),
        spread(lambda each: each.megabytes),
        spread(lambda each: each.cpu_per_million),
        spread(lambda each: each.start_seconds),
        _ratio([(one.rate, other.rate) for one, other in pairs]),
        _ratio([(one.cpu_per_million, other.cpu_per_million) for one, other in pairs]),
    )


def _ratio(pairs: Sequence[tuple[float, float]]) -> Spread | None:
    values = [one / other for one, other in pairs if other]
    return Spread.of(values) if values else None
