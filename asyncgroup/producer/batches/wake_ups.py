"""CallerFuture: what `send` awaits. All callers of a response are woken in the turn of the event loop that received it.

A future of asyncio asks the loop for a separate callback, in a later turn, which costs a small record as much as its way
to the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, NoReturn

from asyncgroup.model import RecordMetadata

__all__ = ["CallerFuture", "WakeUps"]


class WakeUps:
    """The callers to wake: by `wake_held`, or in the next turn of the event loop. To their futures it is the loop."""

    get_debug = staticmethod(bool)
    """Called for each new future: False, at the least cost."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        # the context, the callback and the future of each caller, one after the other: tuples would be objects for the
        # garbage collector, as in ProducerBatch
        self._ready: list[Any] = []
        self._holds = False  # `wake_held` will be called

    def __repr__(self) -> str:
        return f"<WakeUps: {len(self._ready) // 3} callers>"

    def start(self) -> None:
        """Use the running event loop; called before any caller waits."""
        self._loop = asyncio.get_running_loop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        if self._loop is None:
            raise RuntimeError("a caller waits before the producer is open")
        return self._loop

    def call_soon(self, callback: Callable[[Any], object], future: CallerFuture, *, context: Context) -> None:
        """Call a callback of a future that is done."""
        if not self._ready and not self._holds:
            self.loop.call_soon(self._run)
        self._ready += (context, callback, future)

    def hold(self) -> None:
        """Collect the callers until `wake_held`."""
        self._holds = True

    def wake_held(self) -> None:
        """Wake the callers now. Called by the event loop; within a task they are woken in the next turn.

        What a caller raises out of the event loop (KeyboardInterrupt, SystemExit) it raises in a separate callback, so
        that the connection that received the response continues.
        """
        self._holds = False
        if not self._ready:
            return
        if asyncio.current_task(self._loop) is not None:
            self.loop.call_soon(self._run)
            return
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001  raised by the callback
            self.loop.call_soon(_raise, error)

    def _run(self) -> None:
        ready, self._ready = self._ready, []
        ready.reverse()
        take = ready.pop
        try:
            while ready:
                context: Context = take()
                context.run(take(), take())
        finally:
            # KeyboardInterrupt and SystemExit of one caller leave the loop; the others are woken when it runs again
            if ready:
                ready.reverse()
                if not self._ready and not self._holds:
                    self.loop.call_soon(self._run)
                self._ready += ready

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that was never read."""
        self.loop.call_exception_handler(context)


def _raise(error: BaseException) -> NoReturn:
    raise error


class CallerFuture(asyncio.Future[RecordMetadata]):
    """The result of a record, for the task that awaits it: `CallerFuture(loop=wake_ups)`."""

    __slots__ = ()
    is_awaited: Final = True
    """Unlike a future of `send_nowait`: see `record_end.is_awaited`."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop, which a task compares with its own."""
        wake_ups: Any = self._loop
        loop: asyncio.AbstractEventLoop = wake_ups.loop
        return loop
