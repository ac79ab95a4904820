"""Count each partition's records within a time window, and find its longest gap; used in the measured processes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

__all__ = ["Meters", "PartitionMeter", "Settings", "Window"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a measured process, also of the Go program.

    Partition 0 of the topic `watched` contains `records` records. `every` selects how it is read, and partition 1 if
    that exists:

    - 0: partition 0 at full speed, partition 1 not at all;
    - 1: partition 0 at full speed, partition 1 with a pause of `pause` seconds after each record;
    - above 1: partition 0 with such a pause after every `every` records.

    All other topics are idle. The window lasts `seconds` and opens `warm_up` seconds after the first record.
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
    """The time in which records count; it opens `warm_up` seconds after the first record of any partition."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.opens = self.closes = 0.0

    def begin(self, now: float) -> None:
        """Set the window's times; only the first call has an effect."""
        if not self.opens:
            self.opens = now + self._settings.warm_up
            self.closes = self.opens + self._settings.seconds

    @property
    def is_over(self) -> bool:
        """Whether the window has closed."""
        return bool(self.opens) and time.perf_counter() >= self.closes


class PartitionMeter:
    """Counts one partition's records within the window, and the longest time without a record."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self.total = 0
        self._counted = self._spanned = 0
        self._first = self._last_counted = self._last = self._gap = 0.0

    def add(self, records: int) -> None:
        """Count records that were just delivered to the handler."""
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
        """Return the figures of the window: records, seconds, and the longest gap.

        `spanned` records were delivered after the first one, in the `span` seconds between the first and the last.
        """
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
    """The meters of partition 0 (fast) and 1 (slow), and the end of the measurement."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.window = Window(settings)
        self.fast = PartitionMeter(self.window)
        self.slow = PartitionMeter(self.window)
        self._all_read_at = 0.0

    def of(self, partition: int) -> PartitionMeter:
        """Return the meter of a partition of the watched topic."""
        return self.slow if partition else self.fast

    def check_over(self) -> bool:
        """Return whether the window has closed or the fast partition is read completely; call this repeatedly.

        The time of the first call after the last record is the end of the measurement.
        """
        if not self._all_read_at and self.fast.total >= self.settings.records:
            self._all_read_at = time.perf_counter()
        return bool(self._all_read_at) or self.window.is_over

    def figures(self) -> dict[str, Any]:
        """Return the figures of both partitions."""
        end = self._all_read_at or time.perf_counter()
        return {"fast": self.fast.figures(end), "slow": self.slow.figures(end)}
