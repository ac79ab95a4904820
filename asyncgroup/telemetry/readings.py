"""Readings: the values of metrics by their labels. Pure state, for counters that grow and for gauges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from asyncgroup.telemetry.metric_names import METRICS, Metric

__all__ = ["HistogramReading", "LabelValues", "Readings"]

LabelValues: TypeAlias = tuple[str, ...]
"""The values of a metric's labels, in the order of the table."""


class HistogramReading:
    """A histogram: how many values each bucket has, not cumulated, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self, counts: list[int], total: float = 0.0) -> None:
        self.counts = counts
        """One for each bound, and one more for values above the last."""
        self.sum = total

    def __repr__(self) -> str:
        return f"<HistogramReading: {self.count} values, sum {self.sum:g}>"

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def copy(self) -> HistogramReading:
        """Return a copy that does not change."""
        return HistogramReading(self.counts[:], self.sum)


class Readings:
    """Values of the metrics in the table. Raises KeyError for a name that is not there."""

    def __init__(self) -> None:
        self.numbers: dict[str, dict[LabelValues, float]] = {}
        """Counters and gauges, by name and labels."""
        self.histograms: dict[str, dict[LabelValues, HistogramReading]] = {}
        """Histograms, by name and labels."""
        self.on_observe: Callable[[str, float, LabelValues], None] | None = None
        """Called with each value of a histogram, for exporters that count by themselves."""
        for metric in METRICS.values():
            if metric.kind == "histogram":
                self.histograms[metric.name] = {}
            else:
                self.numbers[metric.name] = {}

    def __repr__(self) -> str:
        series = sum(map(len, self.numbers.values())) + sum(map(len, self.histograms.values()))
        return f"<Readings: {series} series>"

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Increase a counter, or a gauge that is a sum."""
        values = self.numbers[name]
        values[labels] = values.get(labels, 0) + amount

    def gauge(self, name: str, value: float, *labels: str) -> None:
        """Read a gauge of one client: it is combined with those of others that have the same labels."""
        values = self.numbers[name]
        before = values.get(labels)
        values[labels] = value if before is None else _combined(METRICS[name], before, value)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        metric, histograms = METRICS[name], self.histograms[name]
        histogram = histograms.get(labels)
        if histogram is None:
            histogram = histograms[labels] = HistogramReading([0] * (len(metric.bounds) + 1))
        if self.on_observe is not None:
            self.on_observe(name, value, labels)
        histogram.counts[metric.bucket(value)] += 1
        histogram.sum += value

    def copy(self) -> Readings:
        """Return a copy to which more can be added."""
        copied = Readings()
        copied.numbers = {name: values.copy() for name, values in self.numbers.items()}
        copied.histograms = {
            name: {labels: histogram.copy() for labels, histogram in values.items()}
            for name, values in self.histograms.items()
        }
        return copied


def _combined(metric: Metric, before: float, value: float) -> float:
    if metric.combine == "max":
        return max(before, value)
    return min(before, value) if metric.combine == "min" else before + value
