"""What goes wrong in a session, and what becomes of it: the cause of its end, and the failure that the caller gets."""

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
    """Ends `session` for causes that are nobody's wish.

    Afterwards `failure` holds what `consume()` has to raise, if anything, and `failed_by_handler` whether it is the
    handler's own exception.
    """

    def __init__(self, context: GroupContext, session: Session) -> None:
        self._context, self._session = context, session
        self.failure: BaseException | None = None
        self.failed_by_handler = False

    def on_heartbeat(self, result: HeartbeatResult, error: AsyncGroupError | None) -> None:
        """What a heartbeat was answered."""
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
        """A broker says that the membership is gone."""
        if HEARTBEAT_RESULTS.get(error.code) is HeartbeatResult.FATAL and self.failure is None:
            self.failure = error
        self._end_as_lost(f"a commit was refused: {error}", error)

    def on_fetch_error(self, error: Exception) -> bool:
        """A fetch that will be tried again; whether somebody reads of it."""
        self._context.member_health.report(ProblemSource.FETCH, error)
        return self._context.report_error(error)

    def on_task_failure(self, error: Exception) -> None:
        """One of the session's own tasks failed."""
        self.fail(error, "a task of the session failed", by_handler=False)

    def _end_as_lost(self, text: str, error: AsyncGroupError | None) -> None:
        if error is not None:
            self._context.member_health.count_error(error)
        cause = MemberLost(text)
        cause.__cause__ = error
        self._session.end(cause)

    def fail(self, error: BaseException, what: str, *, by_handler: bool = True) -> None:
        """The first failure is the caller's, later ones are noted on it. Each of the handler's is logged once."""
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
