"""Wall clock of a cluster: the machine's clock read once, then advanced by the loop's time.

In virtual time, a day on the loop is therefore also a day for retention and timestamps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Clock", "WallClock"]

Clock: TypeAlias = Callable[[], int]
"""Returns the time of day in ms since 1970."""


class WallClock:
    """Callable that returns the time in ms since 1970.

    `now` returns the loop's time in seconds; `start` is the wall-clock time (ms) at construction, by default the
    machine's.
    """

    __slots__ = ("_began", "_now", "_start")

    def __init__(self, now: Callable[[], float], start: int | None = None) -> None:
        self._now = now
        self._began = now()  # loop time of construction
        self._start = time.time_ns() // 1_000_000 if start is None else start

    def __repr__(self) -> str:
        return f"<WallClock {self()}>"

    def __call__(self) -> int:
        return self._start + int((self._now() - self._began) * 1000)
