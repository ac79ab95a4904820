"""Turn failures during a session into the cause of its end and the exception for the caller."""

from __future__ import annotations

import logging

from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    HandlerFailed,
    MemberLost,
    Rebalanced,
    SessionFailed,
)
from asyncgroup.group.heartbeats import HEARTBEAT_RESULTS, HeartbeatResult
from asyncgroup.group.member_health import ProblemSource
from asyncgroup.group.session import Session
from asyncgroup.group.session_start import GroupContext
from asyncgroup.lifecycle import add_note, describe_error

__all__ = ["SessionCauses"]

_log = logging.getLogger("asyncgroup.group")


class SessionCauses:
    """Ends `session` when something fails, and keeps the exception that `consume()` raises."""

    def __init__(self, context: GroupContext, session: Session) -> None:
        self._context = context
        self._session = session
        self.failure: BaseException | None = None
        """The first failure, which `consume()` raises; None if there was none."""
        self.failed_by_handler = False
        """Whether it is the handler's exception."""

    def on_heartbeat(self, result: HeartbeatResult, error: AsyncGroupError | None) -> None:
        """Handle the result of a heartbeat, any but ALIVE."""
        member_health, group = self._context.member_health, f"group {self._context.group_id!r}"
        if result is HeartbeatResult.REBALANCE:
            self._session.end(Rebalanced(f"{group} rebalances: a member joined, left or changed its topics"))
        elif result in (HeartbeatResult.LOST, HeartbeatResult.FATAL):
            if result is HeartbeatResult.FATAL and self.failure is None:
                self.failure = error
            self._end_as_lost(f"member {self._session.member_id!r} of {group} is lost: {error}", error)
        elif error is not None:
            member_health.report(ProblemSource.HEARTBEAT, error)
            self._context.report_error(error)

    def on_commit_refused(self, error: BrokerError) -> None:
        """Handle a commit error that means that the membership was lost."""
        if HEARTBEAT_RESULTS.get(error.code) is HeartbeatResult.FATAL and self.failure is None:
            self.failure = error
        self._end_as_lost(f"a commit was refused: {error}", error)

    def on_fetch_error(self, error: Exception) -> bool:
        """Report the error of a fetch that is retried; return whether a reader of `errors()` receives it."""
        self._context.member_health.report(ProblemSource.FETCH, error)
        return self._context.report_error(error)

    def on_task_failure(self, error: Exception) -> None:
        """Handle an unexpected exception in one of the session's tasks."""
        self.fail(error, "a task of the session failed", by_handler=False)

    def _end_as_lost(self, text: str, error: AsyncGroupError | None) -> None:
        if error is not None:
            self._context.member_health.count_error(error)
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
            _log.error("group %s: %s", self._context.group_id, text, exc_info=error)
        if by_handler:
            self._context.member_health.count_error(error, text)
            if is_first:
                self._context.member_health.report(ProblemSource.HANDLER, error, text)
        else:
            self._context.member_health.count_error(error)
        kind = HandlerFailed if by_handler else SessionFailed
        cause = kind(text)
        cause.__cause__ = error
        self._session.end(cause)
