"""Turns: selects the partition whose record is delivered next, and limits the share of redeliveries. Pure state."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from asyncgroup.model import Record
from asyncgroup.workqueue.delivery import Work

__all__ = ["Turns"]


class Turns:
    """Partitions with ready records take turns, one record each; records that were delivered before get a share of them.

    At most `retry_share` of the turns and of the slots (`set_slots`) are for retries while there are fresh records, so that
    records that fail each time do not keep fresh ones waiting. Slots are limited also while there are none.

    `may_take(work, record)` says whether the record may be delivered now; a partition whose first record may not is dropped
    from the queue, and has to be added again when that has changed.
    """

    def __init__(self, may_take: Callable[[Work, Record], bool], retry_share: float) -> None:
        self._may_take = may_take
        self._retry_share = retry_share
        self._retry_gain = retry_share / (1 - retry_share) if retry_share < 1 else math.inf
        self._retry_slots: int | None = None
        # of turns: a retry costs 1, a fresh record gains `_retry_gain` while retries are ready
        self._retry_credit = 0.0
        self.retries_in_hand = 0
        """Number of open deliveries that began in a turn of the retries."""
        self._fresh: deque[Work] = deque()  # partitions with fresh records, the next one first
        self._retries: deque[Work] = deque()
        self.has_retries = False
        """Whether a partition with ready records that were delivered before is queued."""

    def __repr__(self) -> str:
        return f"<Turns: {len(self._fresh)} partitions with fresh records, {len(self._retries)} with retries>"

    def count(self) -> int:
        """The number of ready records of the queued partitions."""
        return sum(len(work.fresh) for work in self._fresh) + sum(len(work.retries) for work in self._retries)

    def set_slots(self, slots: int | None) -> None:
        """Set how many records are handled at a time; None: no limit for retries."""
        self._retry_slots = None if slots is None else max(1, int(slots * self._retry_share))

    def add_fresh(self, work: Work) -> None:
        """Queue a partition that has fresh records."""
        if not work.in_fresh_turn:
            work.in_fresh_turn = True
            self._fresh.append(work)

    def add_retry(self, work: Work) -> None:
        """Queue a partition that has ready records that were delivered before."""
        if not work.in_retry_turn:
            work.in_retry_turn = True
            self._retries.append(work)
            self.has_retries = True

    def next_retry(self, *, in_order: bool) -> Work | None:
        """Return the partition whose retry is next, if it is the turn of the retries; `in_order`: they precede all others."""
        if self._retries and (in_order or (self._retry_credit >= 1.0 and self._has_slot())):
            return self._first_retry()
        return None

    def next_fresh(self) -> Work | None:
        """Return the partition whose fresh record is next."""
        queue, may_take = self._fresh, self._may_take
        while queue:
            work = queue[0]
            fresh = work.fresh
            if fresh and may_take(work, fresh[0]):
                if len(queue) > 1:
                    queue.rotate(-1)
                if self._retries:
                    self._retry_credit = min(self._retry_credit + self._retry_gain, 1.0)
                return work
            queue.popleft()
            work.in_fresh_turn = False
        return None

    def last_retry(self) -> Work | None:
        """Return the partition whose retry is next, when there are no fresh records."""
        return self._first_retry() if self._retries and self._has_slot() else None

    def _has_slot(self) -> bool:
        return self._retry_slots is None or self.retries_in_hand < self._retry_slots

    def _first_retry(self) -> Work | None:
        queue = self._retries
        while queue:
            work = queue[0]
            if work.retries and self._may_take(work, work.retries[0]):
                queue.rotate(-1)
                self._retry_credit = max(0.0, self._retry_credit - 1.0)
                return work
            queue.popleft()
            work.in_retry_turn = False
        self.has_retries = False
        return None
