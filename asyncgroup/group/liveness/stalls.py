"""Stalls of a group member: claims without progress, a blocked event loop, long joins, a silent coordinator.

StuckClaims finds the first, LoopWatch the second where no heartbeat thread does; Stalls reports each one: one log line, the
hook `on_member_stalled`, and `errors()` or `health()`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from asyncgroup.errors import ClaimStuck, EventLoopBlocked
from asyncgroup.group.health.member_health import MemberHealth, MemberState
from asyncgroup.group.liveness.heartbeat_thread import BLOCKED_SECONDS, is_first_line
from asyncgroup.hooks import Hooks, StallKind
from asyncgroup.log_events import LogEvent, claim_stuck_fields, log_fields
from asyncgroup.model import TopicPartition

if TYPE_CHECKING:
    from asyncgroup.group.sessions.claim import Claim

__all__ = [
    "CHECKS",
    "EVENTS_BY_KIND",
    "LONG_JOIN",
    "UNKNOWN_COORDINATOR",
    "LoopWatch",
    "Stalls",
    "StuckClaims",
]

_log = logging.getLogger("asyncgroup.group")

CHECKS: Final = 10
"""How often progress is compared in one `max_poll_interval`: a stuck claim is found at most a tenth of it late."""

PERIOD: Final = 1.1 * BLOCKED_SECONDS
"""Seconds after `tick` at which the timer is due: longer than the period of the fetcher's timer, which so postpones it."""

LONG_JOIN: Final = 10.0
"""Seconds after which a join that is not complete is reported, with all of its attempts."""

UNKNOWN_COORDINATOR: Final = 5.0
"""Seconds after which it is reported that no coordinator is found, or that it does not answer heartbeats that are due."""

_JOIN_WAITS_FOR: Final[Mapping[MemberState, str]] = {
    MemberState.LOOKING_UP_TOPICS: "the metadata of its topics",
    MemberState.LOOKING_UP_COORDINATOR: "the coordinator",
    MemberState.JOINING: "all members to join",
    MemberState.SYNCING: "the assignment",
}
"""Not the texts of `Health.waits_for`: after "the join is not complete" they would repeat the join and the group."""

EVENTS_BY_KIND: Final[Mapping[StallKind, LogEvent]] = {
    "join": "join_stalled",
    "coordinator": "coordinator_silent",
}
"""The log events of the stalls that are reported here only."""


class StuckClaims:
    """Compares the progress of claims from time to time, so that nothing is counted for each record.

    Only a claim whose handler works on a record can be stuck: not one that waits for records, is paused, or has not read
    anything yet. `limit` is in seconds; 0 finds nothing. It may also be called from the heartbeat thread: that reads the
    claims only while the event loop is blocked, so they do not change in that time, except by the handler that blocks it.
    """

    def __init__(self, group_id: str, limit: float, claims: Callable[[], Iterable[Claim]]) -> None:
        self._group_id = group_id
        self.limit = limit
        self._claims = claims
        self._lock = threading.Lock()
        self._since: dict[TopicPartition, tuple[tuple[object, ...], float]] = {}
        """By partition: the progress at the last check, and the time at which that value was seen first."""

    def __repr__(self) -> str:
        return f"<StuckClaims: {len(self._since)} at work, limit {self.limit:g} s>"

    @property
    def period(self) -> float:
        """Seconds between two checks; infinity if there is nothing to find."""
        return self.limit / CHECKS if self.limit else float("inf")

    def find(self, now: float) -> ClaimStuck | None:
        """Compare the progress at loop time `now`; return the error of the claim that is stuck for longest, if any is."""
        if not self.limit:
            return None
        with self._lock:
            before, self._since = self._since, {}
            for claim in self._claims():
                state, tp = claim._inner, claim.tp
                if state.holds_record and not state.is_renewed(now):
                    progress = state.progress
                    known = before.get(tp)
                    same = known is not None and known[0] == progress
                    self._since[tp] = known if known is not None and same else (progress, now)
            if not self._since:
                return None
            tp, (_, since) = min(self._since.items(), key=lambda item: (item[1][1], item[0]))
        seconds = now - since
        return ClaimStuck(self._group_id, tp, seconds, self.limit) if seconds >= self.limit else None


class LoopWatch:
    """Watches the event loop of one group object that has no heartbeat thread.

    `on_blocked(seconds)` is called after a block, with the seconds by which the timer was late. The block may have begun up to
    `PERIOD` before the timer was due, so those that are longer than `BLOCKED_SECONDS` and `PERIOD` together are always seen.

    Timers that run anyway call `tick`, which postpones the own one: as long as they come in time it never wakes the loop.
    """

    def __init__(self, group_id: str, on_blocked: Callable[[float], None]) -> None:
        self._group_id = group_id
        self._on_blocked = on_blocked
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # loop time of the timer

    def __repr__(self) -> str:
        return f"<LoopWatch of {self._group_id!r}: {'runs' if self._timer is not None else 'not running'}>"

    def start(self) -> None:
        """Start watching the running event loop, unless it is watched already."""
        if self._timer is None:
            self._set_timer(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tick(self) -> None:
        """Report a block if the timer is late, and set it again. Before `start` this does nothing."""
        if self._timer is None:
            return
        loop, due = asyncio.get_running_loop(), self._due
        self._timer.cancel()
        self._set_timer(loop)
        seconds = loop.time() - due
        if seconds < BLOCKED_SECONDS:
            return
        if is_first_line(loop, due, loop.time()):
            _log.warning(
                "group %s: the event loop was blocked for %.1f s; where is not known without heartbeat_thread",
                self._group_id,
                seconds,
                extra=log_fields("loop_blocked", group=self._group_id),
            )
        self._on_blocked(seconds)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + PERIOD
        self._timer = loop.call_at(self._due, self.tick)


class Stalls:
    """Reports the stalls of one member, each once until the member goes on."""

    def __init__(self, group_id: str, hooks: Hooks, member_health: MemberHealth) -> None:
        self._group_id = group_id
        self._hooks = hooks
        self._member_health = member_health
        self.loop_watch = LoopWatch(group_id, self.on_blocked)
        """Runs instead of a heartbeat thread that is turned off or could not be started."""
        self._silent_since = float("-inf")  # the last response before the silence that was reported

    def __repr__(self) -> str:
        return f"<Stalls of {self._group_id!r}>"

    def watch_states(self) -> None:
        """Report from now on also a member that looks for its coordinator or joins for long."""
        self._member_health.watch(
            {MemberState.LOOKING_UP_COORDINATOR: (UNKNOWN_COORDINATOR, self._on_unknown_coordinator)}
        )
        self._member_health.join.report(LONG_JOIN, self._on_long_join)

    def on_blocked(self, seconds: float) -> None:
        """The event loop ran nothing for that long. The heartbeat thread or `loop_watch` has logged it already."""
        error = EventLoopBlocked(self._group_id, seconds)
        self._member_health.report_error(error)
        self._emit("event loop", seconds, str(error))

    def on_stuck(self, error: ClaimStuck, *, is_logged: bool) -> None:
        """A claim is stuck, so the membership is lost. `is_logged`: by the heartbeat thread, which found it."""
        if not is_logged:
            _log.warning("%s", error, extra=claim_stuck_fields(error))
        self._emit("claim", error.seconds, str(error))

    def on_silence(self, last_response_at: float, interval: float) -> None:
        """A heartbeat has failed; the coordinator last answered then, and is asked every `interval` seconds."""
        seconds = asyncio.get_running_loop().time() - last_response_at
        if seconds >= interval + UNKNOWN_COORDINATOR and last_response_at > self._silent_since:
            self._silent_since = last_response_at
            self._warn(
                "coordinator", seconds, f"the coordinator has not answered a heartbeat for {seconds:.1f} s"
            )

    def _on_unknown_coordinator(self, seconds: float) -> None:
        self._warn("coordinator", seconds, f"no coordinator found for {seconds:.1f} s")

    def _on_long_join(self, seconds: float) -> bool:
        """Report a join; False if only its coordinator is unknown so far, which is reported already."""
        health = self._member_health
        age = asyncio.get_running_loop().time() - health.state_since
        if health.state is MemberState.LOOKING_UP_COORDINATOR and age >= UNKNOWN_COORDINATOR:
            return False
        if health.state is MemberState.NOT_CONSUMING:
            return True
        if (error := health.refused_with) is not None:
            why = f"the last attempt failed: {error}"
        else:
            why = f"it waits for {_JOIN_WAITS_FOR.get(health.state, 'the next attempt')}"
        self._warn("join", seconds, f"the join is not complete after {seconds:.1f} s: {why}")
        return True

    def _warn(self, kind: StallKind, seconds: float, text: str) -> None:
        text = f"group {self._group_id!r}: {text}"
        _log.warning("%s", text, extra=log_fields(EVENTS_BY_KIND[kind], group=self._group_id))
        self._emit(kind, seconds, text)

    def _emit(self, kind: StallKind, seconds: float, text: str) -> None:
        self._hooks.emit("on_member_stalled", self._group_id, kind, seconds, text)
