"""Tasks and futures that hash by their order of creation, so that sets of them iterate in the same order in every run.

By default an object's hash depends on its address, which differs from process to process. asyncio and anyio keep tasks in
sets, so that the order in which tasks are cancelled, for example, would vary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

__all__ = ["OrderedFuture", "OrderedTask"]

T = TypeVar("T")


class OrderedFuture(asyncio.Future[T]):
    """A future with the hash `order`, its number among the futures and tasks of its loop."""

    __slots__ = ("_order",)

    def __init__(self, order: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._order = order
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._order


class OrderedTask(asyncio.Task[T]):
    """A task with the hash `order`, its number among the futures and tasks of its loop."""

    __slots__ = ("_order",)

    def __init__(
        self,
        order: int,
        work: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        loop: asyncio.AbstractEventLoop,
        **options: Any,
    ) -> None:
        self._order = order  # before super().__init__, which adds the task to asyncio's set of all tasks
        super().__init__(work, loop=loop, **options)

    def __hash__(self) -> int:
        return self._order
