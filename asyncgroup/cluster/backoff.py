"""Exponential retry backoff with jitter (KIP-580)."""

from __future__ import annotations

import random
from collections.abc import Callable

from asyncgroup.checks import check_duration_or_zero

__all__ = ["Backoff"]

JITTER = 0.2
"""Relative spread of each delay, in both directions (Kafka's `RETRY_BACKOFF_JITTER`)."""


class Backoff:
    """Delays that double from `base` up to `limit` seconds, each multiplied by a random factor of 0.8 to 1.2.

    The jitter keeps many clients from reconnecting to a restarted broker at the same moment. `function`, if given,
    replaces this: it returns the delay in seconds after the n-th failure (n = 0, 1, …).
    """

    __slots__ = ("_base", "_function", "_limit", "_random", "failures")

    def __init__(
        self,
        base: float,
        limit: float,
        rng: random.Random,
        function: Callable[[int], float] | None = None,
    ) -> None:
        self._base = base
        self._limit = limit
        self._random = rng
        self._function = function
        self.failures = 0
        """Failures since the last `reset`."""

    def next(self) -> float:
        """Count one more failure and return the delay in seconds before the next attempt.

        Raises ConfigError if `function` returns anything but a valid number of seconds.
        """
        if self._function is not None:
            pause = self._function(self.failures)
            check_duration_or_zero("a backoff function's value", pause)
            self.failures += 1
            return pause
        pause = min(self._base * 2.0 ** min(self.failures, 30), self._limit)
        self.failures += 1
        return pause * self._random.uniform(1 - JITTER, 1 + JITTER)

    def reset(self) -> None:
        """Reset the failure count after a success."""
        self.failures = 0
