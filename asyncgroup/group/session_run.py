"""Run a session, from the assignment to the last commit.

Heartbeats start, the committed offsets are fetched with one request, `setup` is called, and each claim is consumed in
a task of its own until something ends the session. Then the iterators of the claims stop, the handlers drain,
`cleanup` is called, and the marks are committed. Heartbeats stop last, so that the membership outlasts the handlers.

A session runs in a task that is never cancelled; to stop it, call `Session.end`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from asyncgroup.consumer.fetcher import Fetcher
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    SessionEnd,
)
from asyncgroup.group.handler import Handler
from asyncgroup.group.handler_calls import HandlerCalls
from asyncgroup.group.health import RunningCalls
from asyncgroup.group.heartbeats import Heartbeats
from asyncgroup.group.limits import EndLimits
from asyncgroup.group.member_health import MemberState, ProblemSource
from asyncgroup.group.membership import JoinedGroup
from asyncgroup.group.session import Session
from asyncgroup.group.session_causes import SessionCauses
from asyncgroup.group.session_start import GroupContext, StartOffsets, find_start_offsets, make_claims
from asyncgroup.group.topic_watch import watch_missing, watch_partitions, watch_pattern, watch_topics
from asyncgroup.group.topics import ResolvedTopics
from asyncgroup.lifecycle import BackgroundTasks, run_until
from asyncgroup.offsets import Committer

__all__ = ["SessionRun"]

_log = logging.getLogger("asyncgroup.group")


class SessionRun:
    """Runs one session; afterwards `causes` has the exception that `consume()` raises, if any."""

    def __init__(
        self, context: GroupContext, joined: JoinedGroup, resolved: ResolvedTopics, handler: Handler
    ) -> None:
        self._context = context
        self._joined = joined
        self._resolved = resolved
        cluster, group_id, config = context.cluster, context.group_id, context.config
        self._member_health = context.member_health
        self._tasks = BackgroundTasks(f"session of group {group_id!r}", self._on_task_failure)
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
        self.fetcher = Fetcher(
            cluster,
            config,
            self._tasks.spawn,
            self.causes.on_fetch_error,
            lane_suffix=context.lane_suffix,
            sessions=context.fetch_sessions,
        )
        self._limits = EndLimits(config, lambda: self.heartbeats.last_stable_sent_at)
        self._calls = HandlerCalls(handler, self.session, self._limits, self.causes.fail)
        self.has_started = False
        """Whether the start offsets were found, so that the handler is called."""

    @property
    def is_caller(self) -> bool:
        """Whether the caller is the session's handler, or a task or thread that it started."""
        return self._calls.is_caller

    @property
    def running_calls(self) -> RunningCalls:
        """The handler methods that the session waits for now."""
        return self._calls.running_calls

    @property
    def matches_no_topic(self) -> bool:
        """Whether the member subscribed to a pattern that matches no topic."""
        return self._resolved.pattern is not None and not self._resolved.existing

    def update_health(self) -> None:
        """Update the times of the last responses to heartbeats and fetches."""
        self._member_health.update_last_responses(self.heartbeats.last_response_at, self.fetcher.last_fetch)

    async def run(self) -> None:
        """Run the session to its end. Raises only on bugs."""
        topics = {*self._joined.assignment, *self._joined.partition_counts, *self._resolved.names}
        self._context.cluster.track(topics)
        self._member_health.transition_to(MemberState.STARTING)
        await self._tasks.start()
        try:
            started_at = self._joined.synced_at
            self._tasks.spawn(
                self.heartbeats.run, self.session.identity, self.causes.on_heartbeat, started_at
            )
            await self._run_claims()
            await self._shut_down()
        finally:
            self.session.close()
            self.session.on_end = None  # a handler that keeps the session must not keep this object in memory
            self._context.cluster.untrack(topics)
            try:
                await self._tasks.stop()
            finally:
                # after the tasks: automatic commits would fail on a closed committer
                await self._offsets.aclose()
            self.update_health()
            # a handler's exception remains a problem until a later session is stable
            self._member_health.clear(
                *(source for source in ProblemSource if source is not ProblemSource.HANDLER)
            )
            if self.session.is_lost and self.session.cause is not None:
                self._member_health.report(
                    ProblemSource.LOST, self.session.cause.__cause__ or self.session.cause
                )

    # --- end ----------------------------------------------------------------------------------------------------

    def _on_end(self, cause: SessionEnd) -> None:
        self._calls.limit(cause)
        if self._member_health.state in (MemberState.STARTING, MemberState.STABLE):
            self._member_health.transition_to(MemberState.DRAINING)

    def _on_task_failure(self, error: Exception) -> None:
        self.causes.on_task_failure(error)

    def _on_commit_refused(self, error: BrokerError) -> None:
        self.causes.on_commit_refused(error)

    def _on_topic_gone(self, error: BrokerError) -> None:
        # a later subscription to it then fails at once as unknown
        self._context.known_topics.forget_missing(self._resolved.missing)
        self.causes.fail(error, "a subscribed topic was deleted", by_handler=False)

    # --- run ----------------------------------------------------------------------------------------------------

    async def _run_claims(self) -> None:
        session, context, topics = self.session, self._context, self._context.cluster.view.topics
        # of the metadata at the start of the session: a topic may have been recreated since it was resolved
        context.known_topics.update(topics[name] for name in self._resolved.existing if name in topics)
        starts = await self._run_until_ended(find_start_offsets(context, self._offsets, session.partitions))
        if starts is None:
            return
        session.claims.extend(make_claims(context, self._offsets, self.fetcher.budget, starts))
        self.has_started = True
        context.cluster.hooks.emit("on_session_start", session)
        if not await self._calls.begin():
            return
        for claim in session.claims:
            self.fetcher.add(claim.consumer)
            self._calls.start_claim(claim)
        self.fetcher.start()
        if context.config.auto_commit:
            self._tasks.spawn(self._auto_commit)
        self._watch()
        self._member_health.transition_to(MemberState.STABLE)
        self._member_health.clear(ProblemSource.LOST, ProblemSource.JOIN, ProblemSource.HANDLER)
        await session.wait_ended()

    def _watch(self) -> None:
        """Start the tasks that watch for changes of the assigned or subscribed topics."""
        cluster, resolved, end = self._context.cluster, self._resolved, self.session.end
        topics = cluster.view.topics
        if self._joined.is_leader:
            self._tasks.spawn(watch_partitions, cluster, self._joined.partition_counts, end)
        ids = {name: topics[name].topic_id for name in resolved.existing if name in topics}
        self._tasks.spawn(watch_topics, cluster, ids, end)
        if resolved.pattern is not None:
            self._tasks.spawn(watch_pattern, cluster, resolved.pattern, resolved.existing, end)
        if resolved.missing:
            timeout = self._context.config.session_timeout
            self._tasks.spawn(watch_missing, cluster, resolved.missing, timeout, end, self._on_topic_gone)

    async def _run_until_ended(self, work: Coroutine[Any, Any, StartOffsets]) -> StartOffsets | None:
        """Return the result of `work`; None if it failed or the session ended first, which cancels it."""
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
                await self._offsets.commit(retry_rejected=False)
            else:
                await self._offsets.commit_last(last_within)
        except CommitFailedError as error:
            self._member_health.report(ProblemSource.COMMIT, error)
            self._context.report_error(error)
            if not self.session.is_lost:
                _log.warning("%s", error)
        else:
            self._member_health.clear(ProblemSource.COMMIT)

    # --- shutdown -----------------------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        """Drain the handlers, call their last hooks, and make the last commit."""
        session = self.session
        await self._calls.drain()
        for claim in session.claims:
            self.fetcher.remove(claim.consumer)
        await self._calls.end()
        session.accepts_marks = False
        if not session.is_lost:
            self._member_health.transition_to(MemberState.COMMITTING)
            try:
                limit = self._limits.commit_seconds
                async with asyncio.timeout(limit):
                    # without auto_commit, a commit of the user may still be in flight
                    automatic = self._context.config.auto_commit
                    await (self._commit(last_within=limit) if automatic else self._offsets.wait_idle())
            except TimeoutError:
                last = f": {error}" if (error := self._offsets.last_error) is not None else ""
                _log.warning("group %s: the last commit took too long%s", self._context.group_id, last)
        if self.has_started:
            self._context.cluster.hooks.emit("on_session_end", session, session.cause)
