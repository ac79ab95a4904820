"""CrashCounts: after a crash, each delivery is counted in a commit before it begins.

A record that kills its process is never nacked, but has to reach the dead letter topic. Therefore each commit of a
queue says that its claim is open, and the last commit of a claim that ends in order that it is closed. An owner that finds
an open claim counts the next deliveries in advance: the commit with the count comes before the delivery.

Other records that were being handled when the process was killed are counted as well. A record with half of the deliveries
that are allowed may be what kills the process (a poison pill): it is delivered in isolation, while no other counted record of any
partition of the member is being handled, so that a further crash counts only the record that caused it.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import Record
from asyncgroup.workqueue.delivery import Work
from asyncgroup.workqueue.engine import OpenQueue
from asyncgroup.workqueue.group_engine.claim_window import ClaimWindow

__all__ = ["CrashCounts", "CrashedClaims"]

_log = logging.getLogger("asyncgroup.workqueue")

GROUP: Final = 32
"""The most deliveries that one commit counts in advance."""


class CrashedClaims:
    """The claims of a member whose deliveries are counted in advance."""

    def __init__(self, queue: OpenQueue) -> None:
        self.queue = queue
        self.claims: list[CrashCounts] = []

    def __repr__(self) -> str:
        return f"<CrashedClaims: {len(self.claims)}>"

    def counted(self) -> list[tuple[CrashCounts, int]]:
        """Return the deliveries that are counted and have not ended: their claims, and the offsets."""
        live = set(map(id, self.queue.works()))  # the others are revoked or lost
        claims = [claim for claim in self.claims if id(claim.work) in live]
        return [(claim, offset) for claim in claims for offset in (*claim.counted, *claim.counting)]

    def requeue(self) -> None:
        """Counted deliveries have ended: others may be counted now, also those of other partitions."""
        for claim in list(self.claims):
            self.queue.requeue(claim.work)


class CrashCounts:
    """Counts the next `records` deliveries of a partition in advance.

    `records` has to be at least the number of records that the last owner can have delivered since its last commit.
    """

    def __init__(self, work: Work, window: ClaimWindow, claims: CrashedClaims, records: int) -> None:
        self.work = work
        self.counted: dict[int, int] = {}
        """The records whose next delivery is included in the window's attempts already: by offset, the number without it."""
        self.counting: dict[int, int] = {}
        """As `counted`, while the commit with the counts is under way."""
        self._isolated = -1  # the offset of the record in isolation that was counted last
        self._window = window
        self._claims = claims
        self._left = records
        self._task: asyncio.Task[None] | None = None
        claims.claims.append(self)

    def __repr__(self) -> str:
        return f"<CrashCounts of {self.work.tp}: {self._left} records left>"

    @property
    def is_done(self) -> bool:
        """Whether no more deliveries are counted, and those that were have ended."""
        return self._left <= 0 and not self.counted and self._task is None

    def may_begin(self, record: Record) -> bool:
        """Whether the record's next delivery is counted, so that it may begin; if it is not, begin to count it."""
        if record.offset in self.counted:
            return True
        if self._task is not None:
            return False
        if self._left <= 0:
            return True
        if chosen := self._choose():
            window = self.work.window
            for offset in chosen:
                before = self.counting[offset] = window.attempts.get(offset, 0)
                window.set_attempts(offset, before + 1, in_advance=True)
            self._left -= len(chosen)
            self.work.engine.on_change()
            self._task = start_task(self._commit(), name=f"{self.work.tp}: count deliveries")
        return False

    def _choose(self) -> list[int]:
        """Return the offsets to count next: one record in isolation, else as many others as handlers are idle.

        They are the next ones of their queue, as others would have to wait for those before them.
        """
        work, queue = self.work, self._claims.queue
        counted = self._claims.counted()
        if any(claim._isolated == offset for claim, offset in counted):
            return []  # until it has ended: a crash is its own
        chosen: list[int] = []
        for ready in (work.retries, work.fresh):
            for record in islice(ready, GROUP):
                offset = record.offset
                if offset in self.counted:
                    continue
                if self._is_isolated(queue.attempts(work, record)):
                    if chosen:
                        break
                    if work.acquired or counted:
                        return []
                    self._isolated = offset
                    return [offset]
                chosen.append(offset)
        return chosen[: 1 if queue.is_serial else max(1, min(GROUP, queue.free_handlers, self._left))]

    def _is_isolated(self, attempts: int) -> bool:
        """Whether a record with `attempts` failed deliveries is delivered in isolation: after half of those allowed, or all but one."""
        is_last = self._claims.queue.is_last
        return is_last(2 * attempts) or is_last(attempts + 1)

    async def _commit(self) -> None:
        try:
            await self._window.commit()
        except AsyncGroupError as error:
            _log.warning("%s: deliveries could not be counted before they begin: %s", self.work.tp, error)
        finally:
            self._task = None
        self.counted |= self.counting
        self.counting = {}
        self._claims.queue.requeue(self.work)

    # --- deliveries end -----------------------------------------------------------------------------------------------------

    def ended(self, offset: int) -> None:
        """A delivery has ended with an outcome."""
        if self.counted.pop(offset, None) is not None:
            self._claims.requeue()

    def released(self, offset: int | None) -> None:
        """Take back the count of a delivery (None: of all) that was neither done nor failed."""
        for at in [*self.counted, *self.counting] if offset is None else [offset]:
            for counts in (self.counted, self.counting):
                if (before := counts.pop(at, None)) is not None:
                    self.work.window.set_attempts(at, before, in_advance=True)
                    self.work.engine.on_change()
        if offset is None:
            self._claims.requeue()

    def restart(self, offset: int) -> None:
        """Forget the counts from `offset` on: the log has other records there. Call it before they are lost."""
        for counts in (self.counted, self.counting):
            for at in [at for at in counts if at >= offset]:
                del counts[at]

    async def aclose(self) -> None:
        """Take back the counts of records that were not delivered, or whose delivery was neither done nor failed."""
        if self._task is not None:
            await cancel_and_wait(self._task)
        self.released(None)
        self.leave()

    def leave(self) -> None:
        """Count no more deliveries."""
        self._claims.claims.remove(self)
