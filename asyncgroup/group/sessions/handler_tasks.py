"""HandlerTasks: tasks that run methods of a handler, and are cancelled once each at a common deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine
from enum import Enum
from typing import Any, Final

from asyncgroup.lifecycle import start_task

__all__ = ["REMINDER", "CallKind", "HandlerTasks"]

_log = logging.getLogger("asyncgroup.group")

REMINDER: Final = 30.0
"""Seconds between log lines about a handler that is still running after its cancellation."""


class CallKind(Enum):
    """The methods of a handler by when they are called, which decides their deadlines."""

    CLAIM = "consume_claim"
    START = "setup and on_assigned, before claims start"
    END = "on_revoked, on_lost and cleanup, after the drain of their claims"


class HandlerTasks:
    """Tasks that are cancelled once each at a common deadline."""

    def __init__(self, group_id: str, kind: CallKind = CallKind.CLAIM) -> None:
        self._group_id = group_id
        self.kind = kind
        self.since = asyncio.get_running_loop().time()
        """Loop time of the creation of this object."""
        self._tasks: dict[asyncio.Task[None], str] = {}  # with their names, in order of start
        self._timer: asyncio.TimerHandle | None = None  # for the deadline
        self.is_cancelled = False
        """Whether the tasks were cancelled, at the deadline or before it."""
        self.is_expired = False
        """Whether a task still ran at the deadline, so that it was cancelled there."""
        self.cancel_at = float("inf")
        """Loop time of the cancellation; infinity without a limit."""
        self._on_cancel: Callable[[], None] | None = None  # of `wait_after_cancel`
        # not one for each `wait`: several callers may wait for the same hook
        self._reminder: asyncio.TimerHandle | None = None

    @property
    def running(self) -> list[str]:
        """The names of the tasks that have not ended, oldest first."""
        return [name for task, name in self._tasks.items() if not task.done()]

    def start(
        self,
        call: Coroutine[Any, Any, None],
        name: str,
        on_done: Callable[[asyncio.Task[None]], None] | None = None,
    ) -> asyncio.Task[None]:
        """Run a coroutine in a task, which is cancelled at once if the others were."""
        task = start_task(call, name=f"{self._group_id}: {name}")
        self._tasks[task] = name
        if on_done is not None:
            task.add_done_callback(on_done)
        if self.is_cancelled:
            task.cancel()
        return task

    def split_off(self, names: Collection[str]) -> HandlerTasks:
        """Move the tasks with these names to a new object, which from now on has its own deadline."""
        others = HandlerTasks(self._group_id, self.kind)
        for task in [task for task, name in self._tasks.items() if name in names]:
            others._tasks[task] = self._tasks.pop(task)
        return others

    def limit(self, seconds: float) -> None:
        """Cancel the tasks that still run in `seconds`. A later call can only bring the deadline forward.

        With 0 they are cancelled before this returns: a handler whose iterator ends in the same step must receive its
        one cancellation in the iterator, not afterwards in its `finally`.
        """
        if self.is_cancelled:
            return
        if seconds <= 0:
            self._expire()
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._timer is None or when < self.cancel_at:
            if self._timer is not None:
                self._timer.cancel()
            self.cancel_at = when
            self._timer = loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self.is_expired = not self.is_cancelled and bool(self.running)
        self.cancel()

    def cancel(self) -> None:
        """Cancel the tasks that still run now, before their deadline."""
        if self.is_cancelled:
            return
        self.is_cancelled = True
        self.cancel_at = min(self.cancel_at, asyncio.get_running_loop().time())
        for task in self._tasks:
            if not task.done():
                task.cancel()
        self._start_reminder()
        if self._on_cancel is not None:
            self._on_cancel()

    def _start_reminder(self) -> None:
        if self.running:
            self._reminder = asyncio.get_running_loop().call_later(REMINDER, self._remind)

    def _remind(self) -> None:
        """Name the tasks in the log that go on after their cancellation."""
        self._reminder = None
        for task in self._tasks:
            if not task.done():
                # also if a program's log filter raises an error, the next reminder is to follow
                with contextlib.suppress(Exception):
                    _log.warning("%s was cancelled, but is still running", task.get_name())
        self._start_reminder()

    async def wait(self) -> None:
        """Wait until every task has ended; several callers may."""
        while pending := {task for task in self._tasks if not task.done()}:
            await asyncio.wait(pending)
        for timer in (self._timer, self._reminder):
            if timer is not None:
                timer.cancel()
        self._timer = self._reminder = None

    async def wait_after_cancel(self, seconds: Callable[[], float]) -> bool:
        """Wait until every task has ended, but once they are cancelled only for `seconds()`; return whether all have ended."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as timeout:
                self._on_cancel = lambda: timeout.reschedule(loop.time() + seconds())
                if self.is_cancelled:
                    self._on_cancel()
                try:
                    await self.wait()
                finally:
                    self._on_cancel = None
        return not self.running
