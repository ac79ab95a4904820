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
from typing import Any

from asyncgroup.consumer.fetchers import Fetchers
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    SessionEnd,
)
from asyncgroup.group.diagnosis import Busy
from asyncgroup.group.handler import Handler
from asyncgroup.group.handler_calls import HandlerCalls
from asyncgroup.group.heartbeats import Heartbeats
from asyncgroup.group.limits import EndLimits
from asyncgroup.group.membership import Joined
from asyncgroup.group.session import Session
from asyncgroup.group.session_causes import SessionCauses
from asyncgroup.group.session_start import GroupContext, Starts, find_group_starts, make_claims
from asyncgroup.group.topics import Subscribed
from asyncgroup.group.vitals import GroupState, Source
from asyncgroup.group.watch import watch_missing, watch_partitions, watch_pattern, watch_topics
from asyncgroup.lifecycle import Owner, run_until
from asyncgroup.offsets import Committer

__all__ = ["SessionRun"]

_log = logging.getLogger("asyncgroup.group")


class SessionRun:
    """Runs one session; `causes` knows afterwards what `consume()` has to raise, if anything."""

    def __init__(
        self, context: GroupContext, joined: Joined, subscribed: Subscribed, handler: Handler
    ) -> None:
        self._context, self._joined, self._subscribed = context, joined, subscribed
        cluster, group_id, config = context.cluster, context.group_id, context.config
        self._vitals = context.vitals
        self._owner = Owner(f"session of group {group_id!r}", self._on_bug)
        self.heartbeats = Heartbeats(cluster, group_id, config)
        self._offsets = Committer(
            cluster,
            group_id,
            retry_max=config.commit_retry_max,
            retention=config.offset_retention,
            identity=lambda: joined.identity,
            on_lost=self._on_commit_refused,
            is_final=self.heartbeats.is_final,
        )
        self.session = Session(group_id, joined.identity, joined.assignment, self._offsets)
        self.session.assignment_user_data = joined.user_data
        self.session.on_end = self._on_end
        self.causes = SessionCauses(context, self.session)
        self.fetchers = Fetchers(
            cluster,
            config,
            self._owner.spawn,
            self.causes.on_fetch_error,
            owner=context.lanes,
            sessions=context.fetch_sessions,
        )
        self._limits = EndLimits(config, lambda: self.heartbeats.last_alive)
        self._calls = HandlerCalls(handler, self.session, self._limits, self.causes.fail)
        self.began = False
        """Whether start offsets were found and the handler was called."""

    @property
    def is_caller(self) -> bool:
        """Whether this is asked by the session's handler, or by a task or thread that it has started."""
        return self._calls.is_caller

    @property
    def busy(self) -> Busy:
        """What of the handler the session waits for now."""
        return self._calls.busy

    @property
    def is_without_topics(self) -> bool:
        """Whether the member's pattern matches nothing."""
        return self._subscribed.pattern is not None and not self._subscribed.joined

    def take_pulse(self) -> None:
        """Note when brokers last answered."""
        self._vitals.alive(self.heartbeats.last_beat, self.fetchers.last_fetch)

    async def run(self) -> None:
        """The whole life; raises programming errors only."""
        topics = {*self._joined.assignment, *self._joined.counts, *self._subscribed.names}
        self._context.cluster.track(topics)
        self._vitals.enter(GroupState.STARTING)
        await self._owner.start()
        try:
            begun = self._joined.synced_at
            self._owner.spawn(self.heartbeats.run, self.session.identity, self.causes.on_verdict, begun)
            await self._live()
            await self._wind_up()
        finally:
            self.session.close()
            self.session.on_end = None  # a handler that keeps its session must not keep all of this run
            self._context.cluster.untrack(topics)
            try:
                await self._owner.stop()
            finally:
                # only now: the task of automatic commits would take their end for a bug
                await self._offsets.aclose()
            self.take_pulse()
            # what the handler raised stays a problem until a later session is stable
            self._vitals.fine(*(source for source in Source if source is not Source.HANDLER))
            if self.session.is_lost and self.session.cause is not None:
                self._vitals.trouble(Source.LOST, self.session.cause.__cause__ or self.session.cause)

    # --- what ends it -------------------------------------------------------------------------------------------

    def _on_end(self, cause: SessionEnd) -> None:
        self._calls.limit(cause)
        if self._vitals.state in (GroupState.STARTING, GroupState.STABLE):
            self._vitals.enter(GroupState.DRAINING)

    def _on_bug(self, error: Exception) -> None:
        self.causes.on_bug(error)

    def _on_commit_refused(self, error: BrokerError) -> None:
        self.causes.on_commit_refused(error)

    def _on_topic_gone(self, error: BrokerError) -> None:
        # whoever subscribes to it again is told so at once
        self._context.known.forget_missing(self._subscribed.missing)
        self.causes.fail(error, "a topic is gone", by_handler=False)

    # --- its life -----------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        session, context, topics = self.session, self._context, self._context.cluster.view.topics
        # a topic that was made anew since the subscription was resolved is another one
        context.known.see(topics[name] for name in self._subscribed.joined if name in topics)
        starts = await self._until_ended(find_group_starts(context, self._offsets, session.partitions))
        if starts is None:
            return
        session.claims.extend(make_claims(context, self._offsets, self.fetchers.budget, starts))
        self.began = True
        context.cluster.hooks.emit("on_session_start", session)
        if not await self._calls.begin():
            return
        for claim in session.claims:
            self.fetchers.add(claim.consumer)
            self._calls.start_claim(claim)
        self.fetchers.start()
        if context.config.auto_commit:
            self._owner.spawn(self._auto_commit)
        self._watch()
        self._vitals.enter(GroupState.STABLE)
        self._vitals.fine(Source.LOST, Source.JOIN, Source.HANDLER)
        await session.wait_ended()

    def _watch(self) -> None:
        """Look out for whatever makes the plan or the subscription out of date."""
        cluster, subscribed, end = self._context.cluster, self._subscribed, self.session.end
        topics = cluster.view.topics
        if self._joined.is_leader:
            self._owner.spawn(watch_partitions, cluster, self._joined.counts, end)
        ids = {name: topics[name].topic_id for name in subscribed.joined if name in topics}
        self._owner.spawn(watch_topics, cluster, ids, end)
        if subscribed.pattern is not None:
            self._owner.spawn(watch_pattern, cluster, subscribed.pattern, subscribed.joined, end)
        if subscribed.missing:
            patience = self._context.config.session_timeout
            self._owner.spawn(watch_missing, cluster, subscribed.missing, patience, end, self._on_topic_gone)

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
        self.causes.fail(error, "the session could not start", by_handler=False)
        return None

    async def _auto_commit(self) -> None:
        while True:
            await asyncio.sleep(self._context.config.auto_commit_interval)
            await self._commit()

    async def _commit(self, *, last_within: float | None = None) -> None:
        try:
            if last_within is None:
                await self._offsets.commit(parked=False)
            else:
                await self._offsets.commit_last(last_within)
        except CommitFailedError as error:
            self._vitals.trouble(Source.COMMIT, error)
            self._context.report(error)
            if not self.session.is_lost:
                _log.warning("%s", error)
        else:
            self._vitals.fine(Source.COMMIT)

    # --- its end ------------------------------------------------------------------------------------------------

    async def _wind_up(self) -> None:
        """Drain the handlers; tell them what they lost; clean up; commit for the last time."""
        session = self.session
        await self._calls.drain()
        for claim in session.claims:
            self.fetchers.remove(claim.consumer)
        await self._calls.end()
        session.takes_marks = False
        if not session.is_lost:
            self._vitals.enter(GroupState.COMMITTING)
            try:
                limit = self._limits.for_commit
                async with asyncio.timeout(limit):
                    # without automatic commits, too, the user's own may be under way
                    automatic = self._context.config.auto_commit
                    await (self._commit(last_within=limit) if automatic else self._offsets.settle())
            except TimeoutError:
                last = f": {error}" if (error := self._offsets.last_error) is not None else ""
                _log.warning("group %s: the last commit took too long%s", self._context.group_id, last)
        if self.began:
            self._context.cluster.hooks.emit("on_session_end", session, session.cause)
