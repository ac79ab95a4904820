"""`BrokerClient`: blocking access to brokers for the driver, with an event loop that runs only during calls.

Spark calls a stream's reader on one thread of a separate process. Between the calls nothing runs here, neither thread nor
timer; data that brokers send in this time waits in the sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Self, TypeVar

from asyncgroup.errors import ClosedError
from asyncgroup.spark.source.driver.broker_lookups import BrokerLookups
from asyncgroup.spark.source.driver.group_committer import GroupCommitter
from asyncgroup.spark.source.options.settings import ReadSettings
from asyncgroup.spark.worker_process import notice_closed_connections

__all__ = ["BrokerClient"]

T = TypeVar("T")

CLOSE_TIMEOUT: Final = 2.0
"""Maximum seconds for closing connections: Spark has closed the process's stdin by then."""


class BrokerClient:
    """One query's connections, opened by the first call and kept until `close`. For use by one thread.

    `call(function)` runs a coroutine function with the query's `BrokerLookups` and returns its result.
    """

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lookups: BrokerLookups | None = None
        self._commits: GroupCommitter | None = None
        self._running: asyncio.Task[Any] | None = None
        self._busy = False  # during `call`
        self._interrupted = False
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, work: Callable[[BrokerLookups], Coroutine[Any, Any, T]]) -> T:
        """Run `work(lookups)` and return its result; connect first if necessary.

        Raises what it raises, ClosedError after `close`, and CancelledError after `interrupt`.
        """
        self._busy = True
        try:
            return self._run(self._call_with_lookups(work))
        finally:
            self._busy = False
            if self._interrupted:  # also if the interrupt came before or after the loop ran
                raise asyncio.CancelledError

    def commits(self) -> GroupCommitter | None:
        """Return the committer of the query's group; None if it commits nothing. For use inside `call` only."""
        settings = self._settings
        if settings.group_id is None or not settings.commit_offsets:
            return None
        if self._commits is None:
            assert self._lookups is not None
            self._commits = GroupCommitter(self._lookups, settings)
        return self._commits

    def interrupt(self) -> bool:
        """Cancel the running call, if there is one; return whether there was. For signal handlers.

        An exception raised by the handler itself would appear inside the event loop's code.
        """
        if not self._busy:
            return False
        self._interrupted = True
        if self._loop is not None and self._running is not None:
            self._loop.call_soon_threadsafe(self._running.cancel)
        return True

    def close(self) -> None:
        """Close the connections, in at most `CLOSE_TIMEOUT` seconds. Safe to call twice."""
        self._closed = True
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.run_until_complete(self._close())
            finally:
                loop.close()

    # --- internals ----------------------------------------------------------------------------------------------

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise ClosedError("the reader was stopped")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            loop = self._ensure_loop()
        except ClosedError:
            work.close()
            raise
        # the loop does not run, so no task factory can run the first step here
        running: asyncio.Task[T] = loop.create_task(work)
        self._running = running
        if self._interrupted:
            running.cancel()
        try:
            return loop.run_until_complete(running)
        finally:
            self._running = None

    async def _call_with_lookups(self, work: Callable[[BrokerLookups], Awaitable[T]]) -> T:
        if self._lookups is None:
            lookups = BrokerLookups(self._settings)
            await lookups.open()
            self._lookups = lookups
        else:
            await notice_closed_connections()
        return await work(self._lookups)

    async def _close(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                if self._commits is not None:
                    await self._commits.aclose()
                if self._lookups is not None:
                    await self._lookups.aclose()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
