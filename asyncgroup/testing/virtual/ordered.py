"""Deadlines, tasks and futures that know their order of creation, so that every run has the same order.

Timers of the same instant run in the order in which they were scheduled, and sets of tasks or futures iterate in the order
in which those were created.

asyncio and anyio keep tasks in sets, so the order in which tasks are cancelled, for example, would vary: by default an
object's hash depends on its address, which differs from process to process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Self, TypeVar

__all__ = ["OrderedDeadline", "OrderedFuture", "OrderedTask"]

T = TypeVar("T")


class OrderedDeadline(float):
    """A deadline with a sequence number: equal deadlines sort in the order in which they were created.

    asyncio keeps its timers in a heap, which is not stable, and compares them by their deadline alone. In virtual time
    many timers have the same deadline, so the order of creation has to be part of the deadline.
    """

    __slots__ = ("_order",)
    _order: int

    def __new__(cls, when: float, order: int) -> Self:
        self = super().__new__(cls, when)
        self._order = order
        return self

    def __lt__(self, other: float) -> bool:
        if isinstance(other, OrderedDeadline) and float.__eq__(self, other):
            return self._order < other._order
        return float.__lt__(self, other)


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
