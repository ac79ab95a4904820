"""A memory budget that several producers share."""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.checks import SIZE
from asyncgroup.errors import ConfigError
from asyncgroup.memory.buffer_memory import BufferMemory

__all__ = ["MemoryBudget", "add_listener", "check_budget", "memory_of", "notify", "remove_listener"]


class MemoryBudget:
    """Bytes of unacknowledged records of several producers together, in addition to the `buffer_bytes` of each.

        budget = MemoryBudget(64 * 1024 * 1024)
        async with Producer(servers, memory=budget) as one, Producer(servers, memory=budget) as other:
            ...

    Callers of all producers wait for free bytes in one FIFO queue; a cancelled one gives back what it held. Records are
    counted by their uncompressed size. `limit` is in bytes; raises ConfigError if it is not a whole number above 0. All
    producers must run in one event loop.
    """

    def __init__(self, limit: int) -> None:
        if not SIZE[0](limit):
            raise ConfigError("limit", limit, SIZE[1])
        self._memory = BufferMemory(limit, "the memory budget's limit")
        self._listeners: dict[Callable[[], None], None] = {}

    def __repr__(self) -> str:
        return f"<MemoryBudget {self.used} of {self.limit} bytes, {self.waiting} callers waiting>"

    @property
    def limit(self) -> int:
        """The most bytes in use, except for a single record that is larger."""
        return self._memory.limit

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._memory.used

    @property
    def waiting(self) -> int:
        """The number of callers that wait."""
        return self._memory.waiting


def check_budget(budget: object) -> MemoryBudget | None:
    """Return the `memory` argument of a producer; raise ConfigError if it is neither None nor a budget."""
    if budget is not None and not isinstance(budget, MemoryBudget):
        raise ConfigError("memory", budget, "None or a MemoryBudget")
    return budget


def memory_of(budget: MemoryBudget) -> BufferMemory:
    """Return the memory of a budget; its methods are no part of the public object."""
    return budget._memory


def add_listener(budget: MemoryBudget, on_waiting: Callable[[], None]) -> None:
    """Call `on_waiting` whenever a caller has to wait: the producer that holds the memory should not linger."""
    budget._listeners[on_waiting] = None


def remove_listener(budget: MemoryBudget, on_waiting: Callable[[], None]) -> None:
    """Undo `add_listener`."""
    budget._listeners.pop(on_waiting, None)


def notify(budget: MemoryBudget) -> None:
    """A caller has to wait."""
    for on_waiting in list(budget._listeners):
        on_waiting()
