"""Injected faults as the broker sees them: which requests each hits, and what it does to them.

A `RequestFault` is what users see of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from asyncgroup.broker.errors import UnusedFaults
from asyncgroup.broker.traffic.matching import RequestFilter
from asyncgroup.broker.traffic.recorder import RequestInfo

__all__ = ["Cut", "Injection", "Injector"]

Cut: TypeAlias = Literal["before", "after", "mid-frame"]
"""When the connection is closed: before the request is handled, instead of the response, or in the middle of the
response.
"""


class Injection:
    """One fault: it hits `times` matching requests beginning with the `nth`; `times=None` hits all from there on.

    `copy(message)` returns a copy that can be changed. `on_failure` is called with the exceptions of the test's own functions.
    """

    def __init__(
        self,
        description: str,
        matches: RequestFilter,
        nth: int,
        times: int | None,
        on_failure: Callable[[BaseException], object],
        copy: Callable[[Any], Any],
    ) -> None:
        self.hits = 0
        self.disturbs = False
        """Whether it changes what happens, rather than only observing."""
        self.optional = False
        self.cancelled = False
        self.gate: asyncio.Event | None = None
        """Holds the requests until it is set."""
        self.delay = 0.0
        self.error: Any = None
        """The error that the response has, in the protocol's own form; None without one."""
        self.answer: Callable[[Any], Any] | None = None
        self.cut: Cut | None = None
        self.drops_response = False
        self.mutations: list[Callable[[Any], Any]] = []
        self.observers: list[Callable[[Any], object]] = []
        self._description = description
        self._matches = matches
        self._nth = nth
        self._times = times
        self._on_failure = on_failure
        self._copy = copy
        self._seen = 0
        self._hit_waiters: list[tuple[int, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        state = ", cancelled" if self.cancelled else ""
        return f"<Fault on {self._description}, {self.hits} hits{state}>"

    @property
    def is_unused(self) -> bool:
        """Whether it was never hit, and is neither optional nor cancelled."""
        return self.hits == 0 and not self.optional and not self.cancelled

    def release(self) -> None:
        """Resume the requests held; later ones are no longer held."""
        if self.gate is not None:
            self.gate.set()

    async def wait_hit(self, hits: int) -> None:
        """Wait until it has hit `hits` requests."""
        if self.hits < hits:
            future = asyncio.get_running_loop().create_future()
            self._hit_waiters.append((hits, future))
            await future

    # -- a request -------------------------------------------------------------------------------------------

    def try_hit(self, info: RequestInfo, request: Any, *, already_disturbed: bool) -> bool:
        """Count the request if it matches, and return whether it is hit.

        `already_disturbed`: another fault already acts on the request, so this one hits it only if its sole action is
        `observe`, or if it has none.
        """
        exhausted = self._times is not None and self.hits >= self._times
        if exhausted or self.cancelled or not self._matches_request(info, request):
            return False
        self._seen += 1
        if self._seen < self._nth or (already_disturbed and self.disturbs):
            return False
        self.hits += 1
        for hits, future in self._hit_waiters:
            if hits <= self.hits and not future.done():
                future.set_result(None)
        return True

    def _matches_request(self, info: RequestInfo, request: Any) -> bool:
        try:
            return self._matches(info, request)
        except Exception as error:  # noqa: BLE001  the test's own `where`; raised again by the cluster's exit
            self._on_failure(error)
            return False

    def notify_observers(self, exchange: object) -> None:
        """Call the observers; their exceptions are kept for the cluster's exit, as no client could report them."""
        for see in self.observers:
            try:
                see(exchange)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001  pytest.fail() does not raise an Exception
                self._on_failure(error)

    async def wait_before(self) -> None:
        """Wait while the request is held, then for its delay."""
        if self.gate is not None:
            await self.gate.wait()
        if self.delay > 0:
            await asyncio.sleep(self.delay)

    def make_answer(self, request: Any) -> Any:
        """Return the fault's response to `request`, given by `answer`."""
        assert self.answer is not None
        return self._call_user_code(self.answer, request)

    def apply_mutations(self, response: Any) -> Any:
        """Return a copy of the response with all mutations applied; the handler's own response may be shared."""
        if self.mutations:
            response = self._copy(response)
        for change in self.mutations:
            other = self._call_user_code(change, response)
            response = response if other is None else self._copy(other)
        return response

    def _call_user_code(self, function: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return function(argument)
        except BaseException as error:
            self._on_failure(error)
            raise


InjectionT = TypeVar("InjectionT", bound=Injection)
"""The injections of a protocol."""


class Injector(Generic[InjectionT]):
    """The faults of a cluster. If several match a request, the one created first acts on it."""

    def __init__(self) -> None:
        self.injections: list[InjectionT] = []
        self.failures: list[BaseException] = []
        """Exceptions of the test's own functions: those given to `observe`, `mutate`, `answer` and `where`."""

    def __repr__(self) -> str:
        return f"<Injector of {len(self.injections)} faults>"

    def select(self, info: RequestInfo, request: Any, exchange: object) -> InjectionT | None:
        """Return the fault that acts on this request, after notifying those that only observe."""
        chosen = None
        for injection in self.injections:
            if injection.try_hit(info, request, already_disturbed=chosen is not None):
                injection.notify_observers(exchange)
                if injection.disturbs:
                    chosen = injection
        return chosen

    def clear(self) -> None:
        """Remove all faults, including unused ones; held requests continue."""
        for injection in self.injections:
            injection.release()
        self.injections.clear()

    def check(self) -> None:
        """Raise the first exception of the test's own functions, or UnusedFaults if a fault was never hit."""
        if self.failures:
            raise self.failures[0]
        if unused := [injection for injection in self.injections if injection.is_unused]:
            raise UnusedFaults([repr(injection) for injection in unused])
