"""Faults and history of a `KafkaServer`, for the threads around it: every look and every change takes place on its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, Unpack

from asyncgroup.broker import EmbeddedCluster, Exchange, Fault
from asyncgroup.testing.fault_options import FaultOptions, make_fault

__all__ = ["ServerFault", "ServerFaults", "ServerHistory"]

_GRACE: Final = 60.0
"""Seconds by which a call waits longer for the thread than the thread itself waits."""


class _Call(Protocol):
    """How the thread is called: `KafkaServer.call`."""

    def __call__(self, function: Callable[[EmbeddedCluster], Any], *, timeout: float = ...) -> Any: ...


class ServerFault:
    """A fault of a `KafkaServer`; made by `ServerFaults.on`."""

    def __init__(self, call: _Call, fault: Fault) -> None:
        self._call, self._fault = call, fault

    if not TYPE_CHECKING:  # so that type checkers know that it is not there

        def __getattr__(self, name: str) -> object:
            """Say where those go who know the faults of an `EmbeddedCluster`."""
            if name in FaultOptions.__annotations__:
                raise AttributeError(
                    f"a KafkaServer's fault is made all in one call: faults.on('Fetch', {name}=…)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return repr(self._fault)

    @property
    def hits(self) -> int:
        """How often it was hit."""
        return self._fault.hits

    def wait_hit(self, hits: int = 1, timeout: float = 10.0) -> None:
        """Wait until it has been hit so often; TimeoutError after `timeout` seconds."""

        def describe() -> str:
            return f"{self._fault.hits} of {hits} hits in {timeout:g} s: {self._fault!r}"

        self._call(
            lambda _: _within(timeout, lambda: self._fault.wait_hit(hits), describe), timeout=timeout + _GRACE
        )

    def release(self) -> None:
        """Let the requests that it holds go on, and later ones pass."""
        self._call(lambda _: self._fault.release())

    def cancel(self) -> None:
        """Take the fault back: nothing is hit any more, what it holds goes on."""
        self._call(lambda _: self._fault.cancel())


class ServerFaults:
    """The faults of a `KafkaServer`."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    def on(self, api: str | None = None, **options: Unpack[FaultOptions]) -> ServerFault:
        """A new fault, whole in one call: `faults.on("Fetch", topic="orders", nth=2, error="NOT_LEADER_OR_FOLLOWER")`.

        Functions (`where`, `answer`, `mutate`, `observe`) run on the broker's thread.
        """
        return ServerFault(self._call, self._call(lambda cluster: make_fault(cluster.faults, api, **options)))

    @property
    def unused(self) -> list[str]:
        """The faults that were never hit, described."""
        described: list[str] = self._call(lambda cluster: [repr(fault) for fault in cluster.faults.unused])
        return described

    def clear(self) -> None:
        """Forget all faults, unused ones too; held requests go on."""
        self._call(lambda cluster: cluster.faults.clear())


class ServerHistory:
    """The history of a `KafkaServer`."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    def of(self, *apis: str, **fields: Any) -> list[Exchange]:
        """The exchanges of these APIs (all if none is named) that fit everything named; as `History.of`."""
        found: list[Exchange] = self._call(lambda cluster: cluster.history.of(*apis, **fields))
        return found

    def wait_for(self, *apis: str, count: int = 1, timeout: float = 10.0, **fields: Any) -> list[Exchange]:
        """Wait until `count` exchanges fit, and return all that do; TimeoutError after `timeout` seconds."""

        def wait(cluster: EmbeddedCluster) -> Any:
            history = cluster.history

            def describe() -> str:
                what = " or ".join(apis or ["any API"])
                fitting = "".join(f" with {name}={value!r}" for name, value in fields.items())
                found = len(history.of(*apis, **fields))
                return f"{found} of {count} exchanges of {what}{fitting} in {timeout:g} s"

            return _within(timeout, lambda: history.wait_for(*apis, count=count, **fields), describe)

        found: list[Exchange] = self._call(wait, timeout=timeout + _GRACE)
        return found

    def story(self, last: int | None = None, *, fold: bool = False) -> str:
        """The exchanges, or the last so many of them, as text, a line each; as `History.story`."""
        text: str = self._call(lambda cluster: cluster.history.story(last, fold=fold))
        return text

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self._call(lambda cluster: cluster.history.clear())


async def _within(seconds: float, wait: Callable[[], Any], describe: Callable[[], str]) -> Any:
    """What `wait` returns; TimeoutError with what `describe` says then."""
    try:
        async with asyncio.timeout(seconds):
            return await wait()
    except TimeoutError:
        raise TimeoutError(describe()) from None
