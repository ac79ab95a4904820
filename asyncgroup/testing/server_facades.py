"""Thread-safe faults and history of a `KafkaServer` and a `PulsarServer`.

Every method runs on the server's event loop, and blocks the calling thread until it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar, Unpack

from asyncgroup.broker.traffic.fault import RequestFault
from asyncgroup.broker.traffic.recorder import RecordedExchange
from asyncgroup.testing.fault_options import FaultOptions, make_fault

__all__ = ["InjectedFaults", "ServerFault", "ServerFaults", "ServerHistory"]

ExchangeT = TypeVar("ExchangeT", bound=RecordedExchange)
"""The exchanges of a protocol."""

_GRACE: Final = 60.0
"""Seconds that a call waits for the server's thread in addition to the timeout that applies on the thread."""


class _Call(Protocol):
    """The type of `KafkaServer.call`, with any cluster."""

    def __call__(self, function: Callable[[Any], Any], *, timeout: float = ...) -> Any: ...


class ServerFault:
    """A fault of a `KafkaServer`; created by `ServerFaults.on`."""

    _options: ClassVar = frozenset(FaultOptions.__annotations__)
    _example: ClassVar = ("a KafkaServer", "Fetch")

    def __init__(self, call: _Call, fault: RequestFault[Any]) -> None:
        self._call = call
        self._fault = fault

    # not for type checkers, which would take any attribute for an existing one
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Explain to users of an EmbeddedCluster's faults that `delay()` and the like are arguments here."""
            if name in self._options:
                server, api = self._example
                raise AttributeError(f"{server}'s fault is created in one call: faults.on({api!r}, {name}=…)")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return repr(self._fault)

    @property
    def hits(self) -> int:
        """The number of requests that the fault has hit."""
        return self._fault.hits

    def wait_hit(self, hits: int = 1, timeout: float = 10.0) -> None:
        """Wait until the fault has been hit `hits` times; TimeoutError after `timeout` seconds."""

        def describe() -> str:
            return f"{self._fault.hits} of {hits} hits in {timeout:g} s: {self._fault!r}"

        self._call(
            lambda _: _within(timeout, lambda: self._fault.wait_hit(hits), describe), timeout=timeout + _GRACE
        )

    def release(self) -> None:
        """Let the requests that it holds continue, and later ones pass."""
        self._call(lambda _: self._fault.release())

    def cancel(self) -> None:
        """Remove the fault: no further request is hit, and requests that it holds continue."""
        self._call(lambda _: self._fault.cancel())


class InjectedFaults:
    """The faults of a server of any protocol."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    @property
    def unused(self) -> list[str]:
        """Descriptions of the faults that were never hit."""
        described: list[str] = self._call(lambda cluster: [repr(fault) for fault in cluster.faults.unused])
        return described

    def clear(self) -> None:
        """Remove all faults, including unused ones; held requests continue."""
        self._call(lambda cluster: cluster.faults.clear())


class ServerFaults(InjectedFaults):
    """The faults of a `KafkaServer`."""

    def on(self, api: str | None = None, **options: Unpack[FaultOptions]) -> ServerFault:
        """Create a fault in one call: `faults.on("Fetch", topic="orders", nth=2, error="NOT_LEADER_OR_FOLLOWER")`.

        Functions (`where`, `answer`, `mutate`, `observe`) run on the broker's thread.
        """
        return ServerFault(self._call, self._call(lambda cluster: make_fault(cluster.faults, api, **options)))


class ServerHistory(Generic[ExchangeT]):
    """The history of a `KafkaServer` or `PulsarServer`."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    def of(self, *apis: str, **fields: Any) -> list[ExchangeT]:
        """Return the exchanges of these APIs (default: all) with these field values, as `of` of the cluster's history does."""
        found: list[ExchangeT] = self._call(lambda cluster: cluster.history.of(*apis, **fields))
        return found

    def wait_for(self, *apis: str, count: int = 1, timeout: float = 10.0, **fields: Any) -> list[ExchangeT]:
        """Wait until at least `count` exchanges match and return all that do; TimeoutError after `timeout` seconds."""

        def wait(cluster: Any) -> Any:
            history = cluster.history

            def describe() -> str:
                what = " or ".join(apis or ["any API"])
                matching = "".join(f" with {name}={value!r}" for name, value in fields.items())
                found = len(history.of(*apis, **fields))
                return f"{found} of {count} exchanges of {what}{matching} in {timeout:g} s"

            return _within(timeout, lambda: history.wait_for(*apis, count=count, **fields), describe)

        found: list[ExchangeT] = self._call(wait, timeout=timeout + _GRACE)
        return found

    def story(self, last: int | None = None, *, fold: bool = False) -> str:
        """Return the exchanges as text, one per line, or only the `last` ones; as the cluster's history does."""
        text: str = self._call(lambda cluster: cluster.history.story(last, fold=fold))
        return text

    def clear(self) -> None:
        """Discard what was recorded so far."""
        self._call(lambda cluster: cluster.history.clear())


async def _within(seconds: float, wait: Callable[[], Any], describe: Callable[[], str]) -> Any:
    """Return what `wait` returns; TimeoutError with the text of `describe` after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await wait()
    except TimeoutError:
        raise TimeoutError(describe()) from None
