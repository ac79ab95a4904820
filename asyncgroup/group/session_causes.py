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
from asyncgroup.group.heartbeats import ACTIONS as HEARTBEATS, Verdict
from asyncgroup.group.session import Session
from asyncgroup.group.session_start import GroupContext
from asyncgroup.group.vitals import Source
from asyncgroup.lifecycle import describe, note

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

    def on_verdict(self, verdict: Verdict, error: AsyncGroupError | None) -> None:
        """What a heartbeat was answered."""
        vitals, group = self._context.vitals, f"group {self._context.group_id!r}"
        if verdict is Verdict.REBALANCE:
            self._session.end(Rebalanced(f"{group} rebalances: a member joined, left or changed its topics"))
        elif verdict in (Verdict.LOST, Verdict.FATAL):
            if verdict is Verdict.FATAL and self.failure is None:
                self.failure = error
            self._lose(f"member {self._session.member_id!r} of {group} is lost: {error}", error)
        elif error is not None:
            vitals.trouble(Source.HEARTBEAT, error)
            self._context.report(error)

    def on_commit_refused(self, error: BrokerError) -> None:
        """A broker says that the membership is gone."""
        if HEARTBEATS.get(error.code) is Verdict.FATAL and self.failure is None:
            self.failure = error
        self._lose(f"a commit was refused: {error}", error)

    def on_fetch_error(self, error: Exception) -> bool:
        """A fetch that will be tried again; whether somebody reads of it."""
        self._context.vitals.trouble(Source.FETCH, error)
        return self._context.report(error)

    def on_bug(self, error: Exception) -> None:
        """One of the session's own tasks failed."""
        self.fail(error, "a task of the session failed", by_handler=False)

    def _lose(self, text: str, error: AsyncGroupError | None) -> None:
        if error is not None:
            self._context.vitals.count(error)
        cause = MemberLost(text)
        cause.__cause__ = error
        self._session.end(cause)

    def fail(self, error: BaseException, what: str, *, by_handler: bool = True) -> None:
        """The first failure is the caller's, later ones are noted on it. Each of the handler's is logged once."""
        text = f"{what}: {describe(error)}"
        is_first = self.failure is None
        if self.failure is None:
            self.failure, self.failed_by_handler = error, by_handler
        else:
            note(self.failure, f"at the same time: {text}")
        if by_handler or not is_first:
            _log.error("group %s: %s", self._context.group_id, text, exc_info=error)
        if by_handler:
            self._context.vitals.count(error, text)
            if is_first:
                self._context.vitals.trouble(Source.HANDLER, error, text)
        else:
            self._context.vitals.count(error)
        kind = HandlerFailed if by_handler else SessionFailed
        cause = kind(text)
        cause.__cause__ = error
        self._session.end(cause)
