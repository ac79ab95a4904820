"""SessionClaims: the claims of newly assigned partitions start, those of revoked partitions end.

An assigned partition has a claim from the moment at which its start offset is known. All other claims are not touched,
and the session goes on. What ends a whole session is in `life`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

from asyncgroup.consumer.fetcher import Fetcher
from asyncgroup.errors import RevokeTimeout, SessionEnd
from asyncgroup.escaping import escaping_logger
from asyncgroup.group.health.member_health import MemberHealth
from asyncgroup.group.membership import ClaimChanges
from asyncgroup.group.sessions.claim_source import ClaimSource
from asyncgroup.group.sessions.commits import SessionCommits
from asyncgroup.group.sessions.end_limits import EndLimits
from asyncgroup.group.sessions.handler_calls import HandlerCalls
from asyncgroup.group.sessions.session import Session
from asyncgroup.group.sessions.start_lookups import FoundStart, PendingStart
from asyncgroup.group.sessions.starts import SessionStarts
from asyncgroup.lifecycle import BackgroundTasks
from asyncgroup.log_events import log_fields
from asyncgroup.model import TopicPartition

__all__ = ["SessionClaims"]

_log = escaping_logger("asyncgroup.group")

LOGGED_PARTITIONS: Final = 20
"""Partitions of an assignment that the text of its log line names; `partitions` of the line has all."""


class SessionClaims:
    """Starts and revokes claims of one session, with the handler's hooks around it.

    `on_settled` is called once, when the first claims start, or each lookup of a start offset has failed.
    """

    def __init__(
        self,
        source: ClaimSource,
        session: Session,
        tasks: BackgroundTasks,
        fetcher: Fetcher,
        calls: HandlerCalls,
        commits: SessionCommits,
        member_health: MemberHealth,
        on_settled: Callable[[], None],
    ) -> None:
        self._source = source
        self._session = session
        self._state = session._inner
        self._offsets = session._inner.offsets
        self._fetcher = fetcher
        self._calls = calls
        self._commits = commits
        self._member_health = member_health
        self._starts = SessionStarts(source, session._inner, tasks, member_health, self._start, self._settle)
        self._on_settled = on_settled
        self._is_settled = False
        # held from `setup` or `on_assigned` to the start of the claims, and by `on_revoked`
        self._hooks = asyncio.Lock()
        self.has_started = False
        """Whether the first start offsets were found, so that the handler is called."""

    def __repr__(self) -> str:
        return f"<SessionClaims of {self._state.group_id!r}: {self._state.claims!r}>"

    # --- assignments ----------------------------------------------------------------------------------------------

    def apply(self, assignment: Mapping[str, Sequence[int]]) -> ClaimChanges:
        """Make this the assignment; return what it revokes and what it adds. What has not started yet is only forgotten."""
        changes = self._state.claims.apply(assignment)
        self._starts.keep(self._state.claims.starting)
        if not self._state.is_lost:  # that is in the log already
            self._log_partitions("revoked", changes.revoked)
        self._log_partitions("assigned", changes.added)
        return changes

    def _log_partitions(
        self, event: Literal["assigned", "revoked"], partitions: Sequence[TopicPartition]
    ) -> None:
        if not partitions:
            return
        state, names = self._state, ", ".join(map(str, partitions[:LOGGED_PARTITIONS]))
        more = len(partitions) - LOGGED_PARTITIONS
        _log.info(
            "group %s: %s %s%s",
            state.group_id,
            event,
            names,
            f" and {more} more" if more > 0 else "",
            extra=log_fields(
                event,
                group=state.group_id,
                generation=state.identity.generation_id,
                partitions=partitions,
            ),
        )

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Start the claims of newly assigned partitions, each as soon as its start offset is known."""
        self._starts.add(partitions)

    @property
    def pending_starts(self) -> list[PendingStart]:
        """The assigned partitions whose start offsets are not known yet, sorted."""
        return self._starts.pending

    async def run(self) -> None:
        """Look up start offsets until the session ends."""
        await self._starts.run()

    async def _start(self, found: list[FoundStart]) -> None:
        """Start the claims of partitions whose start offsets were found; the first ones, possibly none, after `setup`."""
        async with self._hooks:
            if not self._state.ended and await self._call_hooks(found):
                self._settle()

    def _settle(self) -> None:
        if not self._is_settled:
            self._is_settled = True
            self._on_settled()

    async def _call_hooks(self, found: list[FoundStart]) -> bool:
        """Call `setup` and `on_assigned`, and consume each claim in a separate task; False if the session has ended."""
        state = self._state
        claims = [
            self._source.make_claim(self._offsets, self._fetcher.budget, tp, start)
            for tp, start, version in found
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
                self._fetcher.add(claim._inner.consumer)
                self._calls.start_claim(claim)
        return True

    # --- revocations ----------------------------------------------------------------------------------------------

    async def revoke(self, partitions: list[TopicPartition], cause: SessionEnd, limits: EndLimits) -> None:
        """End some claims: drain their handlers, commit their marks, call `on_revoked`. `limits` are those of `cause`."""
        state, leaving = self._state, set(partitions)
        claims = [claim for claim in state.claims if claim.tp in leaving]
        if not claims:
            return
        for claim in claims:
            claim._inner.end(cause)
        limit = limits.hook_seconds  # of `drain_claims`
        stuck = await self._calls.drain_claims(claims, limits)
        for claim in claims:
            self._fetcher.remove(claim._inner.consumer)
        for tp in stuck:
            self._abandon(tp, limit)
        await self._commits.commit_last(limits.commit_seconds, partitions)
        with self._calls.limited_start(limits):
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
