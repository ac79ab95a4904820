"""Blocking handlers: run a plain function per claim in a worker thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

import anyio
import anyio.from_thread
import anyio.to_thread

from asyncgroup.checks import check_duration_or_zero, is_async
from asyncgroup.errors import ConfigError, SessionEnd
from asyncgroup.group.claim import Claim
from asyncgroup.group.handler import Handler
from asyncgroup.group.session import Session
from asyncgroup.lifecycle import wait_shielded
from asyncgroup.model import Batch, Record, TopicPartition

__all__ = ["ThreadClaim", "in_thread"]

BATCH_RECORDS: int = 500
"""Maximum number of records passed to the thread at once."""


class ThreadClaim:
    """A claim for use in a worker thread: a plain iterator of records, with a thread-safe `mark` and `renew`.

    Records are passed to the thread in batches of up to 500. When the claim ends, the rest of a batch is discarded and
    not marked. After `break`, a second loop continues at the next record.
    """

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._batches = claim.batches(max_records=BATCH_RECORDS)
        self._left_over: deque[Record] = deque()
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
        while (batch := self._next_batch()) is not None:
            # all or none: if any record of a batch cannot be read, no record of it may be returned
            self._left_over.extend(list(batch))
            while self._left_over and not self._claim.ended:
                self._claim._state.thread_reads += 1  # only this thread writes it
                yield self._left_over.popleft()

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
        return anyio.from_thread.run(self._fetch_batch)

    async def _fetch_batch(self) -> Batch | None:
        return await anext(self._batches, None)

    def mark(self, done: Record | Batch, metadata: str = "") -> None:
        """Schedule `Claim.mark` on the event loop. Raise ConfigError at once, in the thread, for invalid arguments."""
        self._claim._state.check_mark(done, metadata)
        self._loop.call_soon_threadsafe(self._claim.mark, done, metadata)

    def renew(self, seconds: float = 0.0) -> None:
        """Say that the function is at work on a record, as `Claim.renew`. Raise ConfigError for a negative value."""
        check_duration_or_zero("seconds", seconds)
        self._loop.call_soon_threadsafe(self._claim.renew, seconds)


class _ThreadHandler(Handler):
    def __init__(self, function: Callable[[Session, ThreadClaim], None]) -> None:
        self._function = function

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        # a limiter per claim, so that waiting threads cannot use up the tokens of other claims
        limiter = anyio.CapacityLimiter(1)
        work = anyio.to_thread.run_sync(self._function, session, ThreadClaim(claim), limiter=limiter)
        # also if this is cancelled: the function cannot be, and may still work on a record of the claim
        await wait_shielded(asyncio.ensure_future(work))


def in_thread(function: Callable[[Session, ThreadClaim], None]) -> Handler:
    """Return a handler that runs the plain function `function(session, claim)` in a thread per claim.

    A thread cannot be cancelled: the function must return when the iterator of its claim ends, and is waited for until it
    does. Session is not thread-safe: the function may read its attributes, but not call its methods. To commit without
    `auto_commit`, call `anyio.from_thread.run(session.commit)`, which runs it on the event loop. Raise ConfigError for an
    async function, which needs no thread.
    """
    if not callable(function) or is_async(function):
        raise ConfigError("in_thread", function, "a plain function (session, claim)")
    return _ThreadHandler(function)
