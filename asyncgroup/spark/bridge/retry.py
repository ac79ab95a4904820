"""Retries of a batch whose function has raised."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

from asyncgroup.checks import check_count, check_duration_or_zero
from asyncgroup.cluster.backoff import Backoff
from asyncgroup.errors import ConfigError
from asyncgroup.spark.requirements import SparkUnavailable

__all__ = ["OnError", "Retry", "RetryState"]


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Retry a batch: call the function again with the same rows, ranges and number, up to `times` more times.

    The pauses double from `backoff` to `backoff_max` seconds, with a jitter of 20 % either way (KIP-580). Only instances
    of `only` are retried, and never SparkUnavailable, which no retry can fix. After the last attempt the exception is
    raised as without retries: no batch is ever skipped. Raises ConfigError.
    """

    times: int = 5
    backoff: float = 0.5
    """Seconds."""
    backoff_max: float = 30.0
    """Seconds."""
    only: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        check_count("times", self.times)
        check_duration_or_zero("backoff", self.backoff)
        check_duration_or_zero("backoff_max", self.backoff_max)
        kinds = self.only
        if not isinstance(kinds, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds
        ):
            raise ConfigError("only", kinds, "a tuple of subclasses of Exception")


OnError: TypeAlias = Literal["raise"] | Retry
"""What `ForeachBatch` does if the function raises."""


class RetryState:
    """Failed calls of the function for one batch, and the pause before the next one."""

    def __init__(self, on_error: OnError, rng: random.Random) -> None:
        self._policy = on_error if isinstance(on_error, Retry) else None
        self._backoff = Backoff(0, 0, rng)
        if self._policy is not None:
            self._backoff = Backoff(self._policy.backoff, self._policy.backoff_max, rng)
        self.failures = 0

    def backoff_after(self, error: BaseException) -> float | None:
        """Record a failure; return the seconds until the next call, None if there is no other."""
        self.failures += 1
        policy = self._policy
        if policy is None or self.failures > policy.times or not isinstance(error, policy.only):
            return None
        if isinstance(error, SparkUnavailable):
            return None
        return self._backoff.next()
