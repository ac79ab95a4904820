"""Member: one session after another, each with a join before it; what follows a session; leaving.

`consume()` calls `run_session` once, `run()` calls `run_sessions`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ClientConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CallerCancelled,
    ClaimStuck,
    ErrorCode,
    EventLoopBlocked,
    GroupClosed,
    PartitionsChanged,
    Rebalanced,
    TopicsChanged,
    TransportError,
)
from asyncgroup.group.group_protocol import chosen_protocol
from asyncgroup.group.health.diagnosis import HealthSnapshot, diagnose
from asyncgroup.group.health.health import Health
from asyncgroup.group.health.member_health import MemberHealth, MemberState
from asyncgroup.group.health.problems import ProblemKind
from asyncgroup.group.liveness.heartbeat_thread import BLOCKED_SECONDS, HeartbeatThread
from asyncgroup.group.liveness.stalls import CHECKS, Stalls
from asyncgroup.group.liveness.thread_heartbeats import ThreadHeartbeats
from asyncgroup.group.membership import CANCELLED, JoinedGroup, Membership
from asyncgroup.group.sessions.claim_source import ClaimSource
from asyncgroup.group.sessions.end_limits import MIN_RESERVE_SHARE, reserve_for
from asyncgroup.group.sessions.handler import Handler
from asyncgroup.group.sessions.life import SessionLife
from asyncgroup.group.topics.topics import ResolvedTopics, Subscription
from asyncgroup.lifecycle import run_until, start_task, wait_shielded
from asyncgroup.net.backoff import RetryLoop

__all__ = ["Member"]

_log = logging.getLogger("asyncgroup.group")

HEARTBEAT_LEAD: Final = 0.08
"""Seconds before a heartbeat at which a leaving member stops: enough for a fast handler, commit and LeaveGroup."""

MIN_SIGN_PERIOD: Final = 0.05
"""Shortest time between two signs of life for the heartbeat thread, in seconds."""

REJOIN_AT_ONCE_AFTER: Final = (Rebalanced, PartitionsChanged, TopicsChanged)
"""Causes after which the member rejoins without backoff."""

UNKNOWN_TOPIC: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Member:
    """A group member with one session at a time."""

    def __init__(self, source: ClaimSource, membership: Membership, member_health: MemberHealth) -> None:
        self._source = source
        self._cluster = source.cluster
        self._group_id = source.group_id
        self._config = source.config
        self._membership = membership
        self._member_health = member_health
        self._stalls = Stalls(source.group_id, source.cluster.hooks, member_health)
        self._stalls.watch_states()
        self._heartbeat_thread = HeartbeatThread(
            source.group_id, self._make_thread_heartbeats, self._stalls.on_blocked, self._sign_period
        )
        self._session_lock = asyncio.Lock()  # held from the join to the end of the session, and while leaving
        self._leave_deadline = float("inf")  # loop time; set when closing or cancelled
        self.closing = asyncio.Event()
        """Set when the group closes."""
        self.life: SessionLife | None = None
        """The current session's, or None."""

    # --- sessions -------------------------------------------------------------------------------------------------

    async def run_session(self, subscription: Subscription, handler: Handler) -> SessionLife | None:
        """Join and run a session; return it, or None if the group closed before. A concurrent call waits its turn."""
        async with self._session_lock:
            if self.closing.is_set():
                return None
            try:
                join = await run_until(
                    self.closing.wait(), self._join(subscription), f"{self._group_id}: join"
                )
                if join.cancelled() and self.closing.is_set():
                    return None
                return await self._run_joined(*join.result(), subscription, handler)
            except asyncio.CancelledError:
                self._start_close_timeout()
                await wait_shielded(start_task(self._leave(CANCELLED, None)))
                raise
            finally:
                self._member_health.transition_to(MemberState.NOT_CONSUMING)

    async def run_sessions(
        self, subscription: Subscription, handler: Handler, check: Callable[[], None]
    ) -> None:
        """Run one session after another until the group closes. Raises errors that are not retriable.

        `check` raises if the group can no longer consume.
        """
        retry = self._cluster.retry()
        try:
            while True:
                check()
                rejoins_at_once = await self._run_next(subscription, handler)
                # closing: also if the session ended for another cause
                if rejoins_at_once is None or self.closing.is_set():
                    return
                if rejoins_at_once:
                    retry.reset()
                elif await self._back_off(retry):
                    return
        finally:
            if self._member_health.state is MemberState.WAITING_TO_REJOIN:
                self._member_health.transition_to(MemberState.NOT_CONSUMING)

    async def _join(self, subscription: Subscription) -> tuple[JoinedGroup, ResolvedTopics]:
        if self._config.heartbeat_thread and self._heartbeat_thread.start():
            self._stalls.loop_watch.stop()  # the thread could not be started before
        else:
            self._stalls.loop_watch.start()
        cluster = self._cluster
        self._member_health.transition_to(MemberState.LOOKING_UP_TOPICS)
        with cluster.tracking(subscription.names):
            resolved = await self._source.resolve_topics(subscription)
            with cluster.tracking(resolved.existing):
                return await self._membership.join(resolved.subscribed), resolved

    async def _run_joined(
        self, joined: JoinedGroup, resolved: ResolvedTopics, subscription: Subscription, handler: Handler
    ) -> SessionLife:
        life = self.life = SessionLife(
            self._source,
            self._membership,
            self._member_health,
            self._stalls,
            joined,
            subscription,
            resolved,
            handler,
        )
        task = start_task(life.run(), name=f"session of {self._group_id}")
        if self.closing.is_set():
            life.state.end(GroupClosed(f"group {self._group_id!r} was closed"))
        elif subscription.wanted != resolved.wanted:  # from here on the session is called at a change
            life.state.end(TopicsChanged("the subscription changed while the member joined"))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self._start_close_timeout()
            life.state.end(CallerCancelled("the task that consumes was cancelled"))
            await wait_shielded(task)
            raise
        finally:
            self.life = None
            self._membership.after_session(life.state.cause)
        return life

    # --- the event loop is blocked ------------------------------------------------------------------------------

    def _make_thread_heartbeats(self, blocked_since: float) -> ThreadHeartbeats | None:
        """Return what sends the heartbeats while the event loop is blocked. Called in the heartbeat thread."""
        limit, heartbeats = self._config.max_poll_interval, self._membership.heartbeats
        if heartbeats.handover.snapshot is None:
            return None
        if (life := self.life) is not None:
            life.stuck_claims.find(blocked_since)  # no claim has made progress since then

        def find_stuck(now: float) -> ClaimStuck | EventLoopBlocked | None:
            stuck = None if life is None else life.stuck_claims.find(now)
            if stuck is None and limit and now - blocked_since >= limit:
                return EventLoopBlocked(self._group_id, now - blocked_since)
            return stuck

        period = limit / CHECKS if limit else float("inf")
        return ThreadHeartbeats(heartbeats.handover, self._second_client_maker(), find_stuck, period)

    def _sign_period(self) -> float:
        """Return the seconds between two signs of life: a block must be noticed long before the session timeout.

        It is noticed after two of them, and may begin just before a heartbeat; half of the time after that remains to send it.
        """
        heartbeats = self._membership.heartbeats
        if heartbeats.handover.snapshot is None:  # its session timeout may be known only after the next join
            return BLOCKED_SECONDS / 4
        interval = heartbeats.heartbeat_interval
        return min(
            BLOCKED_SECONDS, interval, max((heartbeats.session_timeout - interval) / 4, MIN_SIGN_PERIOD)
        )

    def _second_client_maker(self) -> Callable[[], ClusterClient]:
        """Return a function that returns a client of the same cluster for another event loop.

        Without hooks, which run on the group's loop. If it could not be opened, another one is made.
        """
        # the names of the bootstrap servers are canonical already, if that is configured
        changed = {"metadata_refresh_interval": 0.0, "client_dns_lookup": "use_all_dns_ips"}
        config = ClientConfig(**self._cluster.config.client() | changed)
        servers = self._cluster.network.servers_for_another_client()
        return lambda: ClusterClient(servers, config)

    async def stop_watching_loop(self) -> None:
        """End the heartbeat thread, or what watches the event loop without it."""
        self._stalls.loop_watch.stop()
        await self._heartbeat_thread.stop()

    # --- between sessions ---------------------------------------------------------------------------------------

    async def _run_next(self, subscription: Subscription, handler: Handler) -> bool | None:
        """Run the next session; return whether to rejoin without a backoff, None if the group closed before it began.

        Raises the handler's exception, and failures that are not retriable. Only the outcome is returned, so that the
        session, its claims and their errors are not kept in memory during the next session.
        """
        try:
            life = await self.run_session(subscription, handler)
        except (BrokerError, TransportError) as error:
            self._report_or_raise(error, subscription)
            return False
        if life is None:
            return None
        if life.state.failure is not None:
            if life.state.failed_by_handler:
                raise life.state.failure
            self._report_or_raise(life.state.failure, subscription)
            return False
        return isinstance(life.state.cause, REJOIN_AT_ONCE_AFTER)

    def _report_or_raise(self, error: BaseException, subscription: Subscription) -> None:
        """Report an error after which the next session may succeed; raise any other."""
        if isinstance(error, BrokerError) and error.code in UNKNOWN_TOPIC:
            is_retriable = self._source.may_appear(subscription.names)
        elif isinstance(error, BrokerError):
            # after UNKNOWN_MEMBER_ID the next join is one of a new member
            is_retriable = error.retriable or error.code == ErrorCode.UNKNOWN_MEMBER_ID
        else:
            is_retriable = isinstance(error, TransportError)
        if not is_retriable or not isinstance(error, AsyncGroupError):
            raise error
        _log.warning("group %s: %s", self._group_id, error)
        self._member_health.report(ProblemKind.JOIN, error)
        self._member_health.report_error(error)

    async def _back_off(self, retry: RetryLoop) -> bool:
        """Wait before the next session; True if the group closes in that time. If cancelled, leave the group."""
        self._member_health.transition_to(MemberState.WAITING_TO_REJOIN)
        try:
            return await retry.wait(self.closing)
        except asyncio.CancelledError:
            if not self._session_lock.locked():  # else another call uses the membership, or closes it
                self._start_close_timeout()
                await wait_shielded(start_task(self.leave(CANCELLED, None)))
                self._member_health.transition_to(MemberState.NOT_CONSUMING)
            raise

    # --- health -------------------------------------------------------------------------------------------------

    def health(self, names: Iterable[str], now: float) -> Health:
        """Return the current health; `names` are the topics subscribed to by name."""
        absent = self._source.known_topics.absent
        names = {*names, *self._source.optional_topics}
        snapshot = HealthSnapshot(
            self._group_id,
            self._config,
            self._membership.identity,
            self._member_health,
            self._membership.heartbeats.session_timeout,
            self._membership.heartbeats.heartbeat_interval,
            chosen_protocol(self._membership),
            absent_topics={topic: absent[topic] for topic in names if topic in absent},
        )
        if self.life is not None:
            snapshot = self.life.fill_snapshot(snapshot)
        return diagnose(snapshot, now)

    # --- close --------------------------------------------------------------------------------------------------

    def _start_close_timeout(self) -> None:
        """Start `close_timeout`, if it is not running yet: it limits all remaining phases together."""
        deadline = asyncio.get_running_loop().time() + self._config.close_timeout
        self._leave_deadline = min(self._leave_deadline, deadline)

    async def wait_for_heartbeat(self) -> None:
        """Wait until just before the group's next heartbeat, or until the session ends."""
        if (life := self.life) is None or self.closing.is_set():
            return
        now = asyncio.get_running_loop().time()
        lead = min(HEARTBEAT_LEAD, self._config.effective_heartbeat_interval / 4)
        if (heartbeat_at := self._membership.heartbeats.next_heartbeat_after(now + lead)) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(heartbeat_at - lead):
                    await life.state.wait_ended()

    def close(self) -> None:
        """Begin to close: end the session, cancel a join."""
        self.closing.set()
        self._start_close_timeout()
        if self.life is not None:
            self.life.state.end(GroupClosed(f"group {self._group_id!r} was closed"))

    async def leave(self, reason: str, leaves: bool | None) -> None:
        """Leave the group after the current session, if any."""
        async with self._session_lock:
            await self._leave(reason, leaves)

    async def _leave(self, reason: str, leaves: bool | None) -> None:
        left = self._leave_deadline - asyncio.get_running_loop().time()
        self._leave_deadline = float("inf")
        self._member_health.transition_to(MemberState.LEAVING)
        timeout = max(left, reserve_for(self._config.close_timeout) * MIN_RESERVE_SHARE)
        await self._membership.leave(reason, leaves, timeout)
