"""Wait for a condition without polling: every event rings a bell, and the condition is checked again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["Bell"]

T = TypeVar("T")


class Bell:
    """Wakes `until` at each `ring`. As a hook object it rings at every response of a broker.

    `describe` returns the state that is added to the error of a failed wait.
    """

    def __init__(self, describe: Callable[[], str] = str) -> None:
        self._describe = describe
        self._rings = 0
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake all waiting `until` calls."""
        self._rings += 1
        self._rung.set()
        self._rung = asyncio.Event()

    def on_response(self, *_values: object) -> None:
        """Hook `on_response`; the members' heartbeats alone make it frequent enough for any condition."""
        self.ring()

    def on_session_end(self, *_values: object) -> None:
        """Hook `on_session_end`, for the case that no broker responds any more."""
        self.ring()

    async def until(self, condition: Callable[[], T], what: str, limit: float) -> T:
        """Return the first true value of `condition`; fails with `what` after `limit` seconds of loop time."""

        async def ask() -> T:
            return condition()

        return await self.until_known(ask, what, limit)

    async def until_known(self, condition: Callable[[], Awaitable[T]], what: str, limit: float) -> T:
        """Like `until`, for a condition that is a coroutine function."""
        try:
            async with asyncio.timeout(limit):
                while True:
                    rings = self._rings
                    if value := await condition():
                        return value
                    if rings == self._rings:
                        await self._rung.wait()
        except TimeoutError:
            pass
        raise AssertionError(f"not within {limit:g} s: {what}\n{self._describe()}")
