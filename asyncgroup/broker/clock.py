"""The cluster's time: the wall clock, and timers by key on the event loop.

The machine's clock is read once, then advanced by the loop's time: in virtual time, a day on the loop is therefore also
a day for retention and timestamps.

Timers are cheap to postpone. Each heartbeat postpones its member's session deadline; postponing therefore only changes a
number. The loop's timer is left as it is and, when it fires too early, is set again for the remaining time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Protocol, TypeAlias

__all__ = ["Clock", "LoopTimers", "TimerKey", "Timers", "WallClock"]

Clock: TypeAlias = Callable[[], int]
"""Returns the time of day in ms since 1970."""


class WallClock:
    """Callable that returns the time in ms since 1970.

    `now` returns the loop's time in seconds; `start` is the wall-clock time (ms) at construction, by default the
    machine's.
    """

    __slots__ = ("_began", "_now", "_start")

    def __init__(self, now: Callable[[], float], start: int | None = None) -> None:
        self._now = now
        self._began = now()  # loop time of construction
        self._start = time.time_ns() // 1_000_000 if start is None else start

    def __repr__(self) -> str:
        return f"<WallClock {self()}>"

    def __call__(self) -> int:
        return self._start + int((self._now() - self._began) * 1000)


TimerKey: TypeAlias = tuple[str, *tuple[Hashable, ...]]
"""The kind of timer, followed by its subject. The kind is a namespace, so that names chosen by clients (groups,
transactional ids, topics) never collide.
"""


class Timers(Protocol):
    """Timers by key. Scheduling a key again replaces its timer. Tests pass timers that they fire themselves."""

    def schedule(self, key: TimerKey, delay: float, action: Callable[[], None]) -> None:
        """Call `action` in `delay` seconds."""

    def cancel(self, key: TimerKey) -> None:
        """Cancel the timer; no error if there is none."""


class _Entry:
    __slots__ = ("action", "deadline", "fires_at", "handle")

    def __init__(self, deadline: float, action: Callable[[], None], handle: asyncio.TimerHandle) -> None:
        self.deadline = deadline
        self.fires_at = deadline  # not `handle.when()`: the handle of uvloop has none if the time is due
        self.action = action
        self.handle = handle


class LoopTimers:
    """Timers of an event loop (`loop.call_at`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._entries: dict[Hashable, _Entry] = {}

    def __repr__(self) -> str:
        return f"<LoopTimers {len(self._entries)} set>"

    def schedule(self, key: Hashable, delay: float, action: Callable[[], None]) -> None:
        """Call `action` in `delay` seconds, replacing the timer `key` if there is one."""
        deadline = self._loop.time() + delay
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(deadline, action, self._loop.call_at(deadline, self._fire, key))
            return
        entry.deadline, entry.action = deadline, action
        if entry.fires_at > deadline:
            entry.handle.cancel()
            entry.fires_at = deadline
            entry.handle = self._loop.call_at(deadline, self._fire, key)

    def cancel(self, key: Hashable) -> None:
        """Cancel the timer `key`; no error if there is none."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            entry.handle.cancel()

    def clear(self) -> None:
        """Cancel all timers."""
        for entry in self._entries.values():
            entry.handle.cancel()
        self._entries.clear()

    def _fire(self, key: Hashable) -> None:
        entry = self._entries[key]
        # Compare with the handle's time, not with the clock: the loop may fire a moment early.
        if entry.deadline > entry.fires_at:
            entry.fires_at = entry.deadline
            entry.handle = self._loop.call_at(entry.deadline, self._fire, key)
            return
        del self._entries[key]
        entry.action()
