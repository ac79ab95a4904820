"""Reading and marking without a handler: `ConsumerGroup.records()`, `mark()` and `commit()`.

The group also calls methods of `Records` that begin with an underscore; they are not for users.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Self

from asyncgroup.checks import check_metadata
from asyncgroup.consumer.merged_reader import MergedReader
from asyncgroup.errors import (
    AsyncGroupError,
    ClosedError,
    CommitFailedError,
    ConfigError,
    GroupClosed,
    MarkDropped,
)
from asyncgroup.group.health.member_health import MemberHealth
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.group.sessions.handler import Handler
from asyncgroup.group.sessions.session import Session
from asyncgroup.group.topics.topics import Subscription
from asyncgroup.lifecycle import run_until, start_task, wait_shielded
from asyncgroup.model import Batch, Record, TopicPartition

__all__ = ["GroupMarks", "Records"]

_log = logging.getLogger("asyncgroup.group")


class _RecordsHandler(Handler):
    """Adds each claim to the merged reader, and ends its `consume_claim` once the body is done with its last record."""

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
            await reader.serve(claim._inner.consumer)
            # the body of the loop may still mark its record and earlier ones of all claims; after a loss
            # nothing can be committed, so there is nothing to wait for
            if reader.holds_record and not session.is_lost:
                await run_until(session.wait_lost(), reader.wait_idle(), f"{claim.tp}: record held")
        finally:
            reader.forget(claim._inner.consumer)

    async def cleanup(self, session: Session) -> None:  # noqa: ARG002  the handler's signature
        self.session = None
        self.drained.set()


class RecordSessions:
    """The sessions of a `Records` iterator, which run from the first read on, and the reader that gets their records."""

    def __init__(
        self,
        group_id: str,
        subscription: Subscription,
        run: Callable[[Subscription, Handler], Coroutine[Any, Any, None]],
    ) -> None:
        self.group_id = group_id
        self.subscription = subscription
        self._run = run
        self.reader = MergedReader()
        self._handler = _RecordsHandler(self.reader)
        self._creator = asyncio.current_task()
        self._task: asyncio.Task[None] | None = None  # runs the sessions, from the first read on
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self.closed else "not begun" if self._task is None else "open"
        return f"<Records of group {self.group_id!r}, {self.subscription.wanted!r}: {state}>"

    @property
    def closed(self) -> bool:
        """Whether iteration has ended: closed, failed, or ended by the group's close."""
        return self._is_closed or (self._task is not None and self._task.done())

    def begin(self) -> None:
        """Start to join, at the first call."""
        if self._task is None and not self._is_closed:
            run = self._run(self.subscription, self._handler)
            self._task = start_task(run, name=f"{self.group_id}: records")
            self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        # ClosedError: the group closed before the first step of the task, which is a regular end
        self.reader.end(None if isinstance(failure, ClosedError) else failure)

    # --- close --------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """See `Records.aclose`."""
        self._is_closed = True
        self.clear_held()
        await wait_shielded(start_task(self._close()))

    async def _close(self) -> None:
        task = self._task
        if task is None:
            self.reader.end(None)
            return
        if not task.done() and (session := self._handler.session) is not None:
            session._inner.end(GroupClosed("records() was closed"))
            await run_until(asyncio.wait([task]), self._handler.drained.wait(), f"{self.group_id}: drain")
        task.cancel()  # the session still runs to its end, then the member leaves
        await self.wait_closed()

    def clear_held(self) -> None:
        """Release the record in progress if it is the calling task's: that task cannot mark it while it closes the group.

        If the reading task has ended (`asyncio.wait_for` before Python 3.12 reads in a separate task), the task that
        created this object counts as the reader.
        """
        caller, reader = asyncio.current_task(), self.reader.reader
        if reader is not None and reader.done():
            reader = self._creator
        if reader is None or reader is caller or reader.done():
            self.reader.clear_held()

    async def wait_closed(self) -> None:
        """Wait until the background task has ended; log a failure that was not raised."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        if (failure := self.reader.failure) is not None:
            self.reader.end(None)
            _log.error(
                "group %s: records() failed, and its error was not raised to a reader",
                self.group_id,
                exc_info=failure,
            )


class Records:
    """The async iterator of `ConsumerGroup.records()`; also an async context manager that closes it.

        async for record in group.records("orders"):
            ...
            group.mark(record)

    The first read joins the group; from then on a background task runs one session after another, as
    `ConsumerGroup.run` does: it rejoins after a rebalance, with backoff after a lost membership or a failed join. An
    error that is not retriable is raised by the loop and ends it. The loop ends when the group closes. An error of one
    partition (offset out of range, corrupt records) is raised by the loop as well; a second loop continues, with the
    other partitions first.

    The claims take turns of one record batch (of several small ones), or of 10 ms if that is shorter. Partitions are not isolated from each
    other: while the body processes a record, all of them wait.

    A record is in progress until the next one is requested. When its claim is revoked or the group closes, the session
    waits for that, for `rebalance_timeout` (`close_timeout`) less a reserve of a fifth (at most 5 s), so that its
    mark is still committed; a later mark is dropped and reported (`MarkDropped`). The session does not wait if the
    reading task itself closes the group, or if the membership is lost.

    A member whose iterator is not read stays in the group: heartbeats continue, the buffers fill, and fetching stops.
    With a record in progress it stays for `max_poll_interval`.
    After `break`, a second loop continues at the next record, and a cancelled read loses no record. Close the iterator
    (`aclose`, `async with`) or the group to release the partitions. One task reads at a time.
    """

    def __init__(
        self,
        group_id: str,
        subscription: Subscription,
        run: Callable[[Subscription, Handler], Coroutine[Any, Any, None]],
    ) -> None:
        self._inner = RecordSessions(group_id, subscription, run)

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def closed(self) -> bool:
        """Whether iteration has ended: closed, failed, or ended by the group's close."""
        return self._inner.closed

    def __aiter__(self) -> AsyncIterator[Record]:
        """Return the merged iterator; `anext(records)` reads from the same one, at the cost of one more call."""
        self._inner.begin()
        self._inner.reader.reader = asyncio.current_task()
        return self._inner.reader.records

    def __anext__(self) -> Coroutine[Any, Any, Record]:
        self._inner.begin()
        return self._inner.reader.records.__anext__()

    async def __aenter__(self) -> Self:
        """Start to join."""
        self._inner.begin()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End iteration: commit the marks (with `auto_commit`) and leave the group, within `close_timeout`.

        The group object stays open and can consume again. Safe to call twice.
        """
        await self._inner.aclose()


class GroupMarks:
    """Finds the claim that returned a record; drops and reports the mark if that claim has ended.

    The partition may have been revoked and assigned again in between. A mark past what the new claim has returned comes
    from the old claim, and would commit records that were not processed.
    """

    def __init__(self, group_id: str, member_health: MemberHealth) -> None:
        self._group_id = group_id
        self._member_health = member_health
        self._dropped: dict[TopicPartition, MarkDropped] = {}  # since the last commit()
        self._logged: set[TopicPartition] = set()  # partitions whose dropped marks were logged

    def mark(self, session: Session | None, done: Record | Batch, metadata: str) -> None:
        """Mark a record or batch as done in `session`, the current one. Raises ConfigError."""
        if isinstance(done, Record):
            last = done.offset
        elif isinstance(done, Batch):
            last = done.last_offset
        else:
            raise ConfigError("done", done, "a Record or a Batch; session.mark_offset marks an offset")
        claim = None if session is None else session._inner.claims.get((done.topic, done.partition))
        if session is None or claim is None:
            reason = "its partition is not assigned to this member"
        elif not session._inner.accepts_marks:
            reason = f"its claim has ended: {session.cause}"
        elif not claim._inner.consumer._inner.was_read(last):
            reason = "its partition was revoked and assigned again, and the new claim has not read that far"
        else:
            claim.mark(done, metadata)
            if self._logged:
                self._logged.discard(claim.tp)
            return
        check_metadata(metadata)
        self._drop(TopicPartition(done.topic, done.partition), last, reason)

    def _drop(self, tp: TopicPartition, offset: int, reason: str) -> None:
        error = MarkDropped(tp, offset, reason)
        self._dropped[tp] = error
        self._member_health.report_error(error)
        if tp not in self._logged:  # once per partition: many marks may be late
            self._logged.add(tp)
            _log.warning("group %s: %s", self._group_id, error)

    async def commit(self, session: Session | None) -> None:
        """Commit all marks. Raises CommitFailedError, also for marks dropped since the last call."""
        dropped, self._dropped = self._dropped, {}
        errors: dict[TopicPartition, AsyncGroupError] = {**dropped}
        # a session that has ended remains the current one until all its tasks have ended
        if session is not None and not session._inner.is_over:
            try:
                await session.commit()
            except CommitFailedError as error:
                errors |= error.errors
            except BaseException:
                self._dropped = dropped | self._dropped  # reported by the next call
                raise
        if errors:
            raise CommitFailedError(self._group_id, errors)
