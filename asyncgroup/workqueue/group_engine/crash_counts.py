"""CrashCounts: after a crash, each delivery is counted in a commit before it begins.

A record that kills its process is never nacked, but has to reach the dead letter topic. Therefore each commit of a
queue says that its claim is open, and the last commit of a claim that ends in order that it is closed. An owner that finds
an open claim counts the next deliveries in advance: the commit with the count comes before the delivery.

Other records that were being handled when the process was killed are counted as well. A record with half of the deliveries
that are allowed is a suspect: it is delivered alone, while no other counted record of any partition of the member is being
handled, so that a further crash counts only the record that caused it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import Record
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.group_engine.claim_window import ClaimWindow
from asyncgroup.workqueue.partition_work import PartitionWork

__all__ = ["CrashCounts"]

_log = logging.getLogger("asyncgroup.workqueue")

GROUP: Final = 32
"""The most deliveries that one commit counts in advance."""


class CrashCounts:
    """Counts the next `records` deliveries of a partition in advance, by its `gate`; `free()` is the number of idle handlers.

    `records` has to be at least the number of records that the last owner can have delivered since its last commit.
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
        work.gate = self.gate

    def __repr__(self) -> str:
        return f"<CrashCounts of {self._work.tp}: {self._left} records left>"

    def gate(self, record: Record) -> bool:
        """Whether the record's next delivery is counted, so that it may begin; if it is not, begin to count it."""
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
                before = work.counting[offset] = work.window.attempts.get(offset, 0)
                work.window.set_attempts(offset, before + 1, in_advance=True)
            self._left -= len(chosen)
            work.on_change()
            self._task = start_task(self._commit(), name=f"{work.tp}: count deliveries")
        return False

    def _choose(self) -> list[int]:
        """Return the offsets to count next: a suspect alone, else as many others as handlers are idle.

        They are the next ones of their queue, as others would have to wait for those before them.
        """
        work = self._work
        works = self._dispatcher.works.values()
        counted = [(each, offset) for each in works for offset in (*each.counted, *each.counting)]
        if any(each.suspect == offset for each, offset in counted):
            return []  # until it has ended: a crash is its own
        chosen: list[int] = []
        for queue in (work.retries, work.fresh):
            for record in islice(queue, GROUP):
                offset = record.offset
                if offset in work.counted:
                    continue
                if self._is_suspect(self._dispatcher.attempts(work, record)):
                    if chosen:
                        break
                    if work.in_hand or counted:
                        return []
                    work.suspect = offset
                    return [offset]
                chosen.append(offset)
        return chosen[: 1 if self._dispatcher.serial else max(1, min(GROUP, self._free(), self._left))]

    def _is_suspect(self, attempts: int) -> bool:
        """Whether a record with `attempts` failed deliveries is delivered alone: half of those allowed, or all but one."""
        is_last = self._dispatcher.publisher.is_last
        return is_last(2 * attempts) or is_last(attempts + 1)

    async def _commit(self) -> None:
        try:
            await self._window.commit()
        except AsyncGroupError as error:
            _log.warning(
                "%s: deliveries could not be counted before their hand-out: %s", self._work.tp, error
            )
        finally:
            self._task = None
        self._work.counted |= self._work.counting
        self._work.counting = {}
        self._dispatcher.relist(self._work)

    def restart(self, offset: int) -> None:
        """Forget the counts from `offset` on: the log has other records there. Call it before they are lost."""
        for counts in (self._work.counted, self._work.counting):
            for at in [at for at in counts if at >= offset]:
                del counts[at]

    async def aclose(self) -> None:
        """Take back the counts of records that were not delivered, or whose delivery was neither done nor failed."""
        if self._task is not None:
            await cancel_and_wait(self._task)
        work = self._work
        work.gate = None
        work.take_back_counts()
