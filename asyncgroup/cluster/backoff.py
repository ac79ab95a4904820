"""Exponential backoff with jitter (KIP-580)."""

from __future__ import annotations

import random

__all__ = ["Backoff"]

JITTER = 0.2


class Backoff:
    """Pauses that double from `base` to `limit` seconds, each spread by a fifth either way.

    Without jitter a thousand clients of a broker that comes back would all knock at the same moment.
    """

    __slots__ = ("_base", "_limit", "_random", "failures")

    def __init__(self, base: float, limit: float, rng: random.Random) -> None:
        self._base, self._limit, self._random = base, limit, rng
        self.failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        pause = min(self._base * 2.0 ** min(self.failures, 30), self._limit)
        self.failures += 1
        return pause * self._random.uniform(1 - JITTER, 1 + JITTER)

    def reset(self) -> None:
        """Forget the failures: something worked."""
        self.failures = 0
