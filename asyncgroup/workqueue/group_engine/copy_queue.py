"""CopyQueue: the copies that wait for a transaction, and which of them the next one takes. Pure state.

A transaction takes copies to one topic, and all of them fail if one does. So these are kept apart from the others:

- A copy that a broker has refused is alone in its transaction.
- Copies to a stalled partition, one that has not answered within the time of a transaction, share a separate trial. There is
  one trial at a time for all of them, and a pause between two, however many copies and partitions there are. If a coordinator
  fails during a trial, the next one follows at once.
- Copies that were written in a transaction in which others were not written in time share the next one with each other only.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from asyncgroup.errors import ClosedError
from asyncgroup.model import TopicPartition
from asyncgroup.workqueue.group_engine.claim_window import ClaimWindow
from asyncgroup.workqueue.group_engine.copy_batch import CopyBatch, WaitingCopy
from asyncgroup.workqueue.publisher import RETRIES

__all__ = ["TRIAL_TIME", "CopyQueue"]

MAX_COPIES: Final = 500
"""Copies in a transaction."""

MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the values in a transaction with more than one copy."""

TRIAL_TIME: Final = RETRIES.maximum
"""Seconds for the copies of a trial; its abort may wait for a silent leader after that."""

PAUSE_SHARE: Final = 3.0
"""The pause after a trial is this many times as long, within the limits.

Other copies have the producer for about half of the time, or more.
"""

MAX_PAUSE: Final = 2 * RETRIES.maximum
"""The longest pause after a trial, in seconds; the shortest is the longest delay before a copy is tried again."""

MEMORY: Final = 2 * RETRIES.maximum
"""Seconds after which a stalled partition that no copy has to go to is forgotten: copies without a key may go there again."""


class CopyQueue:
    """The copies that wait.

    - `window_of(tp)` returns the window of a claim of the present session.
    - `place(copy)` returns the partition that a copy goes to, not one of `stalled` if its key leaves the choice; None if the
      topic is not known yet.
    """

    def __init__(
        self,
        window_of: Callable[[TopicPartition], ClaimWindow | None],
        place: Callable[[WaitingCopy], TopicPartition | None],
    ) -> None:
        self._window_of = window_of
        self._place = place
        self._waiting: deque[WaitingCopy] = deque()
        self._held: list[WaitingCopy] = []
        """Copies to stalled partitions, which wait for the next trial."""
        self.stalled: dict[TopicPartition, float] = {}
        """Partitions that did not answer in time, until a copy is written to them, with the loop time at which that was noted."""
        self._trial_at = 0.0  # loop time from which on the next trial may begin

    def __repr__(self) -> str:
        return f"<CopyQueue: {len(self)} copies, {len(self.stalled)} stalled partitions>"

    def __len__(self) -> int:
        return len(self._waiting) + len(self._held)

    def __iter__(self) -> Iterator[WaitingCopy]:
        return itertools.chain(self._held, self._waiting)

    # --- copies come and go -------------------------------------------------------------------------------------------------

    def add(self, copy: WaitingCopy) -> None:
        """Add a copy at the end."""
        self._waiting.append(copy)

    def repeat(self, copies: Iterable[WaitingCopy]) -> None:
        """Put copies whose outcome is open first in line."""
        again = [copy for copy in copies if not copy.is_given_up and not copy.outcome.done()]
        self._waiting.extendleft(reversed(again))

    def drop_given_up(self) -> None:
        """Forget the copies that were given up."""
        self._waiting = deque(copy for copy in self._waiting if not copy.is_given_up)
        self._held = [copy for copy in self._held if not copy.is_given_up]

    def clear(self) -> list[WaitingCopy]:
        """Forget all copies, and return them."""
        copies = list(self)
        self._waiting.clear()
        self._held.clear()
        return copies

    # --- which the next transaction takes -----------------------------------------------------------------------------------

    def next_batch(self, now: float) -> CopyBatch | None:
        """Take the first copy that may be tried at loop time `now`, and those that fit to it."""
        is_trial_due = now >= self._trial_at
        if is_trial_due:
            self._forget_unwanted(now)
            self._release()
        batch, left = CopyBatch([], {}), deque[WaitingCopy]()
        for copy in self._waiting:
            window = self._window_of(copy.tp)
            if copy.outcome.done():
                continue  # its caller was cancelled
            if window is None or not window.transaction.is_live:
                copy.fail(ClosedError(f"the claim of {copy.tp} has ended"))
                continue
            if not _fits(copy, batch):
                left.append(copy)
                continue
            is_stalled = self._goes_to_stalled(copy)
            if batch.copies:
                is_taken = is_stalled == batch.is_trial
            else:  # the first one decides whether this is a trial
                is_taken = is_trial_due or not is_stalled
                batch.is_trial = is_stalled
            if not is_taken:
                (self._held if is_stalled else left).append(copy)
                continue
            batch.copies.append(copy)
            batch.windows[copy.tp] = window
            batch.size += copy.size
        self._waiting = left
        return batch if batch.copies else None

    def _goes_to_stalled(self, copy: WaitingCopy) -> bool:
        if not copy.is_proven:  # else it goes where it was written
            copy.target = self._place(copy)
        return copy.target in self.stalled

    def _release(self) -> None:
        """Let the copies that are held be looked at again, before all others."""
        self._waiting.extendleft(reversed(self._held))
        self._held.clear()

    # --- stalled partitions -------------------------------------------------------------------------------------------------

    def seconds_to_trial(self, now: float) -> float | None:
        """Return the time until copies are tried that are held; None if there are none."""
        return max(0.0, self._trial_at - now) if self._held else None

    def note_written(self, partitions: set[TopicPartition]) -> None:
        """A copy was written to each of these partitions, whether or not its transaction is committed."""
        if freed := self.stalled.keys() & partitions:
            for tp in freed:
                del self.stalled[tp]
            self._release()

    def note_stalled(self, batch: CopyBatch, unwritten: set[TopicPartition], now: float) -> None:
        """Record that the partitions `unwritten` did not answer within the time of a transaction, so not all copies were written."""
        for copy in batch.copies:
            copy.is_proven = copy in batch.metadata
        stalled = unwritten - batch.written
        batch.has_stalled = bool(stalled)
        self.stalled |= dict.fromkeys(stalled, now)

    @property
    def stalled_topics(self) -> set[str]:
        """The topics with stalled partitions."""
        return {tp.topic for tp in self.stalled}

    def _forget_unwanted(self, now: float) -> None:
        wanted = {copy.target for copy in self._held}
        self.stalled = {tp: at for tp, at in self.stalled.items() if tp in wanted or now - at < MEMORY}

    def note_end(self, batch: CopyBatch, now: float, took: float) -> None:
        """A transaction has ended at `now` after `took` seconds: with a stalled partition, the next such one has to wait."""
        if not batch.is_trial and not batch.has_stalled:
            return
        pause = min(MAX_PAUSE, max(RETRIES.maximum, PAUSE_SHARE * took))
        # without an answer of the coordinator the trial was none; copies that have waited for it go first
        self._trial_at = now + (RETRIES.initial if batch.has_coordinator_failed else pause)


def _fits(copy: WaitingCopy, batch: CopyBatch) -> bool:
    """Whether the copy may be in a transaction with those that were chosen."""
    if not batch.copies:
        return True
    first = batch.copies[0]
    # in a trial the partitions matter: one that answers is left out of the next, and a copy that has to be alone then is alone
    is_alone = (first.is_alone or copy.is_alone) and not batch.is_trial
    return (
        not is_alone
        and copy.is_proven == first.is_proven
        and copy.record.topic == first.record.topic  # a topic that cannot be written delays no other
        and len(batch.copies) < MAX_COPIES
        and batch.size + copy.size <= MAX_BYTES
    )
