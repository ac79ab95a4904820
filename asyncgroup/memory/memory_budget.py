"""A memory budget that several producers share."""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.errors import ConfigError
from asyncgroup.memory.buffer_memory import BufferMemory

__all__ = ["MemoryBudget", "SharedMemory", "check_budget"]


class SharedMemory:
    """The memory of a budget, and what its producers do when a caller has to wait."""

    def __init__(self, limit: int, name: str) -> None:
        self.memory = BufferMemory(limit, name)
        self.listeners: dict[Callable[[], None], None] = {}
        """What `notify` calls; each once."""

    def __repr__(self) -> str:
        return f"<SharedMemory {self.memory}, {len(self.listeners)} listeners>"

    def add_listener(self, on_waiting: Callable[[], None]) -> None:
        """Call `on_waiting` whenever a caller has to wait: the producer that holds the memory should not linger."""
        self.listeners[on_waiting] = None

    def remove_listener(self, on_waiting: Callable[[], None]) -> None:
        """Undo `add_listener`."""
        self.listeners.pop(on_waiting, None)

    def notify(self) -> None:
        """A caller has to wait."""
        for on_waiting in list(self.listeners):
            on_waiting()


class MemoryBudget:
    """Bytes of unacknowledged records of several producers together, in addition to the `buffer_bytes` of each.

        budget = MemoryBudget(64 * 1024 * 1024)
        async with Producer(servers, memory=budget) as one, Producer(servers, memory=budget) as other:
            ...

    Callers of all producers wait for free bytes in one FIFO queue; a cancelled one gives back what it held. Records are
    counted by their uncompressed size. `limit` is in bytes; raises ConfigError if it is not a whole number above 0. `name` is
    what errors call it. All producers must run in one event loop.
    """

    def __init__(self, limit: int, name: str = "the memory budget's limit") -> None:
        if type(limit) is not int or limit <= 0:
            raise ConfigError("limit", limit, "a whole number of bytes, 1 or more")
        self._inner = SharedMemory(limit, name)

    def __repr__(self) -> str:
        return f"<MemoryBudget {self.used} of {self.limit} bytes, {self.waiting} callers waiting>"

    @property
    def limit(self) -> int:
        """The most bytes in use, except for a single record that is larger."""
        return self._inner.memory.limit

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._inner.memory.used

    @property
    def waiting(self) -> int:
        """The number of callers that wait."""
        return self._inner.memory.waiting


def check_budget(budget: object) -> MemoryBudget | None:
    """Return the `memory` argument of a producer; raise ConfigError if it is neither None nor a budget."""
    if budget is not None and not isinstance(budget, MemoryBudget):
        raise ConfigError("memory", budget, "None or a MemoryBudget")
    return budget
