"""Exponential backoff with jitter (KIP-580)."""

from __future__ import annotations

import random
from collections.abc import Callable

from asyncgroup.checks import check_duration_or_zero

__all__ = ["Backoff"]

JITTER = 0.2


class Backoff:
    """Pauses that double from `base` to `limit` seconds, each spread by a fifth either way.

    Without jitter a thousand clients of a broker that comes back would all knock at the same moment. `function`, if
    there is one, says the pause after the n-th failure (0, 1, …) in place of all that.
    """

    __slots__ = ("_base", "_function", "_limit", "_random", "failures")

    def __init__(
        self,
        base: float,
        limit: float,
        rng: random.Random,
        function: Callable[[int], float] | None = None,
    ) -> None:
        self._base, self._limit, self._random, self._function = base, limit, rng, function
        self.failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure. Raises ConfigError if the function gives no number of seconds."""
        if self._function is not None:
            pause = self._function(self.failures)
            check_duration_or_zero("a backoff function's value", pause)
            self.failures += 1
            return pause
        pause = min(self._base * 2.0 ** min(self.failures, 30), self._limit)
        self.failures += 1
        return pause * self._random.uniform(1 - JITTER, 1 + JITTER)

    def reset(self) -> None:
        """Forget the failures: something worked."""
        self.failures = 0
