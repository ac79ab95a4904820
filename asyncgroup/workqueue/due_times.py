"""DueTimes: records that wait for a time before they are delivered. Pure state."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Final

from asyncgroup.model import Record
from asyncgroup.workqueue.delivery import Work

__all__ = ["NEVER", "DueTimes"]

NEVER: Final = float("inf")
"""The due time if no record waits."""

_FEW: Final = 1000
"""Entries that are never looked through."""

_numbers: Final = count()  # of the entries of all heaps: a record may wait in one after the other

_Entry = tuple[float, int, Work, Record]
"""Due time, a number that orders equal times, and whose record it is."""


class DueTimes:
    """A heap by time, of the event loop or of the day, so that a short delay does not wait for a longer one (as it does in a queue for each delay).

    A record that is forgotten elsewhere (revoked, truncated, delivered again in order) stays in the heap until its time, or until
    such entries are the majority. An entry counts only while `PartitionWork.wait_numbers` has its number.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._prune_at = _FEW

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first(self) -> float:
        """The time at which the next record is due."""
        return self._heap[0][0] if self._heap else NEVER

    def add(self, work: Work, record: Record, due: float) -> bool:
        """Add a record that is due at the time `due`; return whether that is before all others."""
        if len(self._heap) >= self._prune_at:
            self._prune()
        number = next(_numbers)
        work.waiting[record.offset] = record
        work.wait_numbers[record.offset] = number
        heapq.heappush(self._heap, (due, number, work, record))
        return self._heap[0][3] is record

    def pop_due(self, now: float) -> Iterator[tuple[Work, Record]]:
        """Remove and return the records that are due, the earliest first."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            entry = heapq.heappop(heap)
            if _counts(entry):
                _, _, work, record = entry
                del work.waiting[record.offset], work.wait_numbers[record.offset]
                yield work, record

    def _prune(self) -> None:
        """Drop the entries that do not count; the next time when as many have been added as are left."""
        self._heap[:] = filter(_counts, self._heap)
        heapq.heapify(self._heap)
        self._prune_at = max(_FEW, 2 * len(self._heap))


def _counts(entry: _Entry) -> bool:
    _, number, work, record = entry
    return work.wait_numbers.get(record.offset) == number
