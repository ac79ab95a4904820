"""Measure how long each phase of the demonstration takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["Phases"]

OTHER: Final = "other"
"""The name for the time outside all phases."""


class Phases:
    """Seconds by phase, which add up to the time since the start, also when rounded."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._last = time()  # the end of the last lap
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the block's time to this phase; a name can be used repeatedly."""
        self._lap(OTHER)
        try:
            yield
        finally:
            self._lap(name)

    def _lap(self, name: str) -> None:
        now = self._time()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    def seconds(self, digits: int) -> dict[str, float]:
        """Return the rounded seconds by phase, in the order in which they began, then `other`, then `all`, the sum."""
        self._lap(OTHER)
        names = [*(name for name in self._seconds if name != OTHER), OTHER]
        rounded, exact, shown = {}, 0.0, 0.0
        for name in names:
            # the running total is rounded instead of each number, so that the rounded numbers add up
            exact += self._seconds[name]
            rounded[name] = round(round(exact, digits) - shown, digits)
            shown = round(exact, digits)
        return {**rounded, "all": shown}

    def line(self) -> str:
        """Return a line such as `21.4 s: produce 3.2, group 12.1, other 6.1`."""
        seconds = self.seconds(1)
        total = seconds.pop("all")
        return f"{total:.1f} s: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
