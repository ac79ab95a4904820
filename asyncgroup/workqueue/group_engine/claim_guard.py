"""ClaimGuard: why records of a claim wait although they could be delivered. Pure state.

- The encoding of the window is nearly too large for a commit: only records below its end are delivered, as in parallel-consumer.
- The last owner of the partition has crashed: deliveries are counted in a commit before they begin (`crash_counts`).
"""

from __future__ import annotations

from asyncgroup.model import Record
from asyncgroup.workqueue.delivery import Work
from asyncgroup.workqueue.group_engine.crash_counts import CrashCounts

__all__ = ["ClaimGuard"]


class ClaimGuard:
    """The DeliveryGuard of a claim; the partition has it only while there is one of the reasons, so that it costs nothing otherwise."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.is_full = False
        """Whether the window is nearly too large for a commit."""
        self._counts: CrashCounts | None = None

    def __repr__(self) -> str:
        return f"<ClaimGuard: {'full' if self.is_full else 'not full'}, {self._counts!r}>"

    def set_full(self, *, is_full: bool) -> None:
        """The size of the window has changed."""
        self.is_full = is_full
        self._update()

    def count(self, counts: CrashCounts) -> None:
        """Count deliveries in advance."""
        self._counts = counts
        self._update()

    def restart(self, offset: int) -> None:
        """Forget counts from `offset` on: the log has other records there. Call it before they are lost."""
        if self._counts is not None:
            self._counts.restart(offset)

    async def aclose(self) -> None:
        """Count no more; deliveries that have not ended do not count."""
        counts, self._counts = self._counts, None
        self._update()
        if counts is not None:
            await counts.aclose()

    def _update(self) -> None:
        self._work.guard = self if self.is_full or self._counts is not None else None

    # --- asked for each record ------------------------------------------------------------------------------------------

    def may_begin(self, record: Record) -> bool:
        """Whether the record may be delivered now."""
        work = self._work
        if self.is_full and record.offset >= work.window.end and not work.may_grow(record):
            return False
        return self._counts is None or self._counts.may_begin(record)

    def is_counted(self, offset: int) -> bool:
        """Whether the number of deliveries in the window includes the next one of this record."""
        return self._counts is not None and offset in self._counts.counted

    def ended(self, offset: int) -> None:
        """The delivery of a record has ended with an outcome."""
        if self._counts is not None:
            self._counts.ended(offset)
            if self._counts.is_done:
                self._counts.leave()
                self._counts = None
                self._update()

    def released(self, offset: int | None) -> None:
        """The delivery of a record (None: of all) was neither done nor failed."""
        if self._counts is not None:
            self._counts.released(offset)
