"""How fast a group catches up: rates and the time until its lag is 0, from the lag at several times. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

__all__ = ["LagRate", "LagRates", "PartitionLagPoint", "total_rate"]

WINDOW: Final = 60.0
"""Seconds over which rates are averaged."""

K = TypeVar("K", bound=Hashable)


class PartitionLagPoint(NamedTuple):
    """The lag of a partition at one time."""

    log_end: int
    """The log end offset."""
    lag: int
    """The records that are not consumed yet."""


@dataclass(frozen=True, slots=True)
class LagRate:
    """The rates of a partition, or of all partitions of a group."""

    lag: int
    """The records that are not consumed yet."""
    produced: float
    """Records per second by which the log grows."""
    consumed: float
    """Records per second that the group consumes: those by which the log grows and the lag does not."""

    @property
    def catch_up(self) -> float | None:
        """Seconds until the lag is 0 at these rates; None if it does not fall."""
        if self.lag == 0:
            return 0.0
        gain = self.consumed - self.produced
        return self.lag / gain if gain > 0 else None


class LagRates(Generic[K]):
    """The lags of the last minute. `add` returns the rates of each partition that has two points in it."""

    def __init__(self, window: float = WINDOW) -> None:
        self._window = window
        self._points: dict[K, deque[tuple[float, PartitionLagPoint]]] = {}

    def add(self, now: float, lags: Mapping[K, PartitionLagPoint]) -> dict[K, LagRate]:
        """Add the lags at the time `now` (seconds of a monotonic clock); partitions that are missing are forgotten."""
        self._points = {key: self._points.get(key, deque()) for key in lags}
        rates = {}
        for key, point in lags.items():
            points = self._points[key]
            if points and _starts_again(points[-1][1], point):
                points.clear()
            points.append((now, point))
            # the first point may be as old as the window, so that a long interval still has two points
            while len(points) > 2 and points[1][0] <= now - self._window:
                points.popleft()
            if (rate := _rate(points)) is not None:
                rates[key] = rate
        return rates


def _starts_again(before: PartitionLagPoint, point: PartitionLagPoint) -> bool:
    """Whether the log was truncated or recreated, or the group's offset went back: rates over this would mean nothing."""
    return point.log_end < before.log_end or point.lag - before.lag > point.log_end - before.log_end


def _rate(points: deque[tuple[float, PartitionLagPoint]]) -> LagRate | None:
    (begun, first), (now, last) = points[0], points[-1]
    passed = now - begun
    if passed <= 0:
        return None
    produced = last.log_end - first.log_end
    consumed = produced - (last.lag - first.lag)
    return LagRate(last.lag, produced / passed, consumed / passed)


def total_rate(rates: Iterable[LagRate]) -> LagRate | None:
    """Return the rates of a group from those of its partitions; None without any."""
    each = list(rates)
    if not each:
        return None
    return LagRate(
        sum(rate.lag for rate in each),
        sum(rate.produced for rate in each),
        sum(rate.consumed for rate in each),
    )
