"""`ConsumerGroup.run()`: session after session, and what is done when one of them fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Final

from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ErrorCode,
    PartitionsChanged,
    Rebalanced,
    TopicsChanged,
    TransportError,
)
from asyncgroup.group.handler import Handler
from asyncgroup.group.member import Member
from asyncgroup.group.member_health import ProblemSource
from asyncgroup.group.session_start import GroupContext
from asyncgroup.group.topics import Subscription

__all__ = ["RunLoop"]

_log = logging.getLogger("asyncgroup.group")

REJOIN_AT_ONCE_AFTER: Final = (Rebalanced, PartitionsChanged, TopicsChanged)
"""Causes after which a member joins again without a pause."""

UNKNOWN_TOPIC: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class _AfterSession(Enum):
    """What follows a session."""

    REJOIN_AT_ONCE = "join again at once"
    REJOIN_AFTER_BACKOFF = "join again after a pause"


class RunLoop:
    """One call of `run()`; `check` raises if it may not go on."""

    def __init__(
        self,
        context: GroupContext,
        member: Member,
        subscription: Subscription,
        handler: Handler,
        check: Callable[[], None],
    ) -> None:
        self._context, self._member = context, member
        self._subscription, self._handler, self._check = subscription, handler, check
        self._unknown_since: float | None = None

    async def run(self) -> None:
        """Until the group closes; raises what cannot heal."""
        closing, backoff = self._member.closing, self._context.cluster.backoff()
        while True:
            self._check()
            outcome = await self._run_session()
            if outcome is None or closing.is_set():  # perhaps while the session ended for another reason
                return
            if outcome is _AfterSession.REJOIN_AT_ONCE:
                backoff.reset()
            elif await self._member.back_off(backoff.next()):
                return

    async def _run_session(self) -> _AfterSession | None:
        """Run the next session; None if the group was closed before there was one.

        Raises what the handler raised, and failures that cannot heal. Only the outcome is returned: the session itself,
        its claims and their errors must not stay in memory beside those of the next one.
        """
        try:
            run = await self._member.run_session(self._subscription, self._handler)
        except (BrokerError, TransportError) as error:
            self._report_or_raise(error)
            return _AfterSession.REJOIN_AFTER_BACKOFF
        if run is None:
            return None
        if run.has_started:
            self._unknown_since = None
        if run.causes.failure is not None:
            if run.causes.failed_by_handler:
                raise run.causes.failure
            self._report_or_raise(run.causes.failure)
            return _AfterSession.REJOIN_AFTER_BACKOFF
        return (
            _AfterSession.REJOIN_AT_ONCE
            if isinstance(run.session.cause, REJOIN_AT_ONCE_AFTER)
            else _AfterSession.REJOIN_AFTER_BACKOFF
        )

    def _report_or_raise(self, error: BaseException) -> None:
        """Report an error after which the next session may do better; raise any other."""
        if isinstance(error, BrokerError) and error.code in UNKNOWN_TOPIC:
            is_retriable = self._may_reappear()
        elif isinstance(error, BrokerError):
            # an unknown member's next join begins without an id
            is_retriable = error.retriable or error.code == ErrorCode.UNKNOWN_MEMBER_ID
        else:
            is_retriable = isinstance(error, TransportError)
        if not is_retriable or not isinstance(error, AsyncGroupError):
            raise error
        _log.warning("group %s: %s", self._context.group_id, error)
        self._context.member_health.report(ProblemSource.JOIN, error)
        self._context.report_error(error)

    def _may_reappear(self) -> bool:
        """Whether every topic was there before, and none has been unknown for long.

        One that is made anew is unknown, to one broker or another, for some time: that is `session_timeout` here.
        """
        now = asyncio.get_running_loop().time()
        if self._unknown_since is None:
            self._unknown_since = now
        was_there = all(name in self._context.known_topics for name in self._subscription.names)
        return was_there and now < self._unknown_since + self._context.config.session_timeout
