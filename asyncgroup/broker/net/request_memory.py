"""Memory limit for a node's received but unserved requests (Kafka's `queued.max.request.bytes` with its `MemoryPool`).

Kafka reserves the size that a request announces, and mutes connections while the pool is empty. Here only received
bytes count, so an announcement costs nothing, and clients that stop in the middle of a request cannot block others:
when half of the memory is used, large requests are read one at a time, and one that receives no bytes yields to the
next. Beyond the limit, the connection with unserved bytes that has been silent longest is closed.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

__all__ = ["DEFAULT_QUEUED_MAX_REQUEST_BYTES", "RequestMemory"]

DEFAULT_QUEUED_MAX_REQUEST_BYTES: Final = 256 * 1024 * 1024
"""Bytes. Kafka has no limit by default; half of this one has room for a request of the largest size."""

_SMALL: Final = 1 << 16
"""Bytes; a connection with less is always read from, so that heartbeats do not wait for large requests."""

_STALL: Final = 1.0
"""Seconds without a byte after which a large request yields to the next one."""


class MemoryHolder(Protocol):
    """A connection whose bytes are counted."""

    def read_or_pause(self) -> None:
        """Check `may_read` again, and resume or pause reading."""

    def close_for_memory(self, reason: str) -> None:
        """Close the connection and drop its bytes."""


class RequestMemory:
    """Counts the bytes that connections have received but not served, at most `limit` in total."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self.limit = limit
        self.held = 0
        """The sum of the bytes in `_held`."""
        self._held: dict[MemoryHolder, int] = {}
        """Unserved bytes by connection, ordered by the time of the last change, the oldest first."""
        self._large: dict[MemoryHolder, None] = {}
        """Queue of connections with more than _SMALL bytes; while memory is scarce, only the first is read from."""
        self._is_scarce = False  # whether more than half of `limit` is used
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[MemoryHolder | None, int] = (None, 0)
        """The first large connection and its bytes when the timer last fired."""

    def __repr__(self) -> str:
        return f"<RequestMemory {self.held} of {self.limit} bytes, {len(self._held)} connections>"

    def may_read(self, holder: MemoryHolder) -> bool:
        """Return whether more may be read from this connection."""
        return not self._is_scarce or holder not in self._large or holder is self._first

    @property
    def _first(self) -> MemoryHolder | None:
        return next(iter(self._large), None)

    def update(self, holder: MemoryHolder, unread: int) -> None:
        """Set the number of unserved bytes of a connection to `unread`."""
        before = self._held.get(holder, 0)
        if unread == before:
            return
        first = self._first
        self._held.pop(holder, None)
        if unread:
            self._held[holder] = unread
        self.held += unread - before
        if unread > _SMALL:
            self._large.setdefault(holder)
        else:
            self._large.pop(holder, None)
        while self.held > self.limit:
            self._close_silent()
        self._notify(first)

    def _close_silent(self) -> None:
        silent, unread = next(iter(self._held.items()))
        self.held -= unread
        del self._held[silent]
        self._large.pop(silent, None)
        reason = (
            f"unserved requests take more than {self.limit} bytes, and this connection ({unread} bytes) "
            "has been silent longest"
        )
        silent.close_for_memory(reason)

    def _notify(self, first: MemoryHolder | None) -> None:
        """Resume or pause reading where `may_read` has changed; `first` was the first large connection before."""
        was_scarce, self._is_scarce = self._is_scarce, self.held > self.limit // 2
        if self._is_scarce is not was_scarce:
            for holder in list(self._large):
                holder.read_or_pause()
        elif self._is_scarce and self._first is not first and self._first is not None:
            self._first.read_or_pause()
        if self._is_scarce and self._timer is None:
            self._timer = self._loop.call_later(_STALL, self._rotate)

    def _rotate(self) -> None:
        """Move the first large connection to the end of the queue if it received nothing since the last timer."""
        self._timer = None
        if not self._is_scarce:
            self._seen = (None, 0)
            return
        first = self._first
        seen, self._seen = self._seen, (first, self._held[first] if first is not None else 0)
        if first is not None and seen == self._seen:
            del self._large[first]
            self._large[first] = None
            first.read_or_pause()
        self._timer = self._loop.call_later(_STALL, self._rotate)
        self._notify(first)

    def close(self) -> None:
        """Cancel the timer; the node has stopped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
