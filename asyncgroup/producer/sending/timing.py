"""When the sender plans, and how long batches linger while sending takes most of the event loop's time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Final

__all__ = ["MAX_DELAY", "PlanTimer", "SendingLoad"]

MAX_DELAY: Final = 0.25
"""Seconds that a batch lingers at most because of the load."""


class SendingLoad:
    """The time that sending has taken and the event loop has not had for others yet: at most `most` seconds. State without I/O.

    A batch costs client and broker the same, however few records it has. With 1,000 partitions or topics and few records for each,
    all of the loop's time can go into batches of one record: the callers, who add a tenth of that for each record, get so little of
    it that no batch receives a second one within `linger`. Brokers that are busy have the same effect on other clients;
    librdkafka's `queue.buffering.backpressure.threshold` is its answer. Here sending gets at most half of the time, as far as
    batches can wait.
    """

    def __init__(self, most: float = MAX_DELAY) -> None:
        self._most = most
        self._owed = 0.0  # seconds, at loop time `_at`
        self._at = 0.0

    def __repr__(self) -> str:
        return f"<SendingLoad: {self._owed * 1000:.1f} ms owed>"

    def add(self, began: float, ended: float) -> None:
        """Sending had the event loop between two loop times."""
        self._owed = min(self.owed(began) + ended - began, self._most)
        self._at = ended

    def owed(self, now: float) -> float:
        """Return the seconds for which open batches should wait: others have the event loop then."""
        return max(self._owed - (now - self._at), 0.0)


class PlanTimer:
    """Calls `plan(now)`, which returns when to plan again: in the next turn of the event loop, or at a loop time.

    The time that the plans take counts as `load`. `is_urgent()` returns whether a plan that is due later is wanted at once.
    """

    def __init__(
        self, plan: Callable[[float], float], load: SendingLoad, is_urgent: Callable[[], bool]
    ) -> None:
        self._plan = plan
        self._load = load
        self._is_urgent = is_urgent
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop, during `run`."""
        self._context: Context | None = None  # of the plans: that of `run`, not that of any caller
        self._next_turn: asyncio.Handle | None = None  # a plan in the next turn of the loop
        self._timer: asyncio.TimerHandle | None = None  # a plan at a later time
        self._timer_at = 0.0  # loop time of the timer; the handle of uvloop has no `when()` if it is due
        self._bug: Exception | None = None  # an unexpected error in a callback
        self._broken = asyncio.Event()  # there is one

    def __repr__(self) -> str:
        return f"<PlanTimer {'stopped' if self.loop is None else 'running'}>"

    async def run(self) -> None:
        """Own the callbacks that plan, and raise the first unexpected error of one."""
        self.loop, self._context = asyncio.get_running_loop(), copy_context()
        self.wake()
        try:
            await self._broken.wait()
            assert self._bug is not None
            raise self._bug
        finally:
            self.loop = None
            for handle in (self._next_turn, self._timer):
                if handle is not None:
                    handle.cancel()

    def report(self, bug: Exception) -> None:
        """Let `run` raise an unexpected error of a callback."""
        if self._bug is None:
            self._bug = bug
            self._broken.set()

    def wake(self) -> None:
        """Plan again in the next turn of the event loop: there may be new batches to send."""
        if self._next_turn is None and self.loop is not None:
            self._next_turn = self.loop.call_soon(self.plan, context=self._context)

    def wake_by(self, when: float) -> None:
        """Plan again at loop time `when` at the latest."""
        if self._next_turn is not None or self.loop is None:
            return
        if self._is_urgent():
            self.wake()
        elif self._timer is None or self._timer_at > when:
            if when <= self.loop.time():
                self.wake()
            else:
                self._wake_at(when, self.loop)

    def plan(self) -> None:
        """Plan now, and decide when to plan again. Called by the event loop."""
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if self.loop is None or self._bug is not None:
            return
        try:
            began = self.loop.time()
            self._wake_at(self._plan(began), self.loop)
            self._load.add(began, self.loop.time())
        except Exception as bug:  # noqa: BLE001  raised by `run`
            self.report(bug)

    def _wake_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        """Plan again at loop time `when` at the latest. A timer that is due earlier stays: one more plan is cheap."""
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
            self._timer = None
        if when != float("inf"):
            self._timer_at = when
            self._timer = loop.call_at(when, self._on_timer, context=self._context)

    def _on_timer(self) -> None:
        self._timer = None
        self.plan()
