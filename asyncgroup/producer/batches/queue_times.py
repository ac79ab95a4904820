"""QueueTimes: the loop time at which each of many partitions has to be looked at, earliest first, in O(log n)."""

from __future__ import annotations

import itertools
from heapq import heappop, heappush
from typing import Final

from asyncgroup.producer.batches.partition_queue import PartitionQueue

__all__ = ["NEVER", "QueueTimes"]

NEVER: Final = float("inf")
"""A loop time that never comes."""


class QueueTimes:
    """A heap of loop times with one entry for each queue: the earliest time that was put for it.

    A time is a reminder to look at the queue: its state may have changed since, so a later time than the known one is not put
    and none is removed. A caller that looks too early puts the queue again.
    """

    __slots__ = ("_at", "_heap", "_ties")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, PartitionQueue]] = []
        self._at: dict[PartitionQueue, float] = {}
        """The time of each queue; an entry of the heap with another time is outdated."""
        self._ties = itertools.count()  # queues have no order

    def __repr__(self) -> str:
        return f"<QueueTimes of {len(self._at)} partitions, next at {self.next:g}>"

    def __len__(self) -> int:
        return len(self._at)

    @property
    def next(self) -> float:
        """The earliest time; infinity without any."""
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER

    def put(self, queue: PartitionQueue, at: float) -> None:
        """Look at a queue at loop time `at`, unless an earlier time is known."""
        known = self._at.get(queue)
        if known is None or at < known:
            self._at[queue] = at
            heappush(self._heap, (at, next(self._ties), queue))

    def pop_due(self, now: float) -> list[PartitionQueue]:
        """Remove and return the queues whose time has come, in the order of their times."""
        heap, due = self._heap, []
        while heap and heap[0][0] <= now:
            at, _, queue = heappop(heap)
            if self._at.get(queue) == at:
                del self._at[queue]
                due.append(queue)
        return due

    def discard(self, queue: PartitionQueue) -> None:
        """Remove a queue."""
        self._at.pop(queue, None)
