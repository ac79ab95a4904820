"""HandlerTasks: tasks that run methods of a handler, and are cancelled once each at a common deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from asyncgroup.lifecycle import start_task

__all__ = ["REMINDER", "HandlerTasks"]

_log = logging.getLogger("asyncgroup.group")

REMINDER: Final = 30.0
"""Seconds between log lines about a handler that is still running after its cancellation."""


class HandlerTasks:
    """Tasks that are cancelled once each at a common deadline."""

    def __init__(self, group_id: str, *, is_after_drain: bool = False) -> None:
        self._group_id = group_id
        self.is_after_drain = is_after_drain
        """Whether they are hooks after the drain of their claims, so that their deadline is a later one."""
        self._tasks: dict[asyncio.Task[None], str] = {}  # with their names, in order of start
        self._timer: asyncio.TimerHandle | None = None  # for the deadline
        self.is_expired = False
        """Whether the deadline has passed, so that the tasks were cancelled."""
        self.cancel_at = float("inf")
        """Loop time of the cancellation; infinity without a limit."""

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
        """Run a coroutine in a task, which is cancelled at once if the deadline has passed."""
        task = start_task(call, name=f"{self._group_id}: {name}")
        self._tasks[task] = name
        if on_done is not None:
            task.add_done_callback(on_done)
        if self.is_expired:
            task.cancel()
        return task

    def split_off(self, names: Collection[str]) -> HandlerTasks:
        """Move the tasks with these names to a new object, with a deadline of its own from now on."""
        others = HandlerTasks(self._group_id)
        for task in [task for task, name in self._tasks.items() if name in names]:
            others._tasks[task] = self._tasks.pop(task)
        return others

    def limit(self, seconds: float) -> None:
        """Cancel the tasks that still run in `seconds`. A later call can only bring the deadline forward.

        With 0 they are cancelled before this returns: a handler whose iterator ends in the same step must receive its
        one cancellation in the iterator, not afterwards in its `finally`.
        """
        if self.is_expired:
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
        self.is_expired = True
        self.cancel_at = min(self.cancel_at, asyncio.get_running_loop().time())
        for task in self._tasks:
            if not task.done():
                task.cancel()

    async def wait(self) -> None:
        """Wait until every task has ended. A task that goes on after its cancellation is named in the log."""
        while pending := {task for task in self._tasks if not task.done()}:
            await asyncio.wait(pending, timeout=REMINDER)
            if self.is_expired:
                for task in pending:
                    if not task.done():
                        # a program's log filter that raises must not end the wait: the partitions are still in use
                        with contextlib.suppress(Exception):
                            _log.warning("%s was cancelled, but is still running", task.get_name())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
