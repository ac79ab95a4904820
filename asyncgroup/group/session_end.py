"""How a session ends: the cause, the exception for the caller, and the deadlines of the shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CallerCancelled,
    GroupClosed,
    HandlerFailed,
    MemberLost,
    Rebalanced,
    SessionEnd,
    SessionFailed,
)
from asyncgroup.group.heartbeats import HEARTBEAT_RESULTS, HeartbeatResult
from asyncgroup.group.member_health import MemberHealth, ProblemSource
from asyncgroup.group.session import SessionState
from asyncgroup.lifecycle import add_note, describe_error

__all__ = ["MIN_RESERVE_SHARE", "EndLimits", "SessionCauses", "reserve_for"]

_log = logging.getLogger("asyncgroup.group")

RESERVE_SHARE: Final = 0.2
"""Share of the shutdown time that is reserved for the phases after the handlers."""
RESERVE_MAX: Final = 5.0
"""Most seconds of the reserve."""
MIN_RESERVE_SHARE: Final = 1 / 6
"""Least share of the reserve for each phase, even if a handler that swallowed its cancellation made it late."""
MIN_HANDLER_SHARE: Final = 0.25
"""Least share of `rebalance_timeout` until the deadline, if the last successful heartbeat is too long ago."""


class SessionCauses:
    """Ends `session` when something fails, and keeps the exception that `consume()` raises."""

    def __init__(self, session: SessionState, member_health: MemberHealth) -> None:
        self._session = session
        self._member_health = member_health
        self.failure: BaseException | None = None
        """The first failure, which `consume()` raises; None if there was none."""
        self.failed_by_handler = False
        """Whether it is the handler's exception."""

    def on_heartbeat(self, result: HeartbeatResult, error: AsyncGroupError | None) -> None:
        """Handle the result of a heartbeat, any but ALIVE."""
        group = f"group {self._session.group_id!r}"
        if result is HeartbeatResult.REBALANCE:
            self._session.end(Rebalanced(f"{group} rebalances: a member joined, left or changed its topics"))
        elif result in (HeartbeatResult.LOST, HeartbeatResult.FATAL):
            if result is HeartbeatResult.FATAL and self.failure is None:
                self.failure = error
            self._end_as_lost(
                f"member {self._session.identity.member_id!r} of {group} is lost: {error}", error
            )
        elif error is not None:
            self._member_health.report(ProblemSource.HEARTBEAT, error)
            self._member_health.report_error(error)

    def on_commit_refused(self, error: BrokerError) -> None:
        """Handle a commit error that means that the membership was lost."""
        if HEARTBEAT_RESULTS.get(error.code) is HeartbeatResult.FATAL and self.failure is None:
            self.failure = error
        self._end_as_lost(f"a commit was refused: {error}", error)

    def on_fetch_error(self, error: Exception) -> bool:
        """Report the error of a fetch that is retried; return whether a reader of `errors()` receives it."""
        self._member_health.report(ProblemSource.FETCH, error)
        return self._member_health.report_error(error)

    def on_task_failure(self, error: Exception) -> None:
        """Handle an unexpected exception in one of the session's tasks."""
        self.fail(error, "a task of the session failed", by_handler=False)

    def _end_as_lost(self, text: str, error: AsyncGroupError | None) -> None:
        if error is not None:
            self._member_health.count_error(error)
        cause = MemberLost(text)
        cause.__cause__ = error
        self._session.end(cause)

    def fail(self, error: BaseException, what: str, *, by_handler: bool = True) -> None:
        """End the session. The caller gets the first failure, with later ones as notes. Handler failures are logged."""
        text = f"{what}: {describe_error(error)}"
        is_first = self.failure is None
        if self.failure is None:
            self.failure, self.failed_by_handler = error, by_handler
        else:
            add_note(self.failure, f"at the same time: {text}")
        if by_handler or not is_first:
            _log.error("group %s: %s", self._session.group_id, text, exc_info=error)
        if by_handler:
            self._member_health.count_error(error, text)
            if is_first:
                self._member_health.report(ProblemSource.HANDLER, error, text)
        else:
            self._member_health.count_error(error)
        kind = HandlerFailed if by_handler else SessionFailed
        cause = kind(text)
        cause.__cause__ = error
        self._session.end(cause)


def reserve_for(timeout: float) -> float:
    """Return the seconds of a time limit reserved for the hooks, the last commit, and the LeaveGroup or JoinGroup."""
    return min(timeout * RESERVE_SHARE, RESERVE_MAX)


class EndLimits:
    """The deadline of a session's shutdown, brought forward by every more urgent cause.

    - Rebalanced: the coordinator waits for `rebalance_timeout` from the start of the rebalance, which was after the
      last successful heartbeat was sent (`last_stable_sent_at()`). The deadline counts from that heartbeat, so that
      the member rejoins before the coordinator removes it.
    - GroupClosed, CallerCancelled: `close_timeout` from now, for handlers, hooks, commit and LeaveGroup together.
    - any other cause: `rebalance_timeout` from now.

    Handlers must end before the deadline by the reserve (a fifth of the time, at most 5 s). Half of the reserve is for
    the hooks, a quarter for the commit, the rest for what follows.
    """

    def __init__(self, config: ConsumerConfig, last_stable_sent_at: Callable[[], float]) -> None:
        self._config = config
        self._last_stable_sent_at = last_stable_sent_at
        self.ending_since = float("inf")
        """Loop time of the first cause."""
        self.deadline = float("inf")
        """Loop time at which the shutdown should be complete."""
        self._reserve = 0.0  # seconds

    def add_cause(self, cause: SessionEnd) -> None:
        """Bring the deadline forward for this cause, the first or a further one."""
        config, now = self._config, asyncio.get_running_loop().time()
        total = config.rebalance_timeout
        if isinstance(cause, (GroupClosed, CallerCancelled)):
            total = config.close_timeout
            deadline = now + total
        elif isinstance(cause, Rebalanced):
            deadline = max(self._last_stable_sent_at() + total, now + total * MIN_HANDLER_SHARE)
        else:
            deadline = now + total
        self.ending_since = min(self.ending_since, now)
        if deadline < self.deadline:
            self.deadline, self._reserve = deadline, reserve_for(total)

    @property
    def handler_seconds(self) -> float:
        """Seconds from now until handlers are cancelled; at once if 0 or less."""
        return self.deadline - self._reserve - asyncio.get_running_loop().time()

    @property
    def hook_seconds(self) -> float:
        """Seconds for `on_revoked`, `on_lost` and `cleanup` if they begin now."""
        return self._left(1 / 2)

    @property
    def commit_seconds(self) -> float:
        """Seconds for the last commit if it begins now."""
        return self._left(1 / 4)

    def _left(self, kept: float) -> float:
        now = asyncio.get_running_loop().time()
        return max(self.deadline - self._reserve * kept - now, self._reserve * MIN_RESERVE_SHARE)
