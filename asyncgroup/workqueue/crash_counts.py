"""CrashCounts: after a crash, deliveries are counted in a commit before they are handed out.

A record that kills its process is never nacked. So that it reaches the dead letter topic all the same, each commit of a
queue says that its claim is open, and the last commit of a claim that ends in order that it is closed. An owner that finds
an open claim counts the next deliveries in advance: the commit with the count comes before the hand-out.

Records that were in hand beside the one that killed the process are counted, too. From then on a record with a count is
handed out while no other one of its partition is in hand, so that the next crash counts only the one that caused it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.group.claim_window import ClaimWindow
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.model import Record
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.partition_work import PartitionWork

__all__ = ["CrashCounts"]

_log = logging.getLogger("asyncgroup.workqueue")

GROUP: Final = 32
"""The most deliveries that one commit counts in advance."""


class CrashCounts:
    """Counts the next `records` deliveries of a partition in advance, by its `gate`; `free()` is the number of idle handlers.

    `records` has to be at least the number of records that the last owner can have handed out since its last commit.
    """

    def __init__(
        self,
        work: PartitionWork,
        window: ClaimWindow,
        dispatcher: Dispatcher,
        records: int,
        free: Callable[[], int],
    ) -> None:
        self._work = work
        self._window = window
        self._dispatcher = dispatcher
        self._left = records
        self._free = free
        self._task: asyncio.Task[None] | None = None
        self._counting: dict[int, int] = {}  # as `work.counted`, while the commit is under way
        work.gate = self.gate

    def __repr__(self) -> str:
        return f"<CrashCounts of {self._work.tp}: {self._left} records left>"

    def gate(self, record: Record) -> bool:
        """Whether the record's next delivery is counted, so that it may be handed out; if not, that begins."""
        work = self._work
        if record.offset in work.counted:
            return True
        if self._task is not None:
            return False
        if self._left <= 0:
            work.gate = None
            return True
        if chosen := self._choose():
            for offset in chosen:
                before = self._counting[offset] = work.window.attempts.get(offset, 0)
                work.window.set_attempts(offset, before + 1)
            self._left -= len(chosen)
            work.on_change()
            self._task = asyncio.create_task(self._commit(), name=f"{work.tp}: count deliveries")
        return False

    def _choose(self) -> list[int]:
        """Return the offsets to count next: a record with a count alone, else as many fresh ones as handlers are idle."""
        work = self._work
        in_hand = work.in_hand
        suspect = next((each.offset for each in work.retries), None)
        if suspect is None and work.fresh and self._counts_one_by_one:
            suspect = work.fresh[0].offset
        if suspect is not None:
            # those that are counted are handed out first; others ask for a hand-out in the meantime
            return [] if in_hand or work.counted else [suspect]
        if any(offset in work.counted and work.counted[offset] for offset in in_hand):
            return []  # a record with a count is in hand
        number = max(1, min(GROUP, self._free(), self._left))
        return [each.offset for each in islice(work.fresh, number)]

    @property
    def _counts_one_by_one(self) -> bool:
        """Whether at most one record may have a count: handlers run one by one, or a count of 1 makes a dead letter."""
        return self._dispatcher.serial or self._dispatcher.publisher.is_last(1)

    async def _commit(self) -> None:
        try:
            await self._window.commit()
        except AsyncGroupError as error:
            _log.warning(
                "%s: deliveries could not be counted before their hand-out: %s", self._work.tp, error
            )
        finally:
            self._task = None
        self._work.counted |= self._counting
        self._counting = {}
        self._dispatcher.relist(self._work)

    async def aclose(self) -> None:
        """Take back the counts of records that were not delivered, or whose delivery was neither done nor failed."""
        if self._task is not None:
            await cancel_and_wait(self._task)
        work = self._work
        work.gate = None
        for offset, before in (work.counted | self._counting).items():
            work.window.set_attempts(offset, before)
        work.counted.clear()
        work.on_change()
