"""Where the result of a record goes: the future of its caller, or a promise that also calls interceptors and hooks.

`send` awaits a CallerFuture. All callers of a response are woken in the turn of the event loop that received it: a future of
asyncio asks the loop for a separate callback, in a later turn, which costs a small record as much as its way to the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from asyncgroup.errors import ClosedError
from asyncgroup.hooks import Hooks
from asyncgroup.interceptor import ProducerRecord
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import DetailedRecordMetadata, RecordMetadata
from asyncgroup.producer.interceptors import ProducerInterceptors

__all__ = [
    "CallbackQueue",
    "CallerFuture",
    "RecordPromise",
    "ResultReceiver",
    "is_silent",
    "report_start",
]


class ResultReceiver(Protocol):
    """Receives the result of a record: a future, or a RecordPromise."""

    def done(self) -> bool:
        """Return whether it needs no result any more."""

    def set_result(self, metadata: RecordMetadata, /) -> None:
        """The record is acknowledged."""

    def set_exception(self, error: Exception, /) -> None:
        """The record has failed."""


# --- the futures of `send` ------------------------------------------------------------------------------------------


class CallbackQueue:
    """Callbacks of futures that are done: called by `call_held`, or in the next turn of the event loop.

    To the futures it is the loop.
    """

    get_debug = staticmethod(bool)
    """Called for each new future: False, at the least cost."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        # the context, the callback and the future of each caller, one after the other: tuples would be objects for the
        # garbage collector, as in ProducerBatch
        self._ready: list[Any] = []
        self._holds = False  # `call_held` will be called

    def __repr__(self) -> str:
        return f"<CallbackQueue: {len(self._ready) // 3} callbacks>"

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
        """Collect callbacks until `call_held`."""
        self._holds = True

    def call_held(self) -> None:
        """Call the callbacks, which wake the callers, now; within a task in the next turn, as the loop would.

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
    """The result of a record, for the task that awaits it: `CallerFuture(loop=callback_queue)`."""

    __slots__ = ()
    is_awaited: Final = True
    """Its caller waits now, unlike that of `send_nowait`: see `RecordAccumulator.on_future`."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop, which a task compares with its own."""
        queue: Any = self._loop
        loop: asyncio.AbstractEventLoop = queue.loop
        return loop


# --- promises -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class RecordPromise:
    """Stands in place of a record's future in its batch, and is kept also if no caller waits: for interceptors and hooks."""

    record: ProducerRecord
    _interceptors: ProducerInterceptors
    caller: asyncio.Future[RecordMetadata] | None
    """The future that the caller has; None for `enqueue`."""
    _hooks: Hooks | None
    """Those of the producer; None unless they listen to each record."""
    is_awaited: bool = False
    sequence_id: int | None = None
    _ended: bool = False
    _is_started: bool = False  # on_send_start was called, and on_send_end not yet

    def done(self) -> bool:
        """Return whether the record is acknowledged or has failed; unlike a future, it cannot be cancelled."""
        return self._ended

    def report_start(self) -> None:
        """There is room for the record, which is final now. Called before it is appended: a failure may follow at once."""
        if self._hooks is not None:
            self._is_started = True
            self._hooks.emit("on_send_start", self.record)

    def set_result(self, metadata: RecordMetadata, /) -> None:
        """The record is acknowledged."""
        if self.sequence_id is not None:
            metadata = DetailedRecordMetadata.of(metadata, sequence_id=self.sequence_id)
        self._end(metadata, None)
        if self.caller is not None and not self.caller.done():
            self.caller.set_result(metadata)

    def set_exception(self, error: Exception, /) -> None:
        """The record has failed."""
        self._end(None, error)
        if self.caller is not None and not self.caller.done():
            self.caller.set_exception(error)

    def refuse(self, error: BaseException) -> None:
        """The record was not accepted; the caller gets the error from its call."""
        if not isinstance(error, Exception):
            error = ClosedError(f"the record was withdrawn: {describe_error(error)}")
        self._end(None, error)

    def _end(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        self._ended = True
        self._interceptors.on_acknowledgement(self.record, metadata, error)
        if self._is_started and self._hooks is not None:
            self._is_started = False
            self._hooks.emit("on_send_end", self.record, metadata, error)


def report_start(future: object) -> None:
    """Report that a record is accepted, if a promise stands in place of its future."""
    if isinstance(future, RecordPromise):
        future.report_start()


def is_silent(future: object) -> bool:
    """Return whether no caller gets the error of a record, so that `flush` has to report it."""
    return future is None or (isinstance(future, RecordPromise) and future.caller is None)
