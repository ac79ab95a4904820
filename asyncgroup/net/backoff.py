"""Retries: the pause after the n-th failure (KIP-580), and the limits of a loop that tries again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from asyncgroup.checks import check_duration_or_zero
from asyncgroup.lifecycle import wait_within

if TYPE_CHECKING:
    from asyncgroup.config.client import ClientConfig, Pauses

__all__ = ["RetryBackoff", "RetryLoop", "pause_function"]

JITTER = 0.2
"""Relative spread of each delay, in both directions (Kafka's `RETRY_BACKOFF_JITTER`)."""


def pause_function(pauses: Pauses) -> Callable[[int], float]:
    """Return a function (failures) -> seconds for a setting of pauses; `failures` counts from 0, a Backoff's from 1."""
    if isinstance(pauses, float | int):
        return lambda _: pauses
    if callable(pauses):
        return pauses
    return lambda failures: pauses.delay(failures + 1)


class RetryBackoff:
    """Delays that double from `base` up to `limit` seconds, each multiplied by a random factor of 0.8 to 1.2.

    The jitter keeps many clients from reconnecting to a restarted broker at the same moment; without `rng` there is none.
    `function`, if given, replaces this: it returns the delay in seconds after the n-th failure (n = 0, 1, …).
    """

    __slots__ = ("_base", "_function", "_limit", "_random", "failures")

    def __init__(
        self,
        base: float,
        limit: float,
        rng: random.Random | None,
        function: Callable[[int], float] | None = None,
    ) -> None:
        self._base = base
        self._limit = limit
        self._random = rng
        self._function = function
        self.failures = 0
        """Failures since the last `reset`."""

    @classmethod
    def configured(cls, config: ClientConfig, rng: random.Random, pauses: Pauses | None = None) -> Self:
        """Return the delays that `retry_backoff` and `retry_backoff_max` describe, or `pauses` if they are given."""
        function = None if pauses is None else pause_function(pauses)
        return cls(config.retry_backoff, config.retry_backoff_max, rng, function)

    @classmethod
    def in_step(cls, config: ClientConfig, rng: random.Random) -> Self:
        """Return such delays with one random factor for all: what failed together is tried again together."""
        factor = rng.uniform(1 - JITTER, 1 + JITTER)
        return cls(config.retry_backoff * factor, config.retry_backoff_max * factor, None)

    def after(self, failures: int) -> float:
        """Return the delay in seconds after the n-th failure (n = 0, 1, …); nothing is counted.

        Raises ConfigError if `function` returns anything but a valid number of seconds.
        """
        if self._function is not None:
            pause = self._function(failures)
            check_duration_or_zero("a backoff function's value", pause)
            return pause
        pause = min(self._base * 2.0 ** min(failures, 30), self._limit)
        return pause if self._random is None else pause * self._random.uniform(1 - JITTER, 1 + JITTER)

    def after_first(self, first: float, failures: int) -> float:
        """Return the delay after the n-th failure (n = 0, 1, …) if they begin with `first` seconds and grow up to the usual first delay."""
        usual = self.after(0)
        return (
            usual if self._base <= first else usual * min(1.0, first / self._base * 2.0 ** min(failures, 30))
        )

    def fork(self) -> RetryBackoff:
        """Return the same delays with a separate count of failures."""
        return RetryBackoff(self._base, self._limit, self._random, self._function)

    def next(self) -> float:
        """Count one more failure and return the delay in seconds before the next attempt; raises as `after` does."""
        pause = self.after(self.failures)
        self.failures += 1
        return pause

    def reset(self) -> None:
        """Reset the failure count after a success."""
        self.failures = 0


class RetryLoop:
    """Failures of a loop that tries again until it succeeds: limits, and the pause before each further attempt.

    The loop calls `failed` after an attempt, which says whether there is another one, and `wait` before that; `pause` is
    both. `retries` limits the counted failures. `timeout`, in seconds from now, limits the time: a pause that would not
    end before the deadline is not begun. With `cuts_pause` it ends at the deadline instead, for one last attempt.
    `longest` is the longest pause in seconds. With `cuts_attempts` a request also ends the attempt that is under way at the deadline.
    """

    __slots__ = (
        "_backoff",
        "_cuts_attempts",
        "_cuts_pause",
        "_is_chosen",
        "_longest",
        "_retries",
        "deadline",
        "seconds",
        "tries",
    )

    def __init__(
        self,
        backoff: RetryBackoff,
        *,
        retries: float = float("inf"),
        timeout: float | None = None,
        longest: float = float("inf"),
        cuts_pause: bool = False,
        cuts_attempts: bool = False,
    ) -> None:
        self._backoff = backoff
        self._cuts_attempts = cuts_attempts
        self._retries = retries
        self._longest = longest
        self._cuts_pause = cuts_pause
        self._is_chosen = False  # `seconds` is a pause that has not begun yet
        self.deadline = float("inf") if timeout is None else asyncio.get_running_loop().time() + timeout
        """Loop time after which there is no other attempt; a loop may move it."""
        self.seconds = 0.0
        """The last pause that was chosen."""
        self.tries = 0
        """Failures that count towards `retries`."""

    def __repr__(self) -> str:
        return f"<RetryLoop: {self.failures} failures, the last pause is {self.seconds:.3g} s>"

    def fork(self) -> RetryLoop:
        """Return a new loop with the same limits and the same deadline, for a part that is repeated by itself."""
        loop = RetryLoop(
            self._backoff.fork(),
            retries=self._retries,
            longest=self._longest,
            cuts_pause=self._cuts_pause,
            cuts_attempts=self._cuts_attempts,
        )
        loop.deadline = self.deadline
        return loop

    @property
    def failures(self) -> int:
        """Failures since the last `reset`, counted towards `retries` or not."""
        return self._backoff.failures

    @property
    def left(self) -> float:
        """Seconds until the deadline; infinity without a timeout."""
        return self.deadline - asyncio.get_running_loop().time()

    @property
    def cut_at(self) -> float:
        """Loop time at which an attempt is cut: the deadline with `cuts_attempts`, infinity without."""
        return self.deadline if self._cuts_attempts else float("inf")

    @property
    def is_used_up(self) -> bool:
        """Whether the next counted failure is the last one."""
        return self.tries >= self._retries

    def failed(self, *, counted: bool = True) -> bool:
        """Record a failed attempt, and choose the pause; return False if there is no other attempt.

        A failure that is not `counted` makes the next pause longer, but uses up none of `retries`.
        """
        if counted and self.is_used_up:
            return False
        self.tries += counted
        if self._cuts_pause and self.left <= 0:
            return False
        seconds = self.next()
        if self._cuts_pause:
            seconds = min(seconds, max(0.0, self.left))
        elif self.deadline < float("inf") and self.deadline <= asyncio.get_running_loop().time() + seconds:
            return False
        self.seconds, self._is_chosen = seconds, True
        return True

    def next(self) -> float:
        """Count a failure regardless of the limits; return the pause in seconds, for a loop that waits on its own."""
        return min(self._backoff.next(), self._longest)

    async def wait(self, until: asyncio.Event | None = None, *, attempt_at: float = float("inf")) -> bool:
        """Wait for the pause that `failed` chose, else for `next`; an event ends it early. Return whether that is set.

        `attempt_at` is the loop time of an attempt that must not be left out: a longer pause ends there.
        """
        if not self._is_chosen:
            self.seconds = self.next()
        self._is_chosen = False
        left = attempt_at - asyncio.get_running_loop().time()
        if 0 < left < self.seconds:
            self.seconds = left
        if until is not None:
            return await wait_within(until, self.seconds)
        await asyncio.sleep(self.seconds)
        return False

    async def pause(self, error: BaseException, *, counted: bool = True) -> None:
        """Record a failed attempt and wait before the next one. Raises `error` if there is none."""
        if not self.failed(counted=counted):
            raise error
        await self.wait()

    def reset(self) -> None:
        """Begin with short pauses again, after progress; `tries` and the deadline stay."""
        self._backoff.reset()
