"""Hedged requests: ask another broker on failure, or after 1 s without a response; the first response wins.

For requests that any broker can answer, such as Metadata and FindCoordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from asyncgroup.cluster.connection import Address
from asyncgroup.errors import (
    AsyncGroupError,
    ClosedError,
    NoBrokersError,
    ProtocolError,
    TransportError,
    UnsupportedVersionError,
)
from asyncgroup.lifecycle import cancel_and_wait, mark_retrieved, start_task

__all__ = ["HEDGE_SECONDS", "HedgedRequests"]

HEDGE_SECONDS: Final = 1.0
"""Seconds without a response after which the request is sent to the next node as well."""

T = TypeVar("T")


class HedgedRequests:
    """Runs the hedged requests of a cluster; `aclose` cancels those in flight.

    `on_slow(node)` is called for each node that has not answered within `HEDGE_SECONDS`.
    """

    def __init__(self, on_slow: Callable[[Address], object]) -> None:
        self._on_slow = on_slow
        self._running: dict[asyncio.Task[Any], None] = {}
        """Tasks in flight, in the order of their start; a set would make the order of cancellation random."""

    async def first_response(
        self, what: str, nodes: Iterable[Address], ask: Callable[[Address], Coroutine[Any, Any, T]]
    ) -> T:
        """Call `ask` for `nodes`, in their order, until one succeeds; return its result and cancel the others.

        The next node is asked when the previous one failed or did not answer for `HEDGE_SECONDS`, so that a broker
        that accepts connections but never answers costs a second, not a request timeout. Raises NoBrokersError with the
        error of every node, and as its `__cause__` with the exception of a user's provider, or with the UnsupportedVersionError of
        the first node if all have one; an error other than TransportError and ProtocolError is raised as it is. `what` names the request in messages.
        """
        left = list(nodes)
        asked: list[asyncio.Task[T]] = []
        failures: list[AsyncGroupError] = []
        cause: BaseException | None = None
        try:
            while left or asked:
                if left:
                    node = left.pop(0)
                    asked.append(self._start(what, node, ask))
                limit = HEDGE_SECONDS if left else None
                ended, _ = await asyncio.wait(asked, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if not ended:
                    self._on_slow(node)
                # in the order of asking, not of the set that `wait` returned: simulations must be reproducible
                done, asked = [t for t in asked if t.done()], [t for t in asked if not t.done()]
                for task in done:
                    if task.cancelled():
                        raise ClosedError(f"the cluster was closed during {what}")
                    try:
                        return task.result()
                    except (TransportError, ProtocolError) as error:
                        failures.append(error)
                        cause = cause or error.__cause__
        finally:
            await cancel_and_wait(*asked)
        if failures and all(isinstance(error, UnsupportedVersionError) for error in failures):
            cause = failures[0]
        raise NoBrokersError(f"no broker answered {what}: " + "; ".join(map(str, failures))) from cause

    def _start(
        self, what: str, node: Address, ask: Callable[[Address], Coroutine[Any, Any, T]]
    ) -> asyncio.Task[T]:
        task = start_task(ask(node), name=f"{what} to {node}")
        self._running[task] = None
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        mark_retrieved(task)

    async def aclose(self) -> None:
        """Cancel the requests in flight and wait until their tasks have ended."""
        await cancel_and_wait(*self._running)
