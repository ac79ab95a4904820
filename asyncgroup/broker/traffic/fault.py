"""RequestFault: what a test does to the requests that a fault hits, in any protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, get_args

from asyncgroup.broker.traffic.injection import Cut, Injection
from asyncgroup.checks import check_duration_or_zero
from asyncgroup.errors import ConfigError

__all__ = ["RequestFault"]

ExchangeT = TypeVar("ExchangeT")
"""What an observer gets: the exchanges of a protocol."""


class RequestFault(Generic[ExchangeT]):
    """An injected fault. `hits` counts the requests hit; without an action it only counts them."""

    def __init__(self, injection: Injection) -> None:
        self._injection = injection

    def __repr__(self) -> str:
        return repr(self._injection)

    @property
    def hits(self) -> int:
        """The number of requests hit."""
        return self._injection.hits

    async def wait_hit(self, hits: int = 1) -> None:
        """Wait until the fault has been hit `hits` times."""
        await self._injection.wait_hit(hits)

    # -- actions ---------------------------------------------------------------------------------------------

    def delay(self, seconds: float) -> Self:
        """Handle the request `seconds` later; later requests on the same connection wait for it."""
        check_duration_or_zero("seconds", seconds)
        self._injection.delay = seconds
        return self._disturb()

    def hold(self) -> Self:
        """Park the request until `release()`."""
        self._injection.gate = asyncio.Event()
        return self._disturb()

    def release(self) -> None:
        """Resume the requests that `hold` parked; later requests are no longer held."""
        self._injection.release()

    def answer(self, make: Callable[[Any], Any]) -> Self:
        """Respond with the message that `make(request)` returns, without handling the request."""
        self._injection.answer = make
        return self._disturb()

    def mutate(self, change: Callable[[Any], Any]) -> Self:
        """Handle the request, then change the response: `change(response)` modifies it in place or returns another one.

        `change` gets a copy, so later responses are not affected. Several mutations are applied in order. A field
        that the API version does not have is dropped when it is encoded; if the field may not be dropped, the
        connection is closed.
        """
        self._injection.mutations.append(change)
        return self._disturb()

    def drop(self) -> Self:
        """Handle the request but never respond; the connection stays open, and later requests on it are not handled."""
        self._injection.drops_response = True
        return self._disturb()

    def disconnect(self, when: Cut = "before") -> Self:
        """Close the connection, at the time given by `when` (see `Cut`)."""
        if when not in get_args(Cut):
            raise ConfigError("when", when, " or ".join(map(repr, get_args(Cut))))
        self._injection.cut = when
        return self._disturb()

    def observe(self, see: Callable[[ExchangeT], object]) -> Self:
        """Call `see(exchange)` when a request is hit, before anything else happens to it.

        The exchange holds the request, and later its response. An exception raised by `see`, such as a failed
        `assert`, is raised again by the cluster's exit.
        """
        self._injection.observers.append(see)
        return self

    def optional(self) -> Self:
        """Do not fail the test if the fault is never hit."""
        self._injection.optional = True
        return self

    def cancel(self) -> None:
        """Withdraw the fault: it hits no more requests, and those that it holds continue."""
        self._injection.cancelled = True
        self.release()

    def _fail_with(self, error: object) -> Self:
        """Respond with this error, in the protocol's own form, without handling the request."""
        self._injection.error = error
        return self._disturb()

    def _disturb(self) -> Self:
        self._injection.disturbs = True
        return self
