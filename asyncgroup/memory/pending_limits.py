"""Several limits at once on the records that are not done: bytes, records, a shared budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from asyncgroup.config import ProducerConfig
from asyncgroup.memory.buffer_memory import BufferMemory
from asyncgroup.memory.memory_budget import MemoryBudget
from asyncgroup.model import TopicPartition

__all__ = [
    "PartitionLimits",
    "PendingLimit",
    "PendingLimits",
    "ProducerMemory",
    "partition_limits",
    "producer_memory",
]


class PendingLimit(NamedTuple):
    """One of several limits."""

    memory: BufferMemory
    counts_records: bool = False
    budget: MemoryBudget | None = None
    """Set if the limit is shared with other producers."""

    def amount(self, size: int, records: int = 1) -> int:
        """Return what records of `size` bytes use of this limit."""
        return records if self.counts_records else size


class Waiters:
    """The number of callers that wait for limits which are counted together."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __repr__(self) -> str:
        return f"<Waiters {self.count}>"


class PendingLimits:
    """Limits that a record has to meet, all of them; the methods are those of BufferMemory.

    A caller waits for one after the other, and holds what it got of the earlier ones: nothing that is held waits for a later
    limit only, so this cannot lock up.
    """

    def __init__(self, limits: Sequence[PendingLimit], waiters: Waiters | None = None) -> None:
        self._limits = tuple(limits)
        self._waiters = waiters or Waiters()
        self._failures = 0  # calls of `fail`
        self._make_error: Callable[[], Exception] = AssertionError  # of the last one

    def __repr__(self) -> str:
        return f"<PendingLimits {', '.join(repr(each.memory) for each in self._limits)}>"

    @property
    def limit(self) -> int:
        """The first limit: `buffer_bytes` of a producer."""
        return self._limits[0].memory.limit

    @property
    def used(self) -> int:
        """What is in use of the first limit."""
        return self._limits[0].memory.used

    @property
    def waiting(self) -> int:
        """The number of callers that wait, also of other producers that share a budget."""
        return sum(each.memory.waiting for each in self._limits)

    def try_reserve(self, size: int, records: int = 1) -> bool:
        """Reserve the `size` bytes of a number of records now; False if a limit is reached."""
        for number, each in enumerate(self._limits):
            if not each.memory.try_reserve(each.amount(size, records)):
                self._release(self._limits[:number], size, records)
                return False
        return True

    async def reserve(self, size: int, records: int = 1) -> None:
        """Wait until the `size` bytes of a number of records are reserved. A cancelled caller gives back what it was granted."""
        failures = self._failures
        for number, each in enumerate(self._limits):
            amount = each.amount(size, records)
            if self._failures != failures:  # the earlier limit was granted just before `fail`
                self._release(self._limits[:number], size, records)
                raise self._make_error()
            if each.memory.try_reserve(amount):
                continue
            self._waiters.count += 1
            try:
                waiting = each.memory.reserve(amount, self)
                if each.budget is not None:
                    each.budget._inner.notify()
                await waiting
            except BaseException:
                self._release(self._limits[:number], size, records)
                raise
            finally:
                self._waiters.count -= 1

    def force(self, size: int) -> None:
        """Reserve a record of `size` bytes, even above the limits."""
        for each in self._limits:
            each.memory.force(each.amount(size))

    def release(self, size: int, records: int = 1) -> None:
        """Free the `size` bytes of a number of records, and grant waiters in FIFO order while they fit."""
        self._release(self._limits, size, records)

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """Fail every caller that waits here, each with a separate error."""
        self._failures += 1
        self._make_error = make_error
        for each in self._limits:
            each.memory.fail(make_error, self)

    def shortage(self, size: int, records: int = 1) -> str | None:
        """Return which limit a number of records of `size` bytes do not meet now; None if they meet all."""
        reasons = (each.memory.shortage(each.amount(size, records)) for each in self._limits)
        return next((reason for reason in reasons if reason is not None), None)

    def _release(self, limits: Sequence[PendingLimit], size: int, records: int = 1) -> None:
        for each in limits:
            each.memory.release(each.amount(size, records))


ProducerMemory = BufferMemory | PendingLimits
"""The limits of a producer as a whole."""


def producer_memory(config: ProducerConfig, budget: MemoryBudget | None) -> ProducerMemory:
    """Return the limits of a producer: plain buffer memory if there is no other limit, as that is the fastest."""
    memory = BufferMemory(config.buffer_bytes)
    limits = [PendingLimit(memory)]
    if config.max_pending_records is not None:
        records = BufferMemory(config.max_pending_records, "max_pending_records", "records")
        limits.append(PendingLimit(records, counts_records=True))
    if budget is not None:
        limits.append(PendingLimit(budget._inner.memory, budget=budget))
    return PendingLimits(limits) if len(limits) > 1 else memory


class PartitionLimits:
    """The same limits for each partition. A partition without pending records takes no memory."""

    def __init__(self, records: int | None, size: int | None) -> None:
        self._records = records
        self._size = size
        self._partitions: dict[TopicPartition, PendingLimits] = {}
        self._waiters = Waiters()  # of all partitions

    def __repr__(self) -> str:
        return f"<PartitionLimits {len(self._partitions)} partitions, {self.waiting} callers waiting>"

    @property
    def waiting(self) -> int:
        """The number of callers that wait."""
        return self._waiters.count

    def of(self, tp: TopicPartition) -> PendingLimits:
        """Return the limits of a partition."""
        found = self._partitions.get(tp)
        if found is None:
            found = self._partitions[tp] = PendingLimits(self._new_limits(tp), self._waiters)
        return found

    def _new_limits(self, tp: TopicPartition) -> list[PendingLimit]:
        limits = []
        if self._records is not None:
            name = f"{tp}: max_pending_records_per_partition"
            limits.append(PendingLimit(BufferMemory(self._records, name, "records"), counts_records=True))
        if self._size is not None:
            limits.append(PendingLimit(BufferMemory(self._size, f"{tp}: max_pending_bytes_per_partition")))
        return limits

    def is_full(self, tp: TopicPartition, size: int) -> bool:
        """Return whether a record of `size` bytes would have to wait."""
        return tp in self._partitions and self._partitions[tp].shortage(size) is not None

    def release(self, tp: TopicPartition, size: int, records: int = 1) -> None:
        """Free the `size` bytes of a number of records."""
        limits = self._partitions[tp]
        limits.release(size, records)
        if not limits.used and not limits.waiting:
            del self._partitions[tp]

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """Fail every waiting caller, each with a separate error."""
        for limits in list(self._partitions.values()):
            limits.fail(make_error)


def partition_limits(config: ProducerConfig) -> PartitionLimits | None:
    """Return the limits of each partition, or None if there are none."""
    records, size = config.max_pending_records_per_partition, config.max_pending_bytes_per_partition
    return PartitionLimits(records, size) if (records, size) != (None, None) else None
