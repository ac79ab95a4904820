"""Buffer memory: bytes for the records that are not done; callers wait for free bytes in FIFO order (`BufferPool`)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["BufferMemory"]


class BufferMemory:
    """At most `limit` bytes in use, except that a record of any size fits if nothing else is in use.

    `name` is the limit's name in errors, and `unit` what it counts: bytes, or records. A release grants as many waiters as fit
    and wakes no other.
    """

    def __init__(self, limit: int, name: str = "buffer_bytes", unit: str = "bytes") -> None:
        self.limit = limit
        self.name = name
        self.unit = unit
        self.used = 0
        """Bytes reserved for records that are not done, by their uncompressed size."""
        # granted future -> (bytes, owner), oldest first; unlike a deque, a cancelled waiter is removed without a search
        self._waiting: OrderedDict[asyncio.Future[None], tuple[int, object]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<BufferMemory {self.used} of {self.limit} {self.unit}, {self.waiting} callers waiting>"

    @property
    def waiting(self) -> int:
        """The number of callers that wait."""
        return len(self._waiting)

    def try_reserve(self, size: int, records: int = 1) -> bool:  # noqa: ARG002  counted by PendingLimits only
        """Reserve `size` bytes now; False if they are not free or other callers are waiting."""
        used = self.used + size
        if self._waiting or (used > self.limit and used > size):
            return False
        self.used = used
        return True

    def force(self, size: int) -> None:
        """Reserve `size` bytes, even above the limit."""
        self.used += size

    async def reserve(self, size: int, owner: object = None) -> None:
        """Wait until `size` bytes are reserved. A cancelled caller frees what it was granted in the meantime."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[granted] = (size, owner)
        try:
            await granted
        except BaseException:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.used -= size
            else:
                self._waiting.pop(granted, None)
            self._grant()
            raise

    def release(self, size: int, records: int = 1) -> None:  # noqa: ARG002  counted by PendingLimits only
        """Free `size` reserved bytes, and grant waiters in FIFO order while they fit."""
        self.used -= size
        self._grant()

    def fail(self, make_error: Callable[[], Exception], owner: object = None) -> None:
        """Fail every waiting caller of this owner, each with a separate error."""
        for granted in [granted for granted, (_, other) in self._waiting.items() if other is owner]:
            del self._waiting[granted]
            if not granted.done():
                granted.set_exception(make_error())
        self._grant()

    def shortage(self, size: int, records: int = 1) -> str | None:  # noqa: ARG002
        """Return why `size` bytes cannot be reserved now, or None if they can."""
        if not self._waiting and self._is_free(size):
            return None
        queue = f", {self.waiting} callers wait" if self._waiting else ""
        return f"{self.name}={self.limit}: {self.used} {self.unit} in use{queue}"

    def _is_free(self, size: int) -> bool:
        return self.used + size <= self.limit or not self.used

    def _grant(self) -> None:
        while self._waiting:
            granted, (size, _) = next(iter(self._waiting.items()))
            if not granted.done():
                if not self._is_free(size):
                    return
                self.used += size
                granted.set_result(None)
            del self._waiting[granted]
