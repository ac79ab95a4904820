"""Member: resolve the subscription, join, run the session, leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Coroutine, Iterable
from typing import Any, Final, NamedTuple

from asyncgroup.errors import CallerCancelled, GroupClosed, TopicsChanged
from asyncgroup.group.handler import Handler
from asyncgroup.group.health import Health, HealthSnapshot, diagnose
from asyncgroup.group.join_requests import CANCELLED
from asyncgroup.group.limits import MIN_RESERVE_SHARE, reserve_for
from asyncgroup.group.member_health import MemberState
from asyncgroup.group.membership import ClassicMembership, JoinedGroup
from asyncgroup.group.session_run import SessionRun
from asyncgroup.group.session_start import GroupContext
from asyncgroup.group.topics import ResolvedTopics, Subscription, resolve_topics
from asyncgroup.lifecycle import run_until, wait_shielded, wait_within

__all__ = ["Member"]

_log = logging.getLogger("asyncgroup.group")


HEARTBEAT_LEAD: Final = 0.08
"""Seconds before a heartbeat at which a leaving member stops: enough for a fast handler, commit and LeaveGroup."""


class _JoinedSubscription(NamedTuple):
    """The result of a join, with what a session needs of it."""

    joined: JoinedGroup
    resolved: ResolvedTopics
    wanted: list[str] | re.Pattern[str]
    """The subscribed topics when the join began."""


class Member:
    """A group member with one session at a time."""

    def __init__(self, context: GroupContext, membership: ClassicMembership) -> None:
        self._context = context
        self._membership = membership
        self._group_id = context.group_id
        self._config = context.config
        self._member_health = context.member_health
        self._session_lock = asyncio.Lock()  # held from the join to the end of the session, and while leaving
        self._leave_deadline = float("inf")  # loop time; set when closing or cancelled
        self.closing = asyncio.Event()
        """Set when the group closes."""
        self.session_run: SessionRun | None = None
        """The current session."""

    # --- sessions -------------------------------------------------------------------------------------------------

    async def run_session(self, subscription: Subscription, handler: Handler) -> SessionRun | None:
        """Join and run a session; return it, or None if the group closed before. A concurrent call waits its turn."""
        async with self._session_lock:
            if self.closing.is_set():
                return None
            try:
                entry = await self._run_until_closed(self._join(subscription))
                return None if entry is None else await self._run_session(entry, subscription, handler)
            except asyncio.CancelledError:
                self._start_close_timeout()
                await wait_shielded(asyncio.ensure_future(self._leave(CANCELLED, None)))
                raise
            finally:
                self._member_health.transition_to(MemberState.NOT_CONSUMING)

    async def back_off(self, seconds: float) -> bool:
        """Wait before the next session; True if the group closes in that time. If cancelled, leave the group."""
        self._member_health.transition_to(MemberState.WAITING_TO_REJOIN)
        try:
            return await wait_within(self.closing, seconds)
        except asyncio.CancelledError:
            if not self._session_lock.locked():  # else another call uses the membership, or closes it
                self._start_close_timeout()
                await wait_shielded(asyncio.ensure_future(self.leave(CANCELLED, None)))
            raise
        finally:
            if self._member_health.state in (MemberState.WAITING_TO_REJOIN, MemberState.LEAVING):
                self._member_health.transition_to(MemberState.NOT_CONSUMING)

    async def _join(self, subscription: Subscription) -> _JoinedSubscription:
        cluster, context = self._context.cluster, self._context
        wanted = subscription.wanted
        names = subscription.names
        self._member_health.transition_to(MemberState.LOOKING_UP_TOPICS)
        with cluster.tracking(names):
            resolved = await resolve_topics(cluster, subscription, context.known_topics)
            with cluster.tracking(resolved.existing):
                joined = await self._membership.join(resolved.existing)
        return _JoinedSubscription(joined, resolved, wanted)

    async def _run_session(
        self, entry: _JoinedSubscription, subscription: Subscription, handler: Handler
    ) -> SessionRun:
        run = self.session_run = SessionRun(self._context, entry.joined, entry.resolved, handler)
        task = asyncio.create_task(run.run(), name=f"session of {self._group_id}")
        if self.closing.is_set():
            run.session.end(GroupClosed(f"group {self._group_id!r} was closed"))
        elif subscription.wanted != entry.wanted:  # changes from here on end the session themselves
            run.session.end(TopicsChanged("the subscription changed while the member joined"))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self._start_close_timeout()
            run.session.end(CallerCancelled("the task that consumes was cancelled"))
            await wait_shielded(task)
            raise
        finally:
            self.session_run = None
            self._membership.after_session(run.session.cause)
        return run

    async def _run_until_closed(
        self, work: Coroutine[Any, Any, _JoinedSubscription]
    ) -> _JoinedSubscription | None:
        """Return the result of `work`; None if the group closes first, which cancels it."""
        task = await run_until(self.closing.wait(), work, f"{self._group_id}: join")
        return None if task.cancelled() else task.result()

    # --- health -------------------------------------------------------------------------------------------------

    def health(self, names: Iterable[str], now: float) -> Health:
        """Return the current health; `names` are the topics subscribed to by name."""
        run, missing = self.session_run, self._context.known_topics.missing
        snapshot = HealthSnapshot(
            self._group_id,
            self._config,
            self._membership.identity,
            self._member_health,
            missing_topics={topic: missing[topic] for topic in names if topic in missing},
        )
        if run is not None:
            run.update_health()
            snapshot = snapshot._replace(
                claims=run.session.claims,
                running_calls=run.running_calls,
                unanswered_fetches=run.fetcher.pending_since,
            )
            if run.matches_no_topic:
                snapshot = snapshot._replace(idle_reason="a topic that its pattern matches")
        return diagnose(snapshot, now)

    # --- close --------------------------------------------------------------------------------------------------

    def _start_close_timeout(self) -> None:
        """Start `close_timeout`, if it is not running yet: it limits all remaining phases together."""
        deadline = asyncio.get_running_loop().time() + self._config.close_timeout
        self._leave_deadline = min(self._leave_deadline, deadline)

    async def wait_for_heartbeat(self) -> None:
        """Wait until just before the group's next heartbeat, or until the session ends."""
        if (run := self.session_run) is None or self.closing.is_set():
            return
        now = asyncio.get_running_loop().time()
        lead = min(HEARTBEAT_LEAD, self._config.heartbeat_interval / 4)
        if (heartbeat_at := run.heartbeats.next_heartbeat_after(now + lead)) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(heartbeat_at - lead):
                    await run.session.wait_ended()

    def close(self) -> None:
        """Begin to close: end the session, cancel a join."""
        self.closing.set()
        self._start_close_timeout()
        if self.session_run is not None:
            self.session_run.session.end(GroupClosed(f"group {self._group_id!r} was closed"))

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
