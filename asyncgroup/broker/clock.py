"""The time of day of a cluster: one look at the machine's clock, carried on by the loop's time.

So in virtual time a day that passes on the loop is a day for retention and timestamps, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["WallClock"]


class WallClock:
    """Calling it gives ms since 1970; `now` is the loop's time in seconds, `start` the time of day at the moment of
    making it (default: the machine's).
    """

    __slots__ = ("_began", "_now", "_start")

    def __init__(self, now: Callable[[], float], start: int | None = None) -> None:
        self._now, self._began = now, now()
        self._start = time.time_ns() // 1_000_000 if start is None else start

    def __repr__(self) -> str:
        return f"<WallClock {self()}>"

    def __call__(self) -> int:
        return self._start + int((self._now() - self._began) * 1000)
