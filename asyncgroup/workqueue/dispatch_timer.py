"""DispatchTimer: wakes the dispatcher when a record is due or a deadline passes, and does not count the time of a blocked event loop."""

from __future__ import annotations

import asyncio
from typing import Final

from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.due_times import NEVER

__all__ = ["DispatchTimer"]

TICK: Final = 0.01
"""Minimum seconds between two calls of `Dispatcher.wake`: later due times within it are handled together, never early."""


class DispatchTimer:
    """One timer, set to the earliest time at which the dispatcher has something to do.

    A timer that runs late shows that the event loop was blocked, as by a handler that should be run with `in_thread`: no other
    handler could go on in that time, so it does not count for their ack timeouts (`AckTimeouts`).
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = NEVER
        self._earliest = 0.0

    def __repr__(self) -> str:
        return f"<DispatchTimer: {'not set' if self._timer is None else f'at {self._at:.3f}'}>"

    def schedule(self, due: float) -> None:
        """Wake the dispatcher at loop time `due`, or up to `TICK` later."""
        if due >= self._at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at = due
        self._timer = self._loop.call_at(max(due, self._earliest), self._fire)

    def _fire(self) -> None:
        now = self._loop.time()
        self._dispatcher.note_late(now - max(self._at, self._earliest))
        self._timer, self._at = None, NEVER
        self._earliest = now + TICK
        due = self._dispatcher.wake()
        if due < NEVER:
            self.schedule(due)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
