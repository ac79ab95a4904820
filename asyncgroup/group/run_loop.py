"""`ConsumerGroup.run()`: run one session after another, and decide what follows each of them."""

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
"""Causes after which the member rejoins without backoff."""

UNKNOWN_TOPIC: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class _AfterSession(Enum):
    """What follows a session."""

    REJOIN_AT_ONCE = "rejoin at once"
    REJOIN_AFTER_BACKOFF = "rejoin after a backoff"


class RunLoop:
    """One call of `run()`; `check` raises if the group can no longer consume."""

    def __init__(
        self,
        context: GroupContext,
        member: Member,
        subscription: Subscription,
        handler: Handler,
        check: Callable[[], None],
    ) -> None:
        self._context = context
        self._member = member
        self._subscription = subscription
        self._handler = handler
        self._check = check
        self._unknown_since: float | None = (
            None  # loop time of the first unknown-topic error since a session started
        )

    async def run(self) -> None:
        """Run sessions until the group closes. Raises errors that are not retriable."""
        closing, backoff = self._member.closing, self._context.cluster.backoff()
        while True:
            self._check()
            outcome = await self._run_session()
            if outcome is None or closing.is_set():  # also if the session ended for another cause
                return
            if outcome is _AfterSession.REJOIN_AT_ONCE:
                backoff.reset()
            elif await self._member.back_off(backoff.next()):
                return

    async def _run_session(self) -> _AfterSession | None:
        """Run the next session; None if the group closed before it began.

        Raises the handler's exception, and failures that are not retriable. Only the outcome is returned, so that the
        session, its claims and their errors are not kept in memory during the next session.
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
        """Report an error after which the next session may succeed; raise any other."""
        if isinstance(error, BrokerError) and error.code in UNKNOWN_TOPIC:
            is_retriable = self._may_reappear()
        elif isinstance(error, BrokerError):
            # after UNKNOWN_MEMBER_ID the next join is one of a new member
            is_retriable = error.retriable or error.code == ErrorCode.UNKNOWN_MEMBER_ID
        else:
            is_retriable = isinstance(error, TransportError)
        if not is_retriable or not isinstance(error, AsyncGroupError):
            raise error
        _log.warning("group %s: %s", self._context.group_id, error)
        self._context.member_health.report(ProblemSource.JOIN, error)
        self._context.report_error(error)

    def _may_reappear(self) -> bool:
        """Whether every topic existed before, and they have not been unknown for `session_timeout`.

        Right after its recreation a topic is still unknown to some brokers.
        """
        now = asyncio.get_running_loop().time()
        if self._unknown_since is None:
            self._unknown_since = now
        was_there = all(name in self._context.known_topics for name in self._subscription.names)
        return was_there and now < self._unknown_since + self._context.config.session_timeout
