"""ThreadClaim: what a function of `in_thread` gets in place of a Claim."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar, copy_context
from operator import itemgetter
from threading import get_ident
from typing import Any, Final

import anyio.from_thread

from asyncgroup.checks import check_duration_or_zero, check_metadata
from asyncgroup.errors import SessionEnd
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.model import Batch, Record, TopicPartition
from asyncgroup.offsets import PartitionMarks

__all__ = ["ThreadClaim"]

BATCH_RECORDS: int = 500
"""Maximum number of records passed to the thread at once."""

MARKS_INTERVAL: Final = 0.01
"""Seconds after which the marks of a thread are applied at the latest; a call to the event loop for each one took longer
than reading its record.
"""


_OFFSET = itemgetter(0)
_UNSET: Final = object()
"""The value of a context variable that has none."""


class _ThreadMarks:
    """The marks of a thread on their way to the event loop.

    The first one calls the loop, which then looks every `MARKS_INTERVAL` seconds until there are none. Readers of the
    marks on the loop call `apply` before (`PartitionMarks.late_marks`): a commit contains every mark made before it.
    """

    def __init__(self, offsets: PartitionMarks) -> None:
        self._offsets = offsets
        self._loop = asyncio.get_running_loop()
        self._loop_thread = get_ident()
        self._marks: deque[tuple[int, str, int]] = deque()  # appended by threads, taken by the event loop
        self._is_watched = False  # the event loop will look
        self._timer: asyncio.TimerHandle | None = None
        offsets.late_marks = self.apply

    def add(self, offset: int, metadata: str, leader_epoch: int) -> None:
        """Add a mark that was checked, as for `PartitionMarks.advance`; called in any thread."""
        self._marks.append((offset, metadata, leader_epoch))
        # the loop sets this to False before it looks for the last time, so that no mark is left behind
        if not self._is_watched:
            self._is_watched = True
            self._loop.call_soon_threadsafe(self._look)

    def apply(self) -> bool:
        """Apply all marks; return False if there were none. Does nothing in other threads than the event loop's."""
        if get_ident() != self._loop_thread:
            return False
        marks, offsets = self._marks, self._offsets
        taken = [marks.popleft() for _ in range(len(marks))]
        if offsets.is_bounded:
            for mark in taken:
                offsets.advance(*mark)
        elif taken:  # marks only move forwards
            offsets.advance(*max(taken, key=_OFFSET))
        return bool(taken)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.apply():
            self._timer = self._loop.call_later(MARKS_INTERVAL, self._look)
            return
        self._is_watched = False
        if self._marks:
            self._is_watched = True
            self._loop.call_soon(self._look)


class ThreadClaim:
    """A claim for use in a worker thread: a plain iterator of records, with a thread-safe `mark` and `renew`.

    Records are passed to the thread in batches of up to 500. When the claim ends, the rest of a batch is discarded and
    not marked. After `break`, a second loop continues at the next record.
    """

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._batches = claim.batches(max_records=BATCH_RECORDS)
        self._left_over: deque[Record] = deque()
        self._topic, self._partition = claim.tp  # copied to attributes, as `mark` is called per record
        self._marks = _ThreadMarks(claim._inner.offsets)
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<ThreadClaim of {self._claim!r}>"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._claim.topic

    @property
    def partition(self) -> int:
        """The partition number."""
        return self._claim.partition

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return self._claim.tp

    @property
    def ended(self) -> bool:
        """Whether the claim has ended: no more records are returned."""
        return self._claim.ended

    @property
    def cause(self) -> SessionEnd | None:
        """Why the claim ended; None while it is live."""
        return self._claim.cause

    def __iter__(self) -> Iterator[Record]:
        state, left_over = self._claim._inner, self._left_over
        while (batch := self._next_batch()) is not None:
            # all or none: if any record of a batch cannot be read, no record of it may be returned
            left_over.extend(list(batch))
            while left_over and state.cause is None:
                state.thread_reads += 1  # only this thread writes it
                yield left_over.popleft()

    def batches(self) -> Iterator[Batch]:
        """Iterate over batches instead of records."""
        while (batch := self._next_batch()) is not None:
            yield batch

    def _next_batch(self) -> Batch | None:
        """Return the records left over by a `break`, or the next batch; None at the end."""
        if self._left_over and not self._claim.ended:
            left_over = Batch(self.topic, self.partition, list(self._left_over))
            self._left_over.clear()
            return left_over
        self._left_over.clear()
        batch, changed = anyio.from_thread.run(self._fetch_batch)
        for variable, value in changed:
            variable.set(value)
        return batch

    async def _fetch_batch(self) -> tuple[Batch | None, list[tuple[ContextVar[Any], Any]]]:
        """Return the next batch, None at the end, and the context variables that hooks have set for its reader.

        They were set in a task that is only for this call, whose context is a copy of the thread's.
        """
        before = copy_context()
        # a mark is judged by what had been delivered when it was made: the log may have lost its record since then
        self._marks.apply()
        batch = await anext(self._batches, None)
        return batch, [item for item in copy_context().items() if before.get(item[0], _UNSET) is not item[1]]

    def mark(self, done: Record | Batch, metadata: str = "") -> None:
        """Mark as `Claim.mark` does; the event loop learns of it within 10 ms, and before it commits.

        Raise ConfigError at once, in the thread, for invalid arguments.
        """
        if done.__class__ is not Record or done.partition != self._partition or done.topic != self._topic:
            self._claim._inner.check_mark(done)
        if metadata != "":
            check_metadata(metadata)
        last = done.offset if isinstance(done, Record) else done.last_offset
        self._marks.add(last + 1, metadata, done.leader_epoch)

    def renew(self, seconds: float = 0.0) -> None:
        """Say that the function is at work on a record, as `Claim.renew`. Raise ConfigError for a negative value."""
        check_duration_or_zero("seconds", seconds)
        self._loop.call_soon_threadsafe(self._claim.renew, seconds)
