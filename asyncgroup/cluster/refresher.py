"""Work that many ask for and that is done once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from asyncgroup.errors import ClosedError
from asyncgroup.lifecycle import Owner, result_of_shared, retrieve

__all__ = ["Refresher"]


class Refresher:
    """Runs `work` for everybody who waits at the same moment, never twice at a time.

    A call while the work is running waits for the next run: the one under way may be older than its reason.
    """

    def __init__(self, owner: Owner, work: Callable[[], Awaitable[None]]) -> None:
        self._owner, self._work = owner, work
        self._running = False
        self._next: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        """Have the work done once more; raises what it raises, and ClosedError when the owner is closed."""
        if not self._owner.is_open:
            raise ClosedError(f"{self._owner.name} is not open")
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._next.add_done_callback(retrieve)
            if not self._running:
                self._running = True
                self._owner.spawn(self._run, name="refresh")
        await result_of_shared(self._next)

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
                self._next.set_exception(ClosedError(f"{self._owner.name} was closed"))
                self._next = None

    async def _run_once(self, current: asyncio.Future[None]) -> None:
        try:
            await self._work()
        except Exception as error:  # noqa: BLE001  those who wait get it
            current.set_exception(error)
        except BaseException:
            current.set_exception(ClosedError(f"{self._owner.name} was closed"))
            raise
        else:
            current.set_result(None)
