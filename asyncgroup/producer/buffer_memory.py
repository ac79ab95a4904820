"""Buffer memory: bytes for the records that are not done; callers wait for free bytes in FIFO order (`BufferPool`)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["BufferMemory"]


class BufferMemory:
    """At most `limit` bytes in use, except that a record of any size fits if nothing else is in use."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        """Bytes reserved for records that are not done, by their uncompressed size."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # (bytes, granted), oldest first

    def __repr__(self) -> str:
        return f"<BufferMemory {self.used} of {self.limit} bytes, {self.waiting} callers waiting>"

    @property
    def waiting(self) -> int:
        """The number of callers that wait."""
        return len(self._waiting)

    def try_reserve(self, size: int) -> bool:
        """Reserve `size` bytes now; False if they are not free or other callers are waiting."""
        used = self.used + size
        if self._waiting or (used > self.limit and used > size):
            return False
        self.used = used
        return True

    async def reserve(self, size: int) -> None:
        """Wait until `size` bytes are reserved. A cancelled caller frees what it was granted in the meantime."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, granted)
        self._waiting.append(entry)
        try:
            await granted
        except BaseException:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.used -= size
            else:
                self._waiting = deque(other for other in self._waiting if other is not entry)
            self._grant()
            raise

    def release(self, size: int) -> None:
        """Free `size` reserved bytes, and grant waiters in FIFO order while they fit."""
        self.used -= size
        self._grant()

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """Fail every waiting caller, each with an error of its own."""
        waiting, self._waiting = self._waiting, deque()
        for _, granted in waiting:
            if not granted.done():
                granted.set_exception(make_error())

    def _is_free(self, size: int) -> bool:
        return self.used + size <= self.limit or not self.used

    def _grant(self) -> None:
        while self._waiting:
            size, granted = self._waiting[0]
            if not granted.done():
                if not self._is_free(size):
                    return
                self.used += size
                granted.set_result(None)
            self._waiting.popleft()
