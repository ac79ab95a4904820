"""SessionLife: the life of a session, from its first assignment to the last commit.

1. `run`: the membership sends heartbeats from here on, until everything below is done. `_consume`: the claims start
   (`claims`), and are consumed until something ends the session.
2. `assign`: a further assignment while the session goes on, by incremental protocols only. The claims that it revokes end
   and are committed, those that it adds start, all others are not touched. With an eager protocol every rebalance ends
   the session, and so revokes all claims.
3. `on_heartbeat` and others: what ends the session. `_on_end`: the iterators of the claims have stopped, and the
   deadlines of the handlers begin.
4. `_shut_down`: the handlers drain, `on_revoked` or `on_lost` and `cleanup` are called, the marks are committed.

It runs in a task that is never cancelled; to stop it, call `SessionState.end`.

What lasts how long: the group object keeps the Membership with its identity, and the ClaimSource with the pauses, the
known topics and the brokers' fetch sessions, from one session to the next. A session has its own committer, fetcher
and handler calls, which are created here and closed at its end. By the eager protocol the membership starts new heartbeats
after each join, and a session lasts for one generation, so all of these do. With an incremental protocol a session, what it
has, and the heartbeats last for many generations.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClaimStuck,
    EventLoopBlocked,
    HookTimeout,
    Rebalanced,
    SessionEnd,
    TopicsChanged,
    TransportError,
)
from asyncgroup.group.health.diagnosis import HealthSnapshot
from asyncgroup.group.health.member_health import MemberHealth, MemberState
from asyncgroup.group.health.problems import ProblemKind, WaitKind
from asyncgroup.group.liveness.stalls import Stalls, StuckClaims
from asyncgroup.group.membership import ClaimChanges, HeartbeatResult, JoinedGroup, Membership
from asyncgroup.group.sessions.claim_source import ClaimSource
from asyncgroup.group.sessions.claims import SessionClaims
from asyncgroup.group.sessions.commits import SessionCommits
from asyncgroup.group.sessions.end_limits import EndLimits
from asyncgroup.group.sessions.handler import Handler
from asyncgroup.group.sessions.handler_calls import HandlerCalls
from asyncgroup.group.sessions.session import Session
from asyncgroup.group.sessions.state import SessionState
from asyncgroup.group.sessions.topic_watch import TopicWatch
from asyncgroup.group.topics.subscription_pattern import SubscriptionPattern
from asyncgroup.group.topics.topics import ResolvedTopics, Subscription
from asyncgroup.lifecycle import BackgroundTasks, cancel_and_wait, start_task, wait_shielded
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import MemberIdentity

__all__ = ["SessionLife"]

_log = logging.getLogger("asyncgroup.group")

T = TypeVar("T")


class SessionLife:
    """Runs one session; afterwards `state` has the exception that `consume()` raises, if any."""

    def __init__(
        self,
        source: ClaimSource,
        membership: Membership,
        member_health: MemberHealth,
        stalls: Stalls,
        joined: JoinedGroup,
        subscription: Subscription,
        resolved: ResolvedTopics,
        handler: Handler,
    ) -> None:
        self._source = source
        self._cluster = source.cluster
        self._config = source.config
        self._membership = membership
        self._member_health = member_health
        self._stalls = stalls
        self._joined = joined
        self._subscription = subscription
        self._resolved = resolved
        self._tasks = BackgroundTasks(f"session of group {source.group_id!r}", self._on_task_failure)
        self._topic_watch = TopicWatch(
            source.cluster, self._tasks, source.topic_changes, self.on_topics_changed
        )
        self._offsets = source.make_committer(
            lambda: self.state.identity, self._on_commit_refused, membership.heartbeats
        )
        self.state = SessionState(
            source.group_id, joined, self._offsets, member_health, auto_commit=self._config.auto_commit
        )
        self.state.on_end = self._on_end
        self.session = Session(self.state)
        self.stuck_claims = StuckClaims(
            source.group_id, self._config.max_poll_interval, self.state.claims.__iter__
        )
        self._fetcher = source.make_fetcher(self._tasks.spawn, self._on_fetch_error, stalls.loop_watch.tick)
        self._limits = self._make_limits()
        self._handler = handler
        self._calls = HandlerCalls(
            handler, self.session, self._limits, self._on_hook_timeout, self._cluster.hooks
        )
        self._commits = SessionCommits(self.state, self._config, member_health)
        self._claims = SessionClaims(
            source,
            self.session,
            self._tasks,
            self._fetcher,
            self._calls,
            self._commits,
            member_health,
            self._on_settled,
        )
        self._revoking = asyncio.Lock()  # held by `assign`: one revocation at a time
        self._leaving: asyncio.Task[None] | None = None  # leaves the group of a member that is stuck
        self._is_watching = False  # from the start of the first claims on
        self._stuck_start: asyncio.Future[HookTimeout] = asyncio.get_running_loop().create_future()

    @property
    def is_caller(self) -> bool:
        """Whether the caller is the session's handler, or a task or thread that it started."""
        return self._calls.is_caller

    @property
    def has_started(self) -> bool:
        """Whether the first start offsets were found, so that the handler is called."""
        return self._claims.has_started

    # --- 1. from the first assignment to the end ------------------------------------------------------------------

    async def run(self) -> None:
        """Run the session to its end. Raises only on bugs."""
        self._topic_watch.track(self._joined, self._resolved)
        self._member_health.transition_to(MemberState.STARTING)
        try:
            await self._tasks.start()
            try:
                self._tasks.spawn(self._stay)
                await self._consume()
                await self._shut_down()
            finally:
                await self._close()
        finally:
            self._topic_watch.close()

    async def _close(self) -> None:
        self.state.close()
        self.state.on_end = None  # a handler that keeps the session must not keep this object in memory
        try:
            await self._tasks.stop()
            if self._leaving is not None:  # else the group would wait for this member when it joins again
                await wait_shielded(self._leaving)
        finally:
            # after the tasks: automatic commits would fail on a closed committer
            await self._offsets.aclose()
        self._update_health()
        self._member_health.liveness.stuck = None

    async def _consume(self) -> None:
        """Start the first claims, then consume until the session ends."""
        self._note_topics()
        added = self._claims.apply(self._joined.assignment).added
        if type(self._handler)._open is not Handler._open:
            await self.state.run_until_ended(self._handler._open(self.session, self._source), "handler")
            if self.state.ended:
                return
        # what was revoked since, while the handler opened, is not looked up
        self._claims.add([tp for tp in added if tp in self.state.claims.starting])
        self._tasks.spawn(self._claims.run)
        await self.state.wait_ended()

    def _on_settled(self) -> None:
        """The first claims start, or none of them can yet."""
        self._fetcher.start()
        if self._config.auto_commit:
            self._tasks.spawn(self._commits.auto_commit)
        self._topic_watch.start(self._joined, self._resolved)
        self._is_watching = True
        if self._member_health.state is MemberState.STARTING:  # else it joins again already
            self._member_health.transition_to(MemberState.STABLE)
        self._member_health.clear(ProblemKind.LOST, ProblemKind.JOIN, ProblemKind.HANDLER)

    def _note_topics(self) -> None:
        """Record the topics of the metadata at an assignment: one may have been recreated since it was resolved.

        By a pattern that the broker matches, assigned topics that were not seen before have been created since.
        """
        topics = self._cluster.view.topics
        by_broker = self._resolved.broker_pattern is not None
        names = self._joined.assignment if by_broker else self._resolved.existing
        self._source.known_topics.update(
            (topics[name] for name in names if name in topics), are_new=by_broker
        )

    async def _stay(self) -> None:
        """Stay in the group until the membership is lost, also because a claim or a hook before its start is stuck."""
        staying = start_task(self._membership.stay(self._joined, self))
        watching = start_task(self._wait_stuck())
        stuck: list[asyncio.Future[Any]] = [watching, self._stuck_start]
        try:
            await asyncio.wait({staying, *stuck}, return_when=asyncio.FIRST_COMPLETED)
            found = next((future for future in stuck if future.done()), None)
            if found is None:
                await staying
                return
        finally:
            await cancel_and_wait(staying, watching)
        error: ClaimStuck | HookTimeout = found.result()
        if isinstance(error, ClaimStuck):
            self._on_stuck(error, is_logged=False)
        self._on_lost(error, is_logged=True)

    def _on_stuck(self, error: ClaimStuck, *, is_logged: bool) -> None:
        """Report a claim that is stuck; probes see it until the session has ended, its handler included."""
        self._member_health.liveness.stuck = error
        self._stalls.on_stuck(error, is_logged=is_logged)

    async def _wait_stuck(self) -> ClaimStuck:
        """Return the error of the first claim that is stuck."""
        loop, stuck = asyncio.get_running_loop(), self.stuck_claims
        while True:
            await asyncio.sleep(stuck.period)
            if (error := stuck.find(loop.time())) is not None and not self.state.ended:
                return error

    # --- 2. a further assignment, by incremental protocols ----------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the session ends: it does not join again."""
        return self.state.ended

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that are claimed or about to be, sorted."""
        return self.state.claims.owned

    def on_epoch(self, identity: MemberIdentity) -> None:
        """Commit under a newer epoch, as described in `Assignable`."""
        self.state.identity = identity
        if self._is_watching:
            self._topic_watch.look()

    async def assign(self, joined: JoinedGroup) -> ClaimChanges:
        """Replace the assignment while the session goes on, as described in `Assignable`."""
        # marks of retained claims, and the last commit, go out under it
        self.state.identity = joined.identity
        async with self._revoking:
            if self.state.ended:
                return ClaimChanges([], [])
            self._member_health.transition_to(MemberState.STABLE)
            self._member_health.clear(ProblemKind.JOIN)
            self._joined = joined
            self._topic_watch.track(joined, self._resolved)
            self._note_topics()
            changes = self._claims.apply(joined.assignment)
            group = f"group {self._source.group_id!r}"
            cause = Rebalanced(f"{group} rebalances: the partition was revoked")
            await self._claims.revoke(changes.revoked, cause, self._limits_of(cause))
            self.state.assignment, self.state.user_data = joined.assignment, joined.user_data
            self._go_on_with(changes.added)
            return changes

    def _go_on_with(self, added: list[TopicPartition]) -> None:
        """After a revocation: start the added claims, and watch the topics of the new assignment."""
        if self.state.ended:
            return
        self._claims.add(added)
        if self._is_watching:
            self._topic_watch.start(self._joined, self._resolved)
        if self._subscription.wanted != self._resolved.wanted:
            self.on_topics_changed(TopicsChanged("the subscription changed while the member joined"))

    async def prepare_join(self) -> list[str] | SubscriptionPattern | None:
        """Resolve the subscription again and revoke what it no longer has, as described in `Assignable`."""
        resolved = await self.state.run_until_ended(self._resolve(), "topics")
        if resolved is None:
            return None
        async with self._revoking:
            assigned = kept = self.state.assignment
            if resolved.broker_pattern is None:  # else the coordinator decides what remains
                subscribed = set(resolved.existing)
                kept = {topic: numbers for topic, numbers in assigned.items() if topic in subscribed}
            if self.state.ended:
                return None
            self._resolved = resolved
            if kept != assigned:
                gone = ", ".join(sorted(assigned.keys() - kept.keys()))
                changes = self._claims.apply(kept)
                cause = TopicsChanged(f"the member no longer subscribes to {gone}")
                await self._claims.revoke(changes.revoked, cause, self._limits_of(cause))
                self.state.assignment = kept
            self._topic_watch.track(self._joined, resolved)
            if self._is_watching:  # the assignment may stay the same
                self._topic_watch.start(self._joined, resolved)
        return None if self.state.ended else resolved.subscribed

    async def _resolve(self) -> ResolvedTopics:
        """Return the topics of the subscription now; while no broker answers, try again."""
        cluster, subscription, retry = self._cluster, self._subscription, self._cluster.retry()
        while True:
            try:
                with cluster.tracking(subscription.names):
                    return await self._source.resolve_topics(subscription)
            except TransportError as error:
                self._member_health.report(ProblemKind.JOIN, error)
                await retry.wait()

    # --- 3. what ends it --------------------------------------------------------------------------------------------

    def on_heartbeat(self, result: HeartbeatResult, error: AsyncGroupError | None) -> None:
        """Handle the result of a heartbeat, any but ALIVE."""
        group = f"group {self._source.group_id!r}"
        if result is HeartbeatResult.REBALANCE:
            self.state.end(Rebalanced(f"{group} rebalances: a member joined, left or changed its topics"))
        elif result in (HeartbeatResult.LOST, HeartbeatResult.FATAL):
            if isinstance(error, ClaimStuck):
                self._on_stuck(error, is_logged=True)
            by_thread = isinstance(error, ClaimStuck | EventLoopBlocked)  # which has logged it
            self._on_lost(error, is_fatal=result is HeartbeatResult.FATAL, is_logged=by_thread)
        elif error is not None:
            self._member_health.report(ProblemKind.HEARTBEAT, error)
            self._member_health.report_error(error)
            heartbeats = self._membership.heartbeats
            self._stalls.on_silence(heartbeats.last_response_at, heartbeats.heartbeat_interval)

    def _on_lost(
        self, error: AsyncGroupError | None, is_fatal: bool = False, is_logged: bool = False
    ) -> None:
        group, member_id = self._source.group_id, self.state.identity.member_id
        text = f"member {member_id!r} of group {group!r} is lost: {error}"
        self.state.lose(text, error, is_fatal=is_fatal, is_logged=is_logged)
        if isinstance(error, ClaimStuck | EventLoopBlocked | HookTimeout) and self._leaving is None:
            # while handlers may still run; and again, as the leave of the heartbeat thread may not have arrived
            timeout = min(self._config.close_timeout, self._membership.heartbeats.session_timeout)
            leaving = self._membership.leave(str(error), None, timeout)
            self._leaving = start_task(leaving, name=f"{group}: leave, as the member is stuck")

    def _on_commit_refused(self, error: BrokerError) -> None:
        is_fatal = self._membership.is_fatal(error.code)
        self.state.lose(f"a commit was refused: {error}", error, is_fatal=is_fatal)

    def _on_fetch_error(self, error: Exception) -> bool:
        """Report the error of a fetch that is retried; return whether a reader of `errors()` receives it."""
        return self._member_health.report_error(error)

    def _on_hook_timeout(self, error: HookTimeout) -> None:
        """Report a hook that did not end in time: a problem for `HOOK_TIMEOUT_SHOWN`, and while it still runs.

        If a rebalance waits for one that claims wait for, and it ignores its cancellation, the member leaves the group: the
        coordinator has no limit for a revocation after a join (KIP-429).
        """
        self._member_health.report(ProblemKind.HOOK, error)
        _log.warning("%s", error)
        if error.still_runs and error.method in ("setup", "on_assigned") and not self.state.ended:
            self._stuck_start.set_result(error)  # the loss is in `errors()` with this error
        else:
            self._member_health.report_error(error)

    def _on_task_failure(self, error: Exception) -> None:
        self.state.fail(error, "a task of the session failed", by_handler=False)

    def on_topics_changed(self, cause: SessionEnd) -> None:
        """Join again with the present topics: during the session if the protocol can, else it ends for this cause."""
        if self.state.ended or not self._membership.rejoin(cause):
            self.state.end(cause)

    def _on_end(self, cause: SessionEnd) -> None:
        self._calls.limit(cause)
        self._commits.limit_revocation(self._limits.commit_seconds)
        if self._member_health.state not in (MemberState.DRAINING, MemberState.COMMITTING):
            self._member_health.transition_to(MemberState.DRAINING)

    def _make_limits(self, within: EndLimits | None = None) -> EndLimits:
        return EndLimits(self._config, lambda: self._membership.heartbeats.last_stable_sent_at, within)

    def _limits_of(self, cause: SessionEnd) -> EndLimits:
        """Return the limits of a revocation that begins now."""
        limits = self._make_limits(within=self._limits)
        limits.add_cause(cause)
        return limits

    # --- 4. shutdown ------------------------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        """Drain the handlers, call their last hooks, and make the last commit."""
        async with self._revoking:  # a revocation that has begun is completed first
            revoked = self._claims.apply({}).revoked
        await self._calls.drain()
        for claim in self.state.claims:
            self._fetcher.remove(claim._inner.consumer)
        await self._calls.end(revoked)
        await self._handler._close(self.session)
        self.state.accepts_marks = False
        if not self.state.is_lost:
            self._member_health.transition_to(MemberState.COMMITTING)
            await self._commits.commit_last(self._limits.commit_seconds)
        if self.has_started:
            self._cluster.hooks.emit("on_session_end", self.session, self.state.cause)

    # --- health -----------------------------------------------------------------------------------------------------

    def fill_snapshot(self, snapshot: HealthSnapshot) -> HealthSnapshot:
        """Add the session's part to a health snapshot."""
        self._update_last_responses()
        snapshot = snapshot._replace(
            claims=self.session.claims,
            pending_starts=self._claims.pending_starts,
            running_calls=self._calls.running_calls,
            unanswered_fetches=self._fetcher.pending_since,
        )
        if self._resolved.pattern is not None and not self._resolved.existing:
            snapshot = snapshot._replace(idle_reason=WaitKind.TOPIC_OF_PATTERN)
        elif self._resolved.broker_pattern is not None:
            snapshot = snapshot._replace(idle_reason=WaitKind.PARTITION_OF_PATTERN)
        return snapshot

    def _update_last_responses(self) -> None:
        self._member_health.update_last_responses(
            self._membership.heartbeats.last_response_at, self._fetcher.last_fetch
        )

    def _update_health(self) -> None:
        """At the end: a handler's exception and a loss remain problems until a later session is stable, a hook's timeout for its time."""
        self._update_last_responses()
        lasting = {ProblemKind.HANDLER, ProblemKind.LOST, ProblemKind.HOOK}
        self._member_health.clear(*(set(ProblemKind) - lasting))
