"""Single-flight: concurrent callers share one run of the work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from asyncgroup.errors import ClosedError
from asyncgroup.lifecycle import BackgroundTasks, await_shared, mark_retrieved

__all__ = ["SingleFlightRefresh"]


class SingleFlightRefresh:
    """Runs `work` once for all concurrent callers, never two runs at a time.

    A call during a run waits for the next run, because the result of the current one may be older than the event that
    made the caller ask.
    """

    def __init__(self, tasks: BackgroundTasks, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks = tasks  # runs the work
        self._work = work
        self._running = False
        self._next: asyncio.Future[None] | None = (
            None  # the result of the next run, if any caller waits for one
        )

    async def __call__(self) -> None:
        """Wait for the next run; raises what the work raises, and ClosedError if `tasks` is closed."""
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
            # let other callers of this turn of the loop join the run; calls after its start join the next one
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
        except Exception as error:  # noqa: BLE001  passed to the waiting callers
            current.set_exception(error)
        except BaseException:
            current.set_exception(ClosedError(f"{self._tasks.name} was closed"))
            raise
        else:
            current.set_result(None)
