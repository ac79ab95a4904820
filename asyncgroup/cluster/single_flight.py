"""Work that many ask for and that is done once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from asyncgroup.errors import ClosedError
from asyncgroup.lifecycle import BackgroundTasks, await_shared, mark_retrieved

__all__ = ["SingleFlightRefresh"]


class SingleFlightRefresh:
    """Runs `work` for everybody who waits at the same moment, never twice at a time.

    A call while the work is running waits for the next run: the one under way may be older than its reason.
    """

    def __init__(self, tasks: BackgroundTasks, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks, self._work = tasks, work
        self._running = False
        self._next: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        """Have the work done once more; raises what it raises, and ClosedError after the tasks were stopped."""
        if not self._tasks.is_open:
            raise ClosedError(f"{self._tasks.name} is not open")
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._next.add_done_callback(mark_retrieved)
            if not self._running:
                self._running = True
                self._tasks.spawn(self._run, name="refresh")
        await await_shared(self._next)

    async def _run(self) -> None:
        try:
            # callers of the same moment share a run; whoever comes while it is under way gets the next
            await asyncio.sleep(0)
            while (current := self._next) is not None:
                self._next = None
                await self._run_once(current)
        finally:
            self._running = False
            if self._next is not None:
                self._next.set_exception(ClosedError(f"{self._tasks.name} was closed"))
                self._next = None

    async def _run_once(self, current: asyncio.Future[None]) -> None:
        try:
            await self._work()
        except Exception as error:  # noqa: BLE001  those who wait get it
            current.set_exception(error)
        except BaseException:
            current.set_exception(ClosedError(f"{self._tasks.name} was closed"))
            raise
        else:
            current.set_result(None)
