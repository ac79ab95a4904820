"""SessionCommits: when a session commits, and for how long it tries: automatically, after a revocation, at its end."""

from __future__ import annotations

import asyncio
import logging

from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import CommitFailedError
from asyncgroup.group.health.member_health import MemberHealth
from asyncgroup.group.health.problems import ProblemKind
from asyncgroup.group.sessions.state import SessionState
from asyncgroup.log_events import commit_failed_fields, log_fields
from asyncgroup.model import TopicPartition

__all__ = ["SessionCommits"]

_log = logging.getLogger("asyncgroup.group")


class SessionCommits:
    """The commits that a session makes by itself; those of the user go to the committer."""

    def __init__(self, state: SessionState, config: ConsumerConfig, member_health: MemberHealth) -> None:
        self._state = state
        self._offsets = state.offsets
        self._config = config
        self._member_health = member_health
        self._revocation: asyncio.Timeout | None = None  # of the last commit of a revocation, in flight

    def __repr__(self) -> str:
        return f"<SessionCommits of {self._state.group_id!r}>"

    async def auto_commit(self) -> None:
        """Commit every `auto_commit_interval` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._config.auto_commit_interval)
            await self._commit()

    async def commit_last(self, limit: float, revoked: list[TopicPartition] | None = None) -> None:
        """Make the last commit for the partitions revoked from a session that goes on; without any, for the session."""
        if self._state.is_lost:
            return
        try:
            async with asyncio.timeout(limit) as timeout:
                self._revocation = None if revoked is None else timeout
                if self._config.auto_commit:
                    await self._commit(last_within=limit, partitions=revoked)
                else:
                    await self._offsets.wait_idle()  # a commit of the user may be in flight
        except TimeoutError:
            last = f": {error}" if (error := self._offsets.last_error) is not None else ""
            fields = log_fields("commit_failed", group=self._state.group_id, error=error or TimeoutError())
            _log.warning(
                "group %s: the last commit took too long%s", self._state.group_id, last, extra=fields
            )
        finally:
            self._revocation = None

    def limit_revocation(self, seconds: float) -> None:
        """The session ends: the last commit of a revocation, if one is in flight, has at most this time left."""
        timeout = self._revocation
        if timeout is not None and not timeout.expired():
            at = asyncio.get_running_loop().time() + seconds
            timeout.reschedule(min(at, timeout.when() or at))

    async def _commit(
        self, *, last_within: float | None = None, partitions: list[TopicPartition] | None = None
    ) -> None:
        try:
            if last_within is None:
                await self._offsets.commit(retry_rejected=False)
            else:
                await self._offsets.commit_last(last_within, partitions)
        except CommitFailedError as error:
            self._member_health.report(ProblemKind.COMMIT, error)
            self._member_health.report_error(error)
            if not self._state.is_lost:
                _log.warning("%s", error, extra=commit_failed_fields(error))
        else:
            self._member_health.clear(ProblemKind.COMMIT)
