"""What is counted inside a measured process: a window of time, and each partition's records and gaps in it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

__all__ = ["Meters", "PartitionMeter", "Settings", "Window"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a measured process is told; the same for the program in Go.

    Partition 0 of `watched` holds `records` and is read as fast as they come, partition 1 (where there is one) by a
    handler that pauses `pause` seconds after `every` records; with `every` 0 it reads nothing. With `every` above 1
    partition 0 is read like that. Every other topic is idle. The clock runs for `seconds`, `warm_up` after the first record.
    """

    bootstrap_servers: str
    group_id: str
    topics: list[str]
    watched: str
    records: int
    fetch_bytes: int
    pause: float
    every: int
    warm_up: float
    seconds: float


class Window:
    """The time in which records count; opens `warm_up` seconds after the first record of any partition."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.opens = self.closes = 0.0

    def begin(self, now: float) -> None:
        """A record came; only the first one matters."""
        if not self.opens:
            self.opens = now + self._settings.warm_up
            self.closes = self.opens + self._settings.seconds

    @property
    def is_over(self) -> bool:
        """Whether it has closed."""
        return bool(self.opens) and time.perf_counter() >= self.closes


class PartitionMeter:
    """One partition: its records within the window, and the longest time in which none came."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self.total = 0
        self._counted = self._spanned = 0
        self._first = self._last_counted = self._last = self._gap = 0.0

    def add(self, records: int) -> None:
        """So many records were handed to the handler just now."""
        now = time.perf_counter()
        window = self._window
        window.begin(now)
        self._update_gap(now)
        self.total += records
        if window.opens <= now <= window.closes:
            self._counted += records
            if not self._first:
                self._first = now
            else:
                self._spanned += records
            self._last_counted = now

    def _update_gap(self, now: float) -> None:
        window = self._window
        gap = min(now, window.closes) - max(self._last, window.opens)
        self._last = now
        self._gap = max(self._gap, gap)

    def figures(self, end: float) -> dict[str, Any]:
        """Records in so many seconds, the longest gap; `spanned` records in `span` seconds between first and last."""
        end = min(end, self._window.closes)
        self._update_gap(end)
        return {
            "records": self._counted,
            "seconds": end - self._window.opens,
            "gap": self._gap,
            "spanned": self._spanned,
            "span": self._last_counted - self._first,
        }


class Meters:
    """The meters of a measured process and the end of its measurement."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.window = Window(settings)
        self.fast, self.slow = PartitionMeter(self.window), PartitionMeter(self.window)
        self._all_read_at = 0.0

    def of(self, partition: int) -> PartitionMeter:
        """The meter of a partition of the watched topic."""
        return self.slow if partition else self.fast

    def check_over(self) -> bool:
        """Called now and then: whether the measurement is over, as time is up or nothing is left to read fast."""
        if not self._all_read_at and self.fast.total >= self.settings.records:
            self._all_read_at = time.perf_counter()
        return bool(self._all_read_at) or self.window.is_over

    def figures(self) -> dict[str, Any]:
        """What was measured, of both meters."""
        end = self._all_read_at or time.perf_counter()
        return {"fast": self.fast.figures(end), "slow": self.slow.figures(end)}
