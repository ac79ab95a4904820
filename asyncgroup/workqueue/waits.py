"""Waits: the records that wait for a time, of the event loop (after a failure) or of the day (a delivery time)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from asyncgroup.model import Record
from asyncgroup.workqueue.delivery import Work
from asyncgroup.workqueue.delivery_times import DeliveryTimes
from asyncgroup.workqueue.due_times import DueTimes

__all__ = ["Waits"]


class Waits:
    """Both kinds of waiting records; `on_due(time)` is called with a loop time that is before all others."""

    def __init__(
        self, clock: Callable[[], float], delivery_times: DeliveryTimes, on_due: Callable[[float], None]
    ) -> None:
        self._clock = clock
        self._delivery_times = delivery_times
        self._due = DueTimes()
        self._on_due = on_due

    def __repr__(self) -> str:
        return f"<Waits: {len(self._due)} after a failure, {self._delivery_times!r}>"

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
