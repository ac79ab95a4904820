"""Waiting for a condition without sleeping: whatever happens rings a bell, and the condition is looked at again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["Bell"]

T = TypeVar("T")


class Bell:
    """Rung at every event; `until` wakes at each ring. As a hook object it is rung by every response of a broker.

    `describe` is asked for the state of things when a wait fails.
    """

    def __init__(self, describe: Callable[[], str] = str) -> None:
        self._describe = describe
        self._rings = 0
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Something has happened."""
        self._rings += 1
        self._rung.set()
        self._rung = asyncio.Event()

    def on_response(self, *_values: object) -> None:
        """The hook of that name: members' heartbeats alone ring often enough for any condition."""
        self.ring()

    def on_session_end(self, *_values: object) -> None:
        """The hook of that name: where nobody answers any more, a session's end is heard of all the same."""
        self.ring()

    async def until(self, condition: Callable[[], T], what: str, limit: float) -> T:
        """The first true value of `condition`; fails with `what` after `limit` seconds of the loop's time."""

        async def ask() -> T:
            return condition()

        return await self.until_known(ask, what, limit)

    async def until_known(self, condition: Callable[[], Awaitable[T]], what: str, limit: float) -> T:
        """As `until`, for a condition that has to ask somebody."""
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
