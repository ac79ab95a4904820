"""Stalls: report each stall of a group member: one log line, the hook `on_member_stalled`, and `errors()` or `health()`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from asyncgroup.errors import ClaimStuck, EventLoopBlocked
from asyncgroup.group.health.member_health import MemberHealth, MemberState
from asyncgroup.group.liveness.loop_watch import LoopWatch
from asyncgroup.hooks import Hooks, StallKind
from asyncgroup.log_events import LogEvent, claim_stuck_fields, log_fields

__all__ = ["EVENTS_BY_KIND", "LONG_JOIN", "UNKNOWN_COORDINATOR", "Stalls"]

_log = logging.getLogger("asyncgroup.group")

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

EVENTS_BY_KIND: Final[Mapping[StallKind, LogEvent]] = {
    "join": "join_stalled",
    "coordinator": "coordinator_silent",
}
"""The log events of the stalls that are reported here only."""


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
        waits_for = f"it waits for {_JOIN_WAITS_FOR.get(health.state, 'the next attempt')}"
        why = waits_for if (error := health.refused_with) is None else f"the last attempt failed: {error}"
        self._warn("join", seconds, f"the join is not complete after {seconds:.1f} s: {why}")
        return True

    def _warn(self, kind: StallKind, seconds: float, text: str) -> None:
        text = f"group {self._group_id!r}: {text}"
        _log.warning("%s", text, extra=log_fields(EVENTS_BY_KIND[kind], group=self._group_id))
        self._emit(kind, seconds, text)

    def _emit(self, kind: StallKind, seconds: float, text: str) -> None:
        self._hooks.emit("on_member_stalled", self._group_id, kind, seconds, text)
