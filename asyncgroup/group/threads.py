"""Handlers that block: a plain function for each claim, in a worker thread."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterator

import anyio
import anyio.from_thread
import anyio.to_thread

from asyncgroup.errors import ConfigError
from asyncgroup.group.claim import Claim
from asyncgroup.group.handler import Handler
from asyncgroup.group.session import Session
from asyncgroup.model import Batch, Record, TopicPartition

__all__ = ["ThreadClaim", "in_thread"]

BATCH_RECORDS: int = 500
"""Records that cross into the thread at once."""


class ThreadClaim:
    """A claim as a worker thread sees it: a plain iterator of records; `mark` may be called from the thread.

    Records cross in batches of up to 500. Those of a batch that were not reached when the claim ended are not handed
    out, and nobody marked them. `break` and a second loop go on at the very next record.
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
        """The partition's number."""
        return self._claim.partition

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return self._claim.tp

    @property
    def ended(self) -> bool:
        """Whether the claim is over: nothing more will be handed out."""
        return self._claim.ended

    def __iter__(self) -> Iterator[Record]:
        while (batch := self._next_batch()) is not None:
            # all of them or none: of a batch that cannot be read to its end nothing may be handed out
            self._left_over.extend(list(batch))
            while self._left_over and not self._claim.ended:
                yield self._left_over.popleft()

    def batches(self) -> Iterator[Batch]:
        """The same as batches."""
        while (batch := self._next_batch()) is not None:
            yield batch

    def _next_batch(self) -> Batch | None:
        """What a broken loop left over, or the next batch; None at the end."""
        if self._left_over and not self._claim.ended:
            left_over = Batch(self.topic, self.partition, list(self._left_over))
            self._left_over.clear()
            return left_over
        self._left_over.clear()
        return anyio.from_thread.run(self._fetch_batch)

    async def _fetch_batch(self) -> Batch | None:
        return await anext(self._batches, None)

    def mark(self, done: Record | Batch, metadata: str = "") -> None:
        """As `Claim.mark`; takes effect at the loop's next turn. Raises ConfigError here, in the thread."""
        self._claim.check_mark(done, metadata)
        self._loop.call_soon_threadsafe(self._claim.mark, done, metadata)


class _ThreadHandler(Handler):
    def __init__(self, function: Callable[[Session, ThreadClaim], None]) -> None:
        self._function = function

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        # a thread for each claim, or one that waits for records would keep others from theirs
        limiter = anyio.CapacityLimiter(1)
        await anyio.to_thread.run_sync(self._function, session, ThreadClaim(claim), limiter=limiter)


def in_thread(function: Callable[[Session, ThreadClaim], None]) -> Handler:
    """A handler that runs the plain function `function(session, claim)` in a thread of its own for each claim.

    A thread cannot be cancelled: the function ends when its claim's iterator does. Of the session only values may be
    read from the thread. Raises ConfigError for an async function, which needs no thread.
    """
    call = getattr(function, "__call__", None)  # noqa: B004  its nature matters, not only that it exists
    if not callable(function) or inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        raise ConfigError("in_thread", function, "a plain function (session, claim)")
    return _ThreadHandler(function)
