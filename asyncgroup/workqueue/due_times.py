"""DueTimes: records that wait for a time before they are delivered. Pure state."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Final

from asyncgroup.model import Record
from asyncgroup.workqueue.partition_work import PartitionWork

__all__ = ["NEVER", "DueTimes"]

NEVER: Final = float("inf")
"""The due time if no record waits."""


class DueTimes:
    """A heap by time, so that a short delay does not wait for a longer one (as it does in a queue for each delay).

    A record that is forgotten elsewhere (revoked, truncated, delivered again in order) stays in the heap until its time; it
    counts only while `PartitionWork.waiting` holds the same record.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, PartitionWork, Record]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first(self) -> float:
        """The loop time at which the next record is due."""
        return self._heap[0][0] if self._heap else NEVER

    def add(self, work: PartitionWork, record: Record, due: float) -> bool:
        """Add a record that is due at loop time `due`; return whether that is before all others."""
        work.waiting[record.offset] = record
        heapq.heappush(self._heap, (due, next(self._numbers), work, record))
        return self._heap[0][3] is record

    def pop_due(self, now: float) -> Iterator[tuple[PartitionWork, Record]]:
        """Remove and return the records that are due, the earliest first."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, work, record = heapq.heappop(heap)
            if work.waiting.get(record.offset) is record:
                del work.waiting[record.offset]
                yield work, record
