"""How long each phase of the demonstration took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["Phases"]

OTHER: Final = "other"
"""What all time outside a phase is counted as."""


class Phases:
    """Seconds by phase. They add up to the time since the beginning, also as rounded numbers."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._last = time()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time under this name; a name may come more than once."""
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
        """The phases in the order in which they began, then the time outside of them, rounded; and `all`, their sum."""
        self._lap(OTHER)
        names = [*(name for name in self._seconds if name != OTHER), OTHER]
        rounded, exact, shown = {}, 0.0, 0.0
        for name in names:
            # rounding the running total, and not each number, keeps the sum right
            exact += self._seconds[name]
            rounded[name] = round(round(exact, digits) - shown, digits)
            shown = round(exact, digits)
        return {**rounded, "all": shown}

    def line(self) -> str:
        """`21.4 s: produce 3.2, group 12.1, other 6.1`."""
        seconds = self.seconds(1)
        total = seconds.pop("all")
        return f"{total:.1f} s: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
