"""LoopWatch: notices without a thread that the event loop was blocked, when it runs again: a timer ran late."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from asyncgroup.group.liveness.block_log import is_first_line
from asyncgroup.group.liveness.heartbeat_thread import BLOCKED_SECONDS
from asyncgroup.log_events import log_fields

__all__ = ["LoopWatch"]

_log = logging.getLogger("asyncgroup.group")

PERIOD: Final = 1.1 * BLOCKED_SECONDS
"""Seconds after `tick` at which the timer is due: longer than the period of the fetcher's timer, which so postpones it."""


class LoopWatch:
    """Watches the event loop of one group object that has no heartbeat thread.

    `on_blocked(seconds)` is called after a block, with the seconds by which the timer was late. The block may have begun up to
    `PERIOD` before the timer was due, so those that are longer than `BLOCKED_SECONDS` and `PERIOD` together are always seen.

    Timers that run anyway call `tick`, which postpones the own one: as long as they come in time it never wakes the loop.
    """

    def __init__(self, group_id: str, on_blocked: Callable[[float], None]) -> None:
        self._group_id = group_id
        self._on_blocked = on_blocked
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # loop time of the timer

    def __repr__(self) -> str:
        return f"<LoopWatch of {self._group_id!r}: {'runs' if self._timer is not None else 'not running'}>"

    def start(self) -> None:
        """Start watching the running event loop, unless it is watched already."""
        if self._timer is None:
            self._set_timer(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tick(self) -> None:
        """Report a block if the timer is late, and set it again. Before `start` this does nothing."""
        if self._timer is None:
            return
        loop, due = asyncio.get_running_loop(), self._due
        self._timer.cancel()
        self._set_timer(loop)
        seconds = loop.time() - due
        if seconds < BLOCKED_SECONDS:
            return
        if is_first_line(loop, due, loop.time()):
            _log.warning(
                "group %s: the event loop was blocked for %.1f s; where is not known without heartbeat_thread",
                self._group_id,
                seconds,
                extra=log_fields("loop_blocked", group=self._group_id),
            )
        self._on_blocked(seconds)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + PERIOD
        self._timer = loop.call_at(self._due, self.tick)
