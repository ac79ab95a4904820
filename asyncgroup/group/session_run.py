"""The life of a session, from the assignment to the last commit.

Heartbeats start; committed offsets are looked up (one request); `setup`; a task for each claim; … until something ends
it. Then the claims' iterators stop, the handlers drain, `cleanup`, the last commit, and only then do the heartbeats
stop: the member lives for as long as its handlers do.

It runs in a task that nobody cancels: whoever waits for it tells the session to end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeAlias

from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetchers import RESETS, Fetchers
from asyncgroup.consumer.list_offsets import list_offsets
from asyncgroup.consumer.partition_consumer import Interceptor, PartitionConsumer
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    HandlerFailed,
    MemberLost,
    OffsetOutOfRangeError,
    Rebalanced,
    SessionFailed,
)
from asyncgroup.group.claim import Claim
from asyncgroup.group.error_stream import ErrorStream
from asyncgroup.group.handler import Handler
from asyncgroup.group.handler_calls import HandlerCalls
from asyncgroup.group.heartbeats import ACTIONS as HEARTBEATS, Heartbeats, Verdict
from asyncgroup.group.membership import Joined
from asyncgroup.group.session import Session
from asyncgroup.group.watch import watch_partitions
from asyncgroup.lifecycle import Owner, run_until
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import CommittedOffset, OffsetManager

__all__ = ["GroupContext", "SessionRun"]

_log = logging.getLogger("asyncgroup.group")

Starts: TypeAlias = dict[TopicPartition, CommittedOffset]
"""Where each claim begins to read, and the metadata of the last commit."""


class GroupContext(NamedTuple):
    """What sessions of a group share."""

    cluster: Cluster
    group_id: str
    config: ConsumerConfig
    errors: ErrorStream
    paused: set[TopicPartition]
    interceptors: tuple[Interceptor, ...]
    lanes: str = ""
    """What tells this member's fetch connections from those of others on the same Cluster."""


class SessionRun:
    """Runs one session. Afterwards `failure` holds what `consume()` has to raise, if anything, and
    `failed_by_handler` whether it is the handler's own exception."""

    def __init__(self, context: GroupContext, joined: Joined, handler: Handler) -> None:
        self._context, self._joined = context, joined
        cluster, group_id, config = context.cluster, context.group_id, context.config
        self._owner = Owner(f"session of group {group_id!r}", self._on_bug)
        self._offsets = OffsetManager(
            cluster,
            group_id,
            retry_max=config.commit_retry_max,
            identity=lambda: joined.identity,
            on_lost=self._on_commit_refused,
        )
        self.session = Session(group_id, joined.identity, joined.assignment, self._offsets)
        self._calls = HandlerCalls(handler, self.session, config, self._fail)
        self.session.on_end = self._calls.limit
        self.heartbeats = Heartbeats(cluster, group_id, config)
        self.fetchers = Fetchers(cluster, config, self._owner.spawn, context.errors.put, owner=context.lanes)
        self.failure: BaseException | None = None
        self.failed_by_handler = False
        self._begun = False

    def is_handler(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a method of the handler runs in this task."""
        return task in self._calls

    async def run(self) -> None:
        """The whole life; raises programming errors only."""
        topics = {*self._joined.assignment, *self._joined.counts}
        self._context.cluster.track(topics)
        await self._owner.start()
        try:
            self._owner.spawn(self.heartbeats.run, self.session.identity, self._on_verdict)
            await self._live()
            await self._wind_up()
        finally:
            self.session.close()
            self._context.cluster.untrack(topics)
            await self._owner.stop()

    # --- what ends it -------------------------------------------------------------------------------------------

    def _on_verdict(self, verdict: Verdict, error: AsyncGroupError | None) -> None:
        group = f"group {self._context.group_id!r}"
        if verdict is Verdict.REBALANCE:
            self.session.end(Rebalanced(f"{group} rebalances: a member joined, left or changed its topics"))
        elif verdict in (Verdict.LOST, Verdict.FATAL):
            if verdict is Verdict.FATAL and self.failure is None:
                self.failure = error
            self._lose(f"member {self.session.member_id!r} of {group} is lost: {error}", error)
        elif error is not None:
            self._context.errors.put(error)

    def _on_commit_refused(self, error: BrokerError) -> None:
        if HEARTBEATS.get(error.code) is Verdict.FATAL and self.failure is None:
            self.failure = error
        self._lose(f"a commit was refused: {error}", error)

    def _on_bug(self, error: Exception) -> None:
        self._fail(error, "a task of the session failed", by_handler=False)

    def _lose(self, text: str, error: AsyncGroupError | None) -> None:
        cause = MemberLost(text)
        cause.__cause__ = error
        self.session.end(cause)

    def _fail(self, error: BaseException, what: str, *, by_handler: bool = True) -> None:
        if self.failure is None:
            self.failure, self.failed_by_handler = error, by_handler
        else:
            self.failure.add_note(f"at the same time: {what}: {error!r}")
            _log.error("group %s: %s", self._context.group_id, what, exc_info=error)
        kind = HandlerFailed if by_handler else SessionFailed
        cause = kind(f"{what}: {type(error).__name__}: {error}")
        cause.__cause__ = error
        self.session.end(cause)

    # --- its life -----------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        session, cluster = self.session, self._context.cluster
        starts = await self._until_ended(self._find_starts())
        if starts is None:
            return
        self._make_claims(starts)
        self._begun = True
        cluster.hooks.emit("on_session_start", session)
        if not await self._calls.begin():
            return
        for claim in session.claims:
            self.fetchers.add(claim.consumer)
            self._calls.start_claim(claim)
        self.fetchers.start()
        if self._context.config.auto_commit:
            self._owner.spawn(self._auto_commit)
        if self._joined.is_leader:
            self._owner.spawn(watch_partitions, cluster, self._joined.counts, session.end)
        await session.wait_ended()

    async def _until_ended(self, work: Coroutine[Any, Any, Starts]) -> Starts | None:
        """The result of our own work; None if it failed or the session ended before."""
        task = await run_until(self.session.wait_ended(), work, f"{self._context.group_id}: start offsets")
        if task.cancelled():
            return None
        error = task.exception()
        if error is None:
            return None if self.session.ended else task.result()
        if not isinstance(error, AsyncGroupError):
            raise error
        self._fail(error, "the session could not start", by_handler=False)
        return None

    async def _find_starts(self) -> Starts:
        """Where each claim begins: its committed offset, or what `auto_offset_reset` says where there is none."""
        partitions = self.session.partitions
        if not partitions:
            return {}
        context = self._context
        committed = await self._offsets.fetch(partitions)
        missing = [tp for tp in partitions if tp not in committed]
        policy = context.config.auto_offset_reset
        if missing and policy == "error":
            names = ", ".join(map(str, missing))
            raise OffsetOutOfRangeError(f"group {context.group_id!r} has no committed offset for {names}")
        found = await list_offsets(context.cluster, dict.fromkeys(missing, RESETS[policy])) if missing else {}
        return {tp: committed[tp] if tp in committed else CommittedOffset(found[tp]) for tp in partitions}

    def _make_claims(self, starts: Starts) -> None:
        context, session = self._context, self.session
        for tp, start in starts.items():
            consumer = PartitionConsumer(
                tp,
                start.offset,
                context.config,
                self.fetchers.budget,
                context.cluster.hooks,
                context.interceptors,
            )
            if tp in context.paused:
                consumer.pause()
            offsets = self._offsets.manage(tp, start.offset, start.metadata)
            consumer.on_reset = offsets.rebase
            session.claims.append(Claim(consumer, offsets))

    async def _auto_commit(self) -> None:
        while True:
            await asyncio.sleep(self._context.config.auto_commit_interval)
            await self._commit()

    async def _commit(self) -> None:
        try:
            await self._offsets.commit()
        except CommitFailedError as error:
            self._context.errors.put(error)
            if not self.session.is_lost:
                _log.warning("%s", error)

    # --- its end ------------------------------------------------------------------------------------------------

    async def _wind_up(self) -> None:
        """Drain the handlers; tell them what they lost; clean up; commit for the last time."""
        session = self.session
        await self._calls.drain()
        for claim in session.claims:
            self.fetchers.remove(claim.consumer)
        await self._calls.end()
        if self._context.config.auto_commit and not session.is_lost:
            try:
                async with asyncio.timeout(self._context.config.close_timeout):
                    await self._commit()
            except TimeoutError:
                _log.warning("group %s: the last commit took too long", self._context.group_id)
        if self._begun:
            self._context.cluster.hooks.emit("on_session_end", session, session.cause)
