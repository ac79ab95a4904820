"""A member's way through its sessions: subscribe, join, live, leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Coroutine, Iterable
from typing import Any, Final, NamedTuple

from asyncgroup.errors import CallerCancelled, GroupClosed, TopicsChanged
from asyncgroup.group.diagnosis import Scene, diagnose
from asyncgroup.group.handler import Handler
from asyncgroup.group.health import Health
from asyncgroup.group.limits import LEAST_SHARE, reserve_of
from asyncgroup.group.membership import ClassicMembership, Joined
from asyncgroup.group.reasons import CANCELLED
from asyncgroup.group.session_run import SessionRun
from asyncgroup.group.session_start import GroupContext
from asyncgroup.group.topics import Subscribed, Subscription, resolve_topics
from asyncgroup.group.vitals import GroupState
from asyncgroup.lifecycle import finish, run_until, wait_within

__all__ = ["Member"]

_log = logging.getLogger("asyncgroup.group")


BEAT_LEAD: Final = 0.08
"""Seconds before a heartbeat at which a member that leaves stops: enough for a quick handler, a commit and the leave."""


class _Entry(NamedTuple):
    """The way into a session."""

    joined: Joined
    subscribed: Subscribed
    wanted: list[str] | re.Pattern[str]
    """The topics that were asked for when it began."""


class Member:
    """One session at a time: `round` runs the next. `run` is the session that lives now; `closing` ends everything."""

    def __init__(self, context: GroupContext, membership: ClassicMembership) -> None:
        self._context, self._membership = context, membership
        self._group_id, self._config = context.group_id, context.config
        self._vitals = context.vitals
        self._turn = asyncio.Lock()
        self._leave_by = float("inf")
        self.closing = asyncio.Event()
        self.run: SessionRun | None = None

    # --- rounds -------------------------------------------------------------------------------------------------

    async def round(self, subscription: Subscription, handler: Handler) -> SessionRun | None:
        """The session that was, or None if the group was closed before there was one. A second call waits its turn."""
        async with self._turn:
            if self.closing.is_set():
                return None
            try:
                entry = await self._or_closed(self._enter(subscription))
                return None if entry is None else await self._live(entry, subscription, handler)
            except asyncio.CancelledError:
                self._hurry()
                await finish(asyncio.ensure_future(self._leave(CANCELLED, None)))
                raise
            finally:
                self._vitals.enter(GroupState.NOT_CONSUMING)

    async def pause(self, seconds: float) -> bool:
        """Wait before the next round; True if the group closes meanwhile. A caller that is cancelled leaves the group."""
        self._vitals.enter(GroupState.WAITING)
        try:
            return await wait_within(self.closing, seconds)
        except asyncio.CancelledError:
            if not self._turn.locked():  # or another call goes on as this member, or closes
                self._hurry()
                await finish(asyncio.ensure_future(self.leave(CANCELLED, None)))
            raise
        finally:
            if self._vitals.state in (GroupState.WAITING, GroupState.LEAVING):
                self._vitals.enter(GroupState.NOT_CONSUMING)

    async def _enter(self, subscription: Subscription) -> _Entry:
        cluster, context = self._context.cluster, self._context
        wanted = subscription.wanted
        names = subscription.names
        self._vitals.enter(GroupState.LOOKING_UP_TOPICS)
        cluster.track(names)
        try:
            subscribed = await resolve_topics(cluster, subscription, context.known)
            cluster.track(subscribed.joined)
            try:
                joined = await self._membership.join(subscribed.joined)
            finally:
                cluster.untrack(subscribed.joined)
        finally:
            cluster.untrack(names)
        return _Entry(joined, subscribed, wanted)

    async def _live(self, entry: _Entry, subscription: Subscription, handler: Handler) -> SessionRun:
        run = self.run = SessionRun(self._context, entry.joined, entry.subscribed, handler)
        task = asyncio.create_task(run.run(), name=f"session of {self._group_id}")
        if self.closing.is_set():
            run.session.end(GroupClosed(f"group {self._group_id!r} was closed"))
        elif subscription.wanted != entry.wanted:  # from here on `set_topics` finds the session
            run.session.end(TopicsChanged("other topics were asked for while the member joined"))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self._hurry()
            run.session.end(CallerCancelled("the task that consumes was cancelled"))
            await finish(task)
            raise
        finally:
            self.run = None
            self._membership.after_session(run.session.cause)
        return run

    async def _or_closed(self, work: Coroutine[Any, Any, _Entry]) -> _Entry | None:
        """Our own work, given up when the group closes; None then."""
        task = await run_until(self.closing.wait(), work, f"{self._group_id}: join")
        return None if task.cancelled() else task.result()

    # --- health -------------------------------------------------------------------------------------------------

    def health(self, names: Iterable[str], now: float) -> Health:
        """The picture of this moment; `names` are the topics that are subscribed to by name."""
        run, missing = self.run, self._context.known.missing
        scene = Scene(
            self._group_id,
            self._config,
            self._membership.identity,
            self._vitals,
            missing={topic: missing[topic] for topic in names if topic in missing},
        )
        if run is not None:
            run.take_pulse()
            scene = scene._replace(claims=run.session.claims, busy=run.busy, asked_at=run.fetchers.asked_at)
            if run.is_without_topics:
                scene = scene._replace(for_claims="a topic that its pattern matches")
        return diagnose(scene, now)

    # --- the end ------------------------------------------------------------------------------------------------

    def _hurry(self) -> None:
        """From now on `close_timeout` runs, for all that is still to be done."""
        deadline = asyncio.get_running_loop().time() + self._config.close_timeout
        self._leave_by = min(self._leave_by, deadline)

    async def wait_for_beat(self) -> None:
        """Wait until just before the group's next heartbeat; not longer than there is a session to wait for."""
        if (run := self.run) is None or self.closing.is_set():
            return
        now = asyncio.get_running_loop().time()
        lead = min(BEAT_LEAD, self._config.heartbeat_interval / 4)
        if (beat := run.heartbeats.beat_after(now + lead)) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(beat - lead):
                    await run.session.wait_ended()

    def close(self) -> None:
        """Begin to close: the session ends, a join is given up."""
        self.closing.set()
        self._hurry()
        if self.run is not None:
            self.run.session.end(GroupClosed(f"group {self._group_id!r} was closed"))

    async def leave(self, reason: str, for_good: bool | None) -> None:
        """Leave when the round under way is over."""
        async with self._turn:
            await self._leave(reason, for_good)

    async def _leave(self, reason: str, for_good: bool | None) -> None:
        left = self._leave_by - asyncio.get_running_loop().time()
        self._leave_by = float("inf")
        self._vitals.enter(GroupState.LEAVING)
        timeout = max(left, reserve_of(self._config.close_timeout) * LEAST_SHARE)
        await self._membership.leave(reason, for_good, timeout)
