"""ThreadedServer: what a KafkaServer and a PulsarServer share, their thread, their context and `call`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from asyncgroup.errors import ConfigError
from asyncgroup.testing.server_thread import CALL_TIMEOUT, ServerThread, ThreadedCluster

__all__ = ["ThreadedServer"]

ClusterT = TypeVar("ClusterT", bound=ThreadedCluster)
_T = TypeVar("_T")


class ThreadedServer(Generic[ClusterT]):
    """An embedded broker, of any protocol, on an event loop in a separate thread."""

    def __init__(self, cluster: ClusterT) -> None:
        self._thread = ServerThread(cluster, type(self).__name__)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._thread.state}: {self._thread.cluster!r}>"

    def __enter__(self) -> Self:
        """Start all brokers; raises what the cluster's start raises."""
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all brokers and end the thread."""
        if exc is not None:
            self.ignore_unused_faults()
        self._thread.stop()
        if exc is None:
            self._thread.raise_error()

    def ignore_unused_faults(self) -> None:
        """Do not raise UnusedFaults at the end, for a test that has failed: the error would hide the test's own."""
        self._thread.ignores_unused_faults = True

    @overload
    def call(self, function: Callable[[ClusterT], Awaitable[_T]], *, timeout: float = ...) -> _T: ...

    @overload
    def call(self, function: Callable[[ClusterT], _T], *, timeout: float = ...) -> _T: ...

    def call(self, function: Callable[[ClusterT], Any], *, timeout: float = CALL_TIMEOUT) -> Any:
        """Call `function(cluster)` on the cluster's event loop, await the result if needed, and return it.

        Raises TimeoutError after `timeout` seconds, and cancels what is awaited; ClosedError if the server ends first.
        """
        return self._thread.call(function, timeout=timeout)

    def advance(self, seconds: float) -> None:
        """Set the brokers' clock forward, as if their processes had been suspended for `seconds`.

        What is due by then happens at once: session timeouts, retention, expiry, delayed messages. The clients' clocks do
        not change, so members of Kafka's groups expire if `seconds` is more than their session timeout.
        """
        if seconds < 0:
            raise ConfigError("seconds", seconds, "0 or more")
        self._thread.advance(seconds)
