"""Records that wait for a time: of the event loop, after a failure, or of the day, in their header `ag-deliver-at`. Pure state.

`DueTimes` is a heap of either kind, `DeliveryTimes` the one by time of day, and `WaitingRecords` has both.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import Final

from asyncgroup.model import MillisClock, Record
from asyncgroup.workqueue.delivery import Work

__all__ = ["NEVER", "RECHECK", "DeliveryTimes", "DueTimes", "WaitingRecords"]

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


RECHECK: Final = 5.0
"""Most seconds between two looks at the clock while records wait."""


class DeliveryTimes:
    """Records by the time of day from which on they are delivered.

    The clock of the machine may be set, and the event loop's stands still while the machine is suspended, so no delay is computed once:
    records are due by `clock`, in ms since 1970, which is looked at again at least each `RECHECK` seconds of the event loop.
    `due_at(record)` returns the delivery time of a record, None for none.
    """

    def __init__(self, due_at: Callable[[Record], int | None], clock: MillisClock) -> None:
        self._due_at = due_at
        self._clock = clock
        self._due = DueTimes()

    def __repr__(self) -> str:
        return f"<DeliveryTimes: {len(self._due)} records wait>"

    def of(self, record: Record) -> int | None:
        """Return the delivery time of a record that has to wait; None if it is due."""
        at = self._due_at(record)
        return None if at is None or at <= self._clock() else at

    def add(self, work: Work, record: Record, at: int) -> bool:
        """Add a record; return whether it is the first one to be delivered."""
        return self._due.add(work, record, at)

    def pop_due(self) -> Iterator[tuple[Work, Record]]:
        """Remove and return the records that are due."""
        return self._due.pop_due(self._clock()) if len(self._due) else iter(())

    @property
    def seconds_left(self) -> float:
        """Seconds until the next record may be due, or until the clock is read again; infinity if no record waits."""
        first = self._due.first
        return NEVER if first == NEVER else min(max(0.0, (first - self._clock()) / 1000), RECHECK)


class WaitingRecords:
    """The records of both kinds; `on_due(time)` is called with a loop time that is before all others."""

    def __init__(
        self, clock: Callable[[], float], delivery_times: DeliveryTimes, on_due: Callable[[float], None]
    ) -> None:
        self._clock = clock
        self._delivery_times = delivery_times
        self._due = DueTimes()
        self._on_due = on_due

    def __repr__(self) -> str:
        return f"<WaitingRecords: {len(self._due)} after a failure, {self._delivery_times!r}>"

    def now(self) -> float:
        """Return the loop time."""
        return self._clock()

    def add(self, work: Work, record: Record, due: float) -> None:
        """A record waits after a failed delivery, until a loop time."""
        if work.is_open and self._due.add(work, record, due):
            self._on_due(due)

    def add_delayed(self, work: Work, record: Record) -> bool:
        """Let a record wait for the time of day in its headers; return False if it is due, or has none."""
        if (at := self._delivery_times.of(record)) is None:
            return False
        if work.is_open:
            work.delayed.add(record.offset)
            if self._delivery_times.add(work, record, at):
                self._on_due(self._clock() + self._delivery_times.seconds_left)
        return True

    def pop_due(self, now: float) -> Iterator[tuple[Work, Record]]:
        """Remove and return the records whose time has come."""
        return chain(self._due.pop_due(now), self._delivery_times.pop_due())

    def next_due(self, now: float) -> float:
        """Return the loop time at which to look again, infinity if no record waits."""
        return min(self._due.first, now + self._delivery_times.seconds_left)
