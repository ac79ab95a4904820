"""The parts with which asyncio's loop runs on a virtual clock: ordered deadlines, and a selector that does not sleep.

`VirtualTimeLoop` (`loop.py`) uses both.
"""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ["AutojumpSelector", "OrderedDeadline"]


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


class _Select(Protocol):
    def __call__(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]: ...


class AutojumpSelector(selectors.BaseSelector):
    """A selector whose `select` calls the loop's `_wait` instead of sleeping; all other methods use a real selector."""

    def __init__(self, poller: selectors.BaseSelector, wait: _Select) -> None:
        self._poller = poller
        self._loop_wait = wait

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._poller.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._poller.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._poller.modify(fileobj, events, data)

    def get_map(self) -> Any:
        return self._poller.get_map()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return self._loop_wait(timeout)

    def close(self) -> None:
        self._poller.close()
