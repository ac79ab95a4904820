"""Slots: a semaphore whose slots can also be taken without waiting, by a plain function."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Slots"]


class Slots:
    """A number of slots; callers wait for a free one in FIFO order."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()  # granted futures, oldest first

    def __repr__(self) -> str:
        return f"<Slots {self._free} free, {len(self._waiting)} callers waiting>"

    def try_take(self) -> bool:
        """Take a slot now; False if none is free or other callers are waiting."""
        if not self._free or self._waiting:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Wait until a slot is taken. A cancelled caller passes on a slot that it was granted in the meantime."""
        if self.try_take():
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        try:
            await granted
        except BaseException:
            if granted.done() and not granted.cancelled():
                self.release()
            elif granted in self._waiting:  # a `release` since its cancellation has passed over it
                self._waiting.remove(granted)
            raise

    def release(self) -> None:
        """Give a slot back: to the caller that has waited longest, if there is one."""
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1
