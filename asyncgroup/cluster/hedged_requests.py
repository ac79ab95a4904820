"""A question that any node can answer: one node after the other, and the next one already while the last is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from asyncgroup.cluster.connection import Address
from asyncgroup.errors import ClosedError, NoBrokersError, ProtocolError, TransportError
from asyncgroup.lifecycle import cancel_and_wait, mark_retrieved

__all__ = ["HEDGE_SECONDS", "HedgedRequests"]

HEDGE_SECONDS: Final = 1.0
"""A lookup that a node has not answered for so long is sent to the next one as well."""

T = TypeVar("T")


class HedgedRequests:
    """The lookups of a cluster that are under way; `aclose` ends them all.

    `on_slow(node)` is called for each node that has not answered within `HEDGE_SECONDS`.
    """

    def __init__(self, on_slow: Callable[[Address], object] = lambda _node: None) -> None:
        self._on_slow = on_slow
        self._running: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._running)

    async def first_response(
        self, what: str, nodes: Iterable[Address], ask: Callable[[Address], Coroutine[Any, Any, T]]
    ) -> T:
        """The first answer that `ask` gets out of `nodes`, asked in their order.

        The next node is asked when the one before failed or was silent for `HEDGE_SECONDS`: a broker that accepts and
        never answers costs a lookup a second, not a request timeout. Raises NoBrokersError naming what every node
        answered; any error that is neither TransportError nor ProtocolError ends the lookup as itself.
        """
        left = list(nodes)
        asked: list[asyncio.Task[T]] = []
        failures: list[str] = []
        try:
            while left or asked:
                if left:
                    node = left.pop(0)
                    asked.append(self._start(what, node, ask))
                limit = HEDGE_SECONDS if left else None
                ended, _ = await asyncio.wait(asked, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if not ended:
                    self._on_slow(node)
                # in the order of the asking, not in that of a set: a simulation has to repeat itself
                done, asked = [t for t in asked if t.done()], [t for t in asked if not t.done()]
                for task in done:
                    if task.cancelled():
                        raise ClosedError(f"closed while {what} was looked up")
                    try:
                        return task.result()
                    except (TransportError, ProtocolError) as error:
                        failures.append(str(error))
        finally:
            await cancel_and_wait(*asked)
        raise NoBrokersError(f"no broker answered {what}: " + "; ".join(failures))

    def _start(
        self, what: str, node: Address, ask: Callable[[Address], Coroutine[Any, Any, T]]
    ) -> asyncio.Task[T]:
        task = asyncio.create_task(ask(node), name=f"{what} to {node}")
        self._running[task] = None
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        mark_retrieved(task)

    async def aclose(self) -> None:
        """Cancel what is under way and wait for its end."""
        await cancel_and_wait(*self._running)
