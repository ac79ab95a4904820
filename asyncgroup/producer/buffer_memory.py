"""Callers that wait for room in the producer's buffer, served in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["BufferMemory"]


class BufferMemory:
    """A queue in front of a buffer. `reserve(size)` takes bytes of it if it has them, `release(size)` gives them back."""

    def __init__(self, reserve: Callable[[int], bool], release: Callable[[int], None]) -> None:
        self._reserve, self._release = reserve, release
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<BufferMemory: {len(self)} callers waiting>"

    def try_reserve(self, size: int) -> bool:
        """Reserve `size` bytes now; False if there is no room or others were here before."""
        return not self._waiting and self._reserve(size)

    async def reserve(self, size: int) -> None:
        """Wait until `size` bytes are reserved. A cancelled caller gives back what it was just granted."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, granted)
        self._waiting.append(entry)
        try:
            await granted
        except BaseException:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self._release(size)
            else:
                self._waiting = deque(other for other in self._waiting if other is not entry)
            self.grant_waiters()
            raise

    def grant_waiters(self) -> None:
        """Something was given back: let in whoever fits, the first first."""
        while self._waiting:
            size, granted = self._waiting[0]
            if not granted.done():
                if not self._reserve(size):
                    return
                granted.set_result(None)
            self._waiting.popleft()

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """Send everybody away with an error."""
        waiting, self._waiting = self._waiting, deque()
        for _, granted in waiting:
            if not granted.done():
                granted.set_exception(make_error())
