"""The thread that runs an embedded broker for blocking code, and calls from other threads to its event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar

from asyncgroup.errors import ClosedError, UsageError

__all__ = ["CALL_TIMEOUT", "AdjustableLoop", "ServerThread", "ThreadedCluster"]

CALL_TIMEOUT: Final = 60.0
"""Seconds after which a call to the cluster's thread times out."""


class _Faults(Protocol):
    def clear(self) -> None: ...


class ThreadedCluster(Protocol):
    """An embedded broker, of any protocol, that runs within its context."""

    @property
    def faults(self) -> _Faults:
        """Its faults."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> object: ...


ClusterT = TypeVar("ClusterT", bound=ThreadedCluster)
"""The cluster that a thread runs."""


class AdjustableLoop(asyncio.SelectorEventLoop):
    """A selector loop with `advance`, which sets the loop's clock forward as if the loop had slept.

    Timers that are due by then run in the next iterations, in order.
    """

    _ahead = 0.0  # seconds by which the loop's clock is ahead of the machine's

    def time(self) -> float:
        """The loop's clock in seconds: the machine's monotonic clock plus all advances."""
        return super().time() + self._ahead

    def wall_clock(self) -> int:
        """The time of day in ms, ahead of the machine's by all advances."""
        return time.time_ns() // 1_000_000 + int(self._ahead * 1000)

    def advance(self, seconds: float) -> None:
        """Set the clock forward. Must be called on the loop's own thread."""
        self._ahead += seconds


class ServerThread(Generic[ClusterT]):
    """Runs `cluster` on an event loop in a separate thread, between `start` and `stop`. `server` is the class that users see."""

    def __init__(self, cluster: ClusterT, server: str) -> None:
        self.cluster = cluster
        self._server = server
        self.ignores_unused_faults = False
        """Whether unused faults are no error when the cluster stops."""
        self._thread = threading.Thread(
            target=self._run, name=f"{server.removesuffix('Server').lower()}-server", daemon=True
        )
        self._started: Future[None] = Future()  # done when the cluster runs, or its start has failed
        self._stop_requested: Future[None] = Future()
        self._result: Future[None] = Future()  # done when the thread ends, with its exception
        self._call_lock = threading.Lock()
        self._loop: AdjustableLoop | None = None
        """The thread's loop while it accepts calls. It is set to None under the lock, so that a call scheduled under the
        lock on a loop that is not None is certain to run."""

    @property
    def state(self) -> str:
        """Running, ended or not started."""
        return "running" if self._loop is not None else "ended" if self._started.done() else "not started"

    def start(self) -> None:
        """Start the thread and the cluster, once; raises what the cluster's start raises."""
        if self._started.done():
            raise UsageError(f"a {self._server} can be entered only once; create a new one")
        self._thread.start()
        try:
            self._started.result(CALL_TIMEOUT)
        except BaseException:  # also an interrupt: nothing else stops the thread then
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the cluster and wait for the end of the thread."""
        if not self._stop_requested.done():
            self._stop_requested.set_result(None)
        self._thread.join(CALL_TIMEOUT)

    def raise_error(self) -> None:
        """Raise what the thread raised; TimeoutError if it is stuck."""
        self._result.result(0)

    def call(self, function: Callable[[ClusterT], Any], *, timeout: float = CALL_TIMEOUT) -> Any:
        """Call `function(cluster)` on the event loop, await the result if needed, and return it.

        Raises TimeoutError after `timeout` seconds, and cancels what is awaited; ClosedError if the cluster ends first.
        """
        if threading.current_thread() is self._thread:
            raise UsageError(
                f"a call from the {self._server}'s own thread would deadlock: call the cluster's methods there"
            )

        async def work() -> Any:
            result = function(self.cluster)
            return await result if isinstance(result, Awaitable) else result

        with self._call_lock:
            if self._loop is None:
                raise ClosedError(f"the {self._server} is not running: use it inside its `with` block")
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result(timeout)
        except CancelledError:
            raise ClosedError(f"the {self._server} was stopped during this call") from None
        finally:
            future.cancel()  # after a timeout or an interrupt; otherwise it is done

    def advance(self, seconds: float) -> None:
        """Set the loop's clock forward."""
        self.call(lambda _: self._advance(seconds))

    def _advance(self, seconds: float) -> None:
        assert self._loop is not None
        self._loop.advance(seconds)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=AdjustableLoop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:  # noqa: BLE001  passed on to the thread that started this one
                (self._result if self._started.done() else self._started).set_exception(error)
            else:
                self._result.set_result(None)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AdjustableLoop)
        try:
            async with self.cluster:
                self._loop = loop
                self._started.set_result(None)
                await asyncio.wrap_future(self._stop_requested)
                with self._call_lock:
                    self._loop = None
                # calls scheduled just before start now; the end of the loop cancels them
                await asyncio.sleep(0)
                if self.ignores_unused_faults:
                    self.cluster.faults.clear()
        finally:
            self._loop = None
