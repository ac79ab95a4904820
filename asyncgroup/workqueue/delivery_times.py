"""DeliveryTimes: records that wait for a time of day, in their header `ag-deliver-at`. Pure state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from asyncgroup.model import MillisClock, Record
from asyncgroup.workqueue.delivery import Work
from asyncgroup.workqueue.due_times import NEVER, DueTimes

__all__ = ["RECHECK", "DeliveryTimes"]

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
