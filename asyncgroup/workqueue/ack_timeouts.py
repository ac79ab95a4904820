"""AckTimeouts: which deliveries have expired, and when to look again. Pure state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from asyncgroup.workqueue.delivery import Delivery, Work
from asyncgroup.workqueue.due_times import NEVER

__all__ = ["AckTimeouts"]

CHECKS: Final = 20
"""The number of looks at the clock in an ack timeout."""

MAX_INTERVAL: Final = 1.0
"""The most seconds between two of them."""


class AckTimeouts:
    """The deadlines of these partitions' deliveries that have not ended.

    A timeout is measured in time in which the event loop runs. A block of the loop shows when a timer runs late: it began after the
    timer before that one, so while there are deadlines, the clock is looked at in each `interval`.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        """Seconds after the start of a delivery at which it expires; None: it never does."""
        self.interval = 0.0 if seconds is None else min(seconds / CHECKS, MAX_INTERVAL)
        """Seconds between two looks at the clock while there are deadlines. A shorter block of the loop counts."""

    def __repr__(self) -> str:
        return f"<AckTimeouts: {self.seconds} s>"

    def note_late(self, works: Iterable[Work], now: float, late: float) -> None:
        """A timer runs so many seconds late. If the event loop was blocked, put all deadlines off: its handlers had no turn."""
        if self.seconds is None or late <= self.interval:
            return
        # A loop that is only busy has each timer a little late: then deadlines come nearer by the interval each time. A block as
        # long as a part of the timeout may have begun up to an interval before the timer was due.
        blocked = late if late < self.seconds / 4 else late + self.interval
        latest = now + self.seconds  # the deadline of a delivery that begins now
        for work in works:
            for delivery in work.acquired.values():
                if delivery.deadline is not None:
                    delivery.deadline = min(delivery.deadline + blocked, latest)

    def overdue(self, works: Iterable[Work], now: float) -> tuple[list[Delivery], float]:
        """Return the deliveries whose timeout has passed, and when to look again; infinity if no delivery is left."""
        found: list[Delivery] = []
        following = NEVER
        if self.seconds is not None:
            for work in works:
                overdue, deadline = work.overdue(now)
                found += overdue
                following = min(following, deadline)
        return found, following if following == NEVER else min(following, now + self.interval)
