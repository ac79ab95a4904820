"""JoinWatch: for how long a member has been joining its group, from the first step on, however many attempts that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["JoinWatch"]


class JoinWatch:
    """Times one join after the other. All times are the loop's."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._limit = float("inf")
        self._on_long: Callable[[float], bool] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<JoinWatch: {'no join' if self._since is None else f'joins since {self._since:.3f}'}>"

    @property
    def is_joining(self) -> bool:
        """Whether a join has begun, and has not ended."""
        return self._since is not None

    def report(self, limit: float, on_long: Callable[[float], bool]) -> None:
        """Call `on_long(seconds)` for each join that takes longer than `limit` seconds, again until it returns True."""
        self._limit, self._on_long = limit, on_long

    def begin(self) -> None:
        """A join begins, and not as a further attempt of the one before."""
        self.end()
        self._since = asyncio.get_running_loop().time()
        self._set_timer()

    def end(self) -> None:
        """The member has joined, or does not try again."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def age(self, now: float) -> float:
        """Return the seconds from the start of the join to loop time `now`; 0 without one."""
        return 0.0 if self._since is None else max(0.0, now - self._since)

    def _set_timer(self) -> None:
        if self._on_long is not None:
            self._timer = asyncio.get_running_loop().call_later(self._limit, self._on_timer, self._on_long)

    def _on_timer(self, on_long: Callable[[float], bool]) -> None:
        if not on_long(self.age(asyncio.get_running_loop().time())):
            self._set_timer()
