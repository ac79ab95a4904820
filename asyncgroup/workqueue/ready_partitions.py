"""ReadyPartitions: selects the partition whose record is delivered next, and limits the share of redeliveries. Pure state."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from asyncgroup.model import Record
from asyncgroup.workqueue.delivery import Delivery, Work
from asyncgroup.workqueue.orders import InOrder

__all__ = ["Demand", "NoDemand", "ReadyPartitions"]


class Demand(Protocol):
    """The tasks that wait for a delivery."""

    def wake(self, records: int) -> None:
        """Wake tasks for this number of records, which have arrived."""
        ...

    def wake_later(self, ready: Callable[[], int]) -> None:
        """As `wake`, in the next turn of the event loop, for `ready()` records: the caller may take one itself until then."""
        ...


class NoDemand:
    """Nothing waits."""

    def wake(self, records: int) -> None:
        """Nothing waits."""

    def wake_later(self, ready: Callable[[], int]) -> None:
        """Nothing waits."""


class ReadyPartitions:
    """Partitions with ready records take turns, one record each; records that were delivered before get a share of them.

    At most `retry_share` of the turns and of the slots (`set_slots`) are for retries while there are fresh records, so that
    records that fail each time do not keep fresh ones waiting. Slots are limited also while there are none.

    A partition whose first record may not be delivered now is dropped from the queue, and has to be queued again
    (`requeue`) when that has changed. `order` is that of modes in which retries precede all other records.
    """

    def __init__(self, retry_share: float, order: InOrder | None, demand: Demand) -> None:
        self.demand = demand
        """What waits for deliveries: the queue's own tasks, or its local consumers."""
        self._order = order
        self._retry_share = retry_share
        self._retry_gain = retry_share / (1 - retry_share) if retry_share < 1 else math.inf
        self._retry_slots: int | None = None
        # of turns: a retry costs 1, a fresh record gains `_retry_gain` while retries are ready
        self._retry_credit = 0.0
        self._acquired_retries = 0  # deliveries with a slot
        self._fresh: deque[Work] = deque()  # partitions with fresh records, the next one first
        self._retries: deque[Work] = deque()
        self.has_retries = False
        """Whether a partition with ready records that were delivered before is queued."""

    def __repr__(self) -> str:
        return f"<ReadyPartitions: {len(self._fresh)} partitions with fresh records, {len(self._retries)} with retries>"

    def count(self) -> int:
        """The number of ready records of the queued partitions."""
        return sum(len(work.fresh) for work in self._fresh) + sum(len(work.retries) for work in self._retries)

    # --- partitions have ready records ----------------------------------------------------------------------------------

    def add(self, work: Work) -> int:
        """Queue a partition that may have ready records; return their number."""
        if work.fresh and not work.is_fresh_queued:
            work.is_fresh_queued = True
            self._fresh.append(work)
        if not work.retries:
            return len(work.fresh)
        if not work.is_retry_queued:
            work.is_retry_queued = True
            self._retries.append(work)
            self.has_retries = True
        return len(work.fresh) + len(work.retries)

    def requeue(self, work: Work) -> None:
        """Deliver records of the partition again, after a condition that may have prevented it has changed."""
        if self.add(work):
            self.demand.wake_later(self.count)

    def wake_later(self) -> None:
        """A record may be delivered that could not before."""
        self.demand.wake_later(self.count)

    # --- which one is next ----------------------------------------------------------------------------------------------

    def next_retry(self) -> Work | None:
        """Return the partition whose retry is next, if it is the turn of the retries; in order they precede all others."""
        if self._retries and (self._order is not None or (self._retry_credit >= 1.0 and self._has_slot())):
            return self._first_retry()
        return None

    def next_fresh(self) -> Work | None:
        """Return the partition whose fresh record is next."""
        queue, is_shared = self._fresh, self._order is None
        while queue:
            work = queue[0]
            fresh = work.fresh
            # `_may_take` without its call for most records
            if fresh and (
                (is_shared and work.guard is None and work.is_open) or self._may_take(work, fresh[0])
            ):
                if len(queue) > 1:
                    queue.rotate(-1)
                if self._retries:
                    self._retry_credit = min(self._retry_credit + self._retry_gain, 1.0)
                return work
            queue.popleft()
            work.is_fresh_queued = False
        return None

    def last_retry(self) -> Work | None:
        """Return the partition whose retry is next, when there are no fresh records."""
        return self._first_retry() if self._retries and self._has_slot() else None

    def _first_retry(self) -> Work | None:
        queue = self._retries
        while queue:
            work = queue[0]
            if work.retries and self._may_take(work, work.retries[0]):
                queue.rotate(-1)
                self._retry_credit = max(0.0, self._retry_credit - 1.0)
                return work
            queue.popleft()
            work.is_retry_queued = False
        self.has_retries = False
        return None

    def _may_take(self, work: Work, record: Record) -> bool:
        """Whether the record may be delivered now."""
        if not work.is_open or (self._order is not None and not self._order.may_take(work, record)):
            return False
        return work.guard is None or work.guard.may_begin(record)

    # --- the slots of retries -------------------------------------------------------------------------------------------

    def set_slots(self, slots: int | None) -> None:
        """Set how many records are handled at a time; None: no limit for retries."""
        self._retry_slots = None if slots is None else max(1, int(slots * self._retry_share))

    def take_slot(self, delivery: Delivery) -> None:
        """A delivery of a record that was delivered before begins."""
        delivery._has_slot = True
        self._acquired_retries += 1

    def free_slot(self, delivery: Delivery) -> None:
        """It has ended."""
        if delivery._has_slot:
            delivery._has_slot = False
            self._acquired_retries -= 1
            if self.has_retries:
                self.demand.wake_later(self.count)

    def _has_slot(self) -> bool:
        return self._retry_slots is None or self._acquired_retries < self._retry_slots
