"""Buffer memory: callers wait for free bytes of the producer's buffer in FIFO order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["BufferMemory"]


class BufferMemory:
    """A FIFO queue of callers in front of a buffer.

    `reserve(size)` reserves bytes of the buffer if they are free and returns whether it did, `release(size)` frees
    them.
    """

    def __init__(self, reserve: Callable[[int], bool], release: Callable[[int], None]) -> None:
        self._reserve = reserve
        self._release = release
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # (bytes, granted), oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<BufferMemory: {len(self)} callers waiting>"

    def try_reserve(self, size: int) -> bool:
        """Reserve `size` bytes now; False if they are not free or other callers are waiting."""
        return not self._waiting and self._reserve(size)

    async def reserve(self, size: int) -> None:
        """Wait until `size` bytes are reserved. A cancelled caller frees what it was granted in the meantime."""
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
        """Grant waiters in FIFO order while memory is available. Call it after memory was freed."""
        while self._waiting:
            size, granted = self._waiting[0]
            if not granted.done():
                if not self._reserve(size):
                    return
                granted.set_result(None)
            self._waiting.popleft()

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """Fail every waiting caller, each with an error of its own."""
        waiting, self._waiting = self._waiting, deque()
        for _, granted in waiting:
            if not granted.done():
                granted.set_exception(make_error())
