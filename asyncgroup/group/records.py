"""`ConsumerGroup.records()`: one loop over the records of all claims."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from asyncgroup.consumer.merged_reader import MergedReader
from asyncgroup.errors import ClosedError, GroupClosed
from asyncgroup.group.claim import Claim
from asyncgroup.group.handler import Handler
from asyncgroup.group.session import Session
from asyncgroup.group.topics import Subscription
from asyncgroup.lifecycle import run_until, wait_shielded
from asyncgroup.model import Record

__all__ = ["Records"]

_log = logging.getLogger("asyncgroup.group")


class _RecordsHandler(Handler):
    """Lets every claim take its turns in the reader, and ends with it when its last record is no longer in hand."""

    def __init__(self, reader: MergedReader) -> None:
        self._reader = reader
        self.session: Session | None = None
        self.drained = asyncio.Event()

    async def setup(self, session: Session) -> None:
        self.session = session
        self.drained.clear()

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        reader = self._reader
        try:
            await reader.serve(claim.consumer)
            # the body of the loop may still mark what it works at, and the records of all claims before it; when the
            # membership is lost nothing can be committed, and there is nothing to wait for
            if reader.in_hand and not session.is_lost:
                await run_until(session.wait_lost(), reader.wait_idle(), f"{claim.tp}: record in hand")
        finally:
            reader.forget(claim.consumer)

    async def cleanup(self, session: Session) -> None:  # noqa: ARG002  the handler's signature
        self.session = None
        self.drained.set()


class Records:
    """The async iterator of `ConsumerGroup.records()`; also an async context manager that closes it.

        async for record in group.records("orders"):
            ...
            group.mark(record)

    The membership begins with the first read and drives its sessions by itself, as `ConsumerGroup.run` does: it joins
    again after a rebalance, with backoff after a loss or a failed join; what cannot heal is raised by the loop, and
    ends it. The loop ends when the group closes. An error of one partition (its offset is not in the log, its records
    are corrupt) is raised by the loop as well; a second loop then reads on, the other partitions first.

    The claims take turns, a record batch each, or 10 ms where that is shorter. What one loop gives up is the isolation
    of slow partitions: while its body works at a record, all partitions wait.

    A record is in hand until the next one is asked for. When its claim is revoked or the group closes, the session
    waits for that, for `rebalance_timeout` (`close_timeout`) less the reserve of a fifth (5 s at most), so that its
    mark is still committed; a later mark is dropped and reported (`MarkDropped`). Nothing is waited for if the task
    that reads is the one that closes, or the membership is lost.

    An iterator that is not read stays a member: heartbeats go on, the buffers fill up and nothing more is fetched.
    `break` and a second loop go on at the very next record, and a cancelled read loses none. Close the iterator
    (`aclose`, `async with`) or the group to give the partitions back. One task reads at a time.
    """

    def __init__(
        self,
        group_id: str,
        subscription: Subscription,
        run: Callable[[Subscription, Handler], Coroutine[Any, Any, None]],
    ) -> None:
        self._group_id, self._subscription, self._run = group_id, subscription, run
        self._reader = MergedReader()
        self._handler = _RecordsHandler(self._reader)
        self._creator = asyncio.current_task()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        wanted = self._subscription.wanted
        state = "closed" if self.closed else "not begun" if self._task is None else "open"
        return f"<Records of group {self._group_id!r}, {wanted!r}: {state}>"

    @property
    def closed(self) -> bool:
        """Whether the iteration is over: closed, failed, or ended with the group."""
        return self._is_closed or (self._task is not None and self._task.done())

    def is_subscribed_to(self, subscription: Subscription) -> bool:
        """Whether it reads these topics."""
        return subscription.wanted == self._subscription.wanted

    # --- reading ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> MergedReader:
        """The iterator behind this object; its own `anext` goes to the same one, by a call more."""
        self._begin()
        self._reader.reader = asyncio.current_task()
        return self._reader

    def __anext__(self) -> Coroutine[Any, Any, Record]:
        self._begin()
        return self._reader.__anext__()

    def _begin(self) -> None:
        if self._task is None and not self._is_closed:
            run = self._run(self._subscription, self._handler)
            self._task = asyncio.create_task(run, name=f"{self._group_id}: records")
            self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        # a group that closed before the task's first step: that is an end like any other
        self._reader.end(None if isinstance(failure, ClosedError) else failure)

    # --- the end ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Begin to join."""
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the iteration: commit what is marked (with `auto_commit`) and leave the group, within `close_timeout`.

        The group object stays open, and may consume again. Safe to call twice.
        """
        self._is_closed = True
        self.let_go()
        await wait_shielded(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        task = self._task
        if task is None:
            self._reader.end(None)
            return
        if not task.done() and (session := self._handler.session) is not None:
            session.end(GroupClosed("records() was closed"))
            await run_until(asyncio.wait([task]), self._handler.drained.wait(), f"{self._group_id}: drain")
        task.cancel()  # what is left of the session is carried to its end, then the member leaves
        await self.wait_closed()

    def let_go(self) -> None:
        """Give the record in hand up if the calling task has it: it cannot mark the record while it closes.

        A task that only fetched one record (`asyncio.wait_for` before Python 3.12) is over: then the one that has made
        this object counts.
        """
        caller, reader = asyncio.current_task(), self._reader.reader
        if reader is not None and reader.done():
            reader = self._creator
        if reader is None or reader is caller or reader.done():
            self._reader.clear_in_hand()

    async def wait_closed(self) -> None:
        """Wait until the membership has ended; a failure that was not raised is logged."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        if (failure := self._reader.failure) is not None:
            self._reader.end(None)
            _log.error(
                "group %s: records() failed, and the error was not read", self._group_id, exc_info=failure
            )
