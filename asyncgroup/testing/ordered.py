"""Tasks and futures that hash by the order in which they were made, so that a set of them is walked the same way in every run.

The hash of any other object is its address, which is another one in each process; and asyncio and anyio keep tasks in sets:
which of two tasks is cancelled first, for example, would be a matter of chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

__all__ = ["OrderedFuture", "OrderedTask"]

T = TypeVar("T")


class OrderedFuture(asyncio.Future[T]):
    """The `order`-th future of a loop."""

    __slots__ = ("_order",)

    def __init__(self, order: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._order = order
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._order


class OrderedTask(asyncio.Task[T]):
    """The `order`-th task of a loop."""

    __slots__ = ("_order",)

    def __init__(
        self,
        order: int,
        work: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        loop: asyncio.AbstractEventLoop,
        **options: Any,
    ) -> None:
        self._order = order  # asyncio keeps a set of all tasks, into which this one goes while it is made
        super().__init__(work, loop=loop, **options)

    def __hash__(self) -> int:
        return self._order
