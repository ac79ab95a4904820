"""SessionClaims: the claims of newly assigned partitions start, those of revoked partitions end.

All other claims are not touched, and the session goes on. What ends a whole session is in `session_life`.
"""

from __future__ import annotations

import asyncio
import logging

from asyncgroup.consumer.fetcher import Fetcher
from asyncgroup.errors import RevokeTimeout, SessionEnd
from asyncgroup.group.claim_source import ClaimSource
from asyncgroup.group.handler_calls import EndLimits, HandlerCalls
from asyncgroup.group.member_health import MemberHealth
from asyncgroup.group.session import Session
from asyncgroup.group.session_commits import SessionCommits
from asyncgroup.model import TopicPartition

__all__ = ["SessionClaims"]

_log = logging.getLogger("asyncgroup.group")


class SessionClaims:
    """Starts and revokes claims of one session, with the handler's hooks around it."""

    def __init__(
        self,
        source: ClaimSource,
        session: Session,
        fetcher: Fetcher,
        calls: HandlerCalls,
        commits: SessionCommits,
        member_health: MemberHealth,
    ) -> None:
        self._source = source
        self._session = session
        self._state = session._state
        self._offsets = session._state.offsets
        self._fetcher = fetcher
        self._calls = calls
        self._commits = commits
        self._member_health = member_health
        # held from `setup` or `on_assigned` to the start of the claims, and by `on_revoked`
        self._hooks = asyncio.Lock()
        self.has_started = False
        """Whether the first start offsets were found, so that the handler is called."""

    def __repr__(self) -> str:
        return f"<SessionClaims of {self._state.group_id!r}: {self._state.claims!r}>"

    async def start(self, partitions: list[TopicPartition]) -> bool:
        """Start the claims of newly assigned partitions; False if that failed or the session has ended.

        The start offsets are fetched with one request, `setup` and `on_assigned` are called, and each claim is consumed in a
        task of its own.
        """
        state = self._state
        version = state.claims.version
        starts = await state.run_until_ended(self._source.find_start_offsets(partitions), "start offsets")
        if starts is None:
            return False
        async with self._hooks:
            if state.ended:
                return False
            claims = [
                self._source.make_claim(self._offsets, self._fetcher.budget, tp, start)
                for tp, start in starts.items()
                if state.claims.is_starting(tp, version)
            ]
            for claim in claims:
                state.claims.add(claim)
            if not self.has_started:
                self.has_started = True
                self._source.cluster.hooks.emit("on_session_start", self._session)
                if not await self._calls.set_up():
                    return False
            elif not claims:  # withdrawn by a later assignment
                return True
            if not await self._calls.assigned(sorted(claim.tp for claim in claims)):
                return False
            for claim in claims:
                if not claim.ended:  # else it was revoked during the hooks
                    self._fetcher.add(claim._state.consumer)
                    self._calls.start_claim(claim)
            return True

    async def revoke(self, partitions: list[TopicPartition], cause: SessionEnd, limits: EndLimits) -> None:
        """End some claims: drain their handlers, commit their marks, call `on_revoked`. `limits` are those of `cause`."""
        state = self._state
        claims = [claim for claim in state.claims if claim.tp in partitions]
        if not claims:
            return
        for claim in claims:
            claim._state.end(cause)
        limit = limits.hook_seconds  # of `drain_claims`
        stuck = await self._calls.drain_claims(claims, limits)
        for claim in claims:
            self._fetcher.remove(claim._state.consumer)
        for tp in stuck:
            self._abandon(tp, limit)
        await self._commits.commit_last(limits.commit_seconds, partitions)
        async with self._hooks:
            await self._calls.revoked(partitions, limits)
        await self._commits.commit_last(limits.commit_seconds, partitions)  # marks that on_revoked made
        for tp in partitions:
            state.claims.remove(tp)
            self._offsets.drop(tp)

    def _abandon(self, tp: TopicPartition, limit: float) -> None:
        """Drop the marks of a claim whose handler still runs `limit` seconds after the revocation began."""
        self._offsets.drop(tp)
        error = RevokeTimeout(self._state.group_id, tp, limit)
        self._member_health.report_error(error)
        _log.warning("%s", error)
