"""Single-flight: concurrent callers share the next run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from asyncgroup.errors import ClosedError
from asyncgroup.lifecycle import await_shared, cancel_and_wait, mark_retrieved

__all__ = ["SingleFlight"]

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs `work` in its own task, at most one run at a time; a canceled caller does not stop the run.

    A call during a run waits for the next one, which it shares with all other calls made during that run. With
    `waits_a_turn` the first run begins one turn of the loop later, so that calls in that turn, caused by the same event,
    share it too.
    """

    def __init__(self, name: str, work: Callable[[], Awaitable[T]], *, waits_a_turn: bool = False) -> None:
        self._name = name
        self._work = work
        self._waits_a_turn = waits_a_turn
        self._task: asyncio.Task[None] | None = None  # does one run after another while there are callers
        self._next: asyncio.Future[T] | None = None  # result of the run that has not begun yet
        self.is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "idle" if self._task is None else "running"
        return f"<SingleFlight {self._name}: {state}>"

    async def __call__(self) -> T:
        """Return the result of the next run; raise its error, or ClosedError."""
        if self.is_closed:
            raise ClosedError(f"{self._name} are closed")
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._next.add_done_callback(mark_retrieved)
            if self._task is None:
                self._task = asyncio.create_task(self._run(), name=self._name)
        return await await_shared(self._next)

    async def _run(self) -> None:
        current: asyncio.Future[T] | None = None
        try:
            if self._waits_a_turn:
                await asyncio.sleep(0)
            while (current := self._next) is not None:
                self._next = None
                try:
                    current.set_result(await self._work())
                except Exception as error:  # noqa: BLE001  raised to the callers
                    current.set_exception(error)
        finally:
            self._task = None
            for waiting in (current, self._next):
                if waiting is not None and not waiting.done():
                    waiting.set_exception(ClosedError(f"{self._name} were closed"))
            self._next = None

    async def wait_idle(self) -> None:
        """Wait until no run is in progress."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """Cancel the run in progress and refuse further ones; safe to call twice."""
        self.is_closed = True
        if self._task is not None:
            await cancel_and_wait(self._task)
        if self._next is not None:  # the task was cancelled before its first step
            self._next.set_exception(ClosedError(f"{self._name} were closed"))
            self._next = self._task = None
