"""The memory that a node's unserved requests take in all (Kafka's `queued.max.request.bytes` with its `MemoryPool`).

Kafka takes memory for what a request announces and mutes the connections that find none. Here bytes count when they have
come, so an announcement costs nothing, and clients that send half a request and no more cannot stop the others: when
half of the memory is taken, large requests are read one at a time, and one whose bytes do not come has to let the next
one by. Beyond the limit the connection is closed that has been silent for longest with a request unfinished.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

__all__ = ["DEFAULT_QUEUED_MAX_REQUEST_BYTES", "RequestMemory"]

DEFAULT_QUEUED_MAX_REQUEST_BYTES: Final = 256 * 1024 * 1024
"""Kafka sets no limit by default. Half of it leaves room for one request of the largest size."""

_SMALL: Final = 1 << 16
"""Bytes; a connection that holds less is always read from: heartbeats must not wait for large requests."""

_STALL: Final = 1.0
"""Seconds without a byte after which a large request lets the next one by."""


class Holder(Protocol):
    """A connection whose bytes are counted."""

    def read_or_pause(self) -> None:
        """Ask `may_read` again."""

    def refuse_memory(self, reason: str) -> None:
        """Close, and forget all bytes."""


class RequestMemory:
    """Counts bytes that connections have received and not served; at most `limit` in all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self.limit = limit
        self.held = 0
        self._held: dict[Holder, int] = {}  # those that were silent for longest first
        self._large: dict[Holder, None] = {}
        """Connections with more than a small part of a request. The first one is read from in any case."""
        self._is_scarce = False
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[Holder | None, int] = (None, 0)  # the first large one when the timer fired last

    def __repr__(self) -> str:
        return f"<RequestMemory {self.held} of {self.limit} bytes, {len(self._held)} connections>"

    def may_read(self, holder: Holder) -> bool:
        """Return whether more may be read from this connection."""
        return not self._is_scarce or holder not in self._large or holder is self._first

    @property
    def _first(self) -> Holder | None:
        return next(iter(self._large), None)

    def count(self, holder: Holder, unread: int) -> None:
        """A connection holds `unread` bytes now."""
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
        self._tell(first)

    def _close_silent(self) -> None:
        silent, unread = next(iter(self._held.items()))
        self.held -= unread
        del self._held[silent]
        self._large.pop(silent, None)
        reason = f"unfinished requests take more than {self.limit} bytes, and this one ({unread} bytes) waits longest"
        silent.refuse_memory(reason)

    def _tell(self, first: Holder | None) -> None:
        """Let connections read, or not, as things are now; `first` was the first large one before."""
        was_scarce, self._is_scarce = self._is_scarce, self.held > self.limit // 2
        if self._is_scarce is not was_scarce:
            for holder in list(self._large):
                holder.read_or_pause()
        elif self._is_scarce and self._first is not first and self._first is not None:
            self._first.read_or_pause()
        if self._is_scarce and self._timer is None:
            self._timer = self._loop.call_later(_STALL, self._rotate)

    def _rotate(self) -> None:
        """Let the next large request by if no byte of the first one has come since the last time."""
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
        self._tell(first)

    def close(self) -> None:
        """The node has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
