"""SessionStarts: sends the requests for the start offsets of a session's partitions. `StartLookups` decides when and for which."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Set as AbstractSet
from functools import partial
from typing import Any, Final, TypeVarTuple

from asyncgroup.cluster.requests.list_offsets import may_be_listed_later
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, TransportError
from asyncgroup.group.health.member_health import MemberHealth, error_kind
from asyncgroup.group.sessions.claim_source import ClaimSource, ClaimStart
from asyncgroup.group.sessions.start_lookups import FoundStart, PendingStart, StartLookup, StartLookups
from asyncgroup.group.sessions.state import SessionState
from asyncgroup.lifecycle import BackgroundTasks, run_until, wait_within
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff
from asyncgroup.offsets.fetch_offsets import is_retriable_fetch

__all__ = ["SessionStarts"]

_log = logging.getLogger("asyncgroup.group")

WHAT: Final = "start offsets"

Ts = TypeVarTuple("Ts")


class SessionStarts:
    """Looks up the start offsets of assigned partitions until the session ends.

    `on_found` is called with those that are found, each partition by itself or several together; with none if the member
    has no partition at the start. `on_settled` is called when every lookup has failed at least once: the session goes on without
    these partitions. An error that a repetition cannot change ends the session.
    """

    def __init__(
        self,
        source: ClaimSource,
        state: SessionState,
        tasks: BackgroundTasks,
        member_health: MemberHealth,
        on_found: Callable[[list[FoundStart]], Coroutine[Any, Any, object]],
        on_settled: Callable[[], None],
    ) -> None:
        self._source = source
        self._cluster = source.cluster
        self._state = state
        self._tasks = tasks
        self._member_health = member_health
        self._on_found = on_found
        self._on_settled = on_settled
        self._lookups = StartLookups(
            source.group_id,
            lambda: self._cluster.view,
            partial(RetryBackoff.in_step, self._cluster.config, self._cluster.random),
        )
        self._time = asyncio.get_running_loop().time
        self._changed = asyncio.Event()
        self._has_begun = False  # whether `on_found` was called

    def __repr__(self) -> str:
        return f"<SessionStarts: {self._lookups!r}>"

    @property
    def pending(self) -> list[PendingStart]:
        """The partitions whose start offsets are not known yet, sorted."""
        return self._lookups.pending

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Look up the start offsets of partitions that the last assignment has added."""
        self._lookups.add(partitions, self._state.claims.version, self._time())
        self._changed.set()

    def keep(self, assigned: AbstractSet[TopicPartition]) -> None:
        """Forget all other partitions."""
        self._lookups.keep(assigned)
        self._changed.set()

    async def run(self) -> None:
        """Look up what is added, until the session ends."""
        self._spawn(self._follow_metadata)
        task = await run_until(self._state.wait_ended(), self._run(), f"{self._state.group_id}: {WHAT}")
        if not task.cancelled():
            task.result()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._plan(self._time())
            pause = self._lookups.next_at() - self._time()
            await wait_within(self._changed, max(0.0, pause) if pause < float("inf") else None)

    def _plan(self, now: float) -> None:
        """Send what is due, and start what is found."""
        lookups = self._lookups
        if (commits := lookups.plan_commits(now)) is not None:
            self._spawn(self._fetch_commits, commits)
        for lookup in lookups.plan_offsets(now):
            self._spawn(self._list_offsets, lookup)
        if lookups.begin_refresh(now):
            self._spawn(self._refresh)
        found = lookups.take(now)
        if found or (not self._has_begun and not lookups.pending):
            self._has_begun = True
            self._tasks.spawn(self._on_found, found)
        elif lookups.pending and lookups.is_settled:
            self._on_settled()

    # --- requests -------------------------------------------------------------------------------------------------

    def _spawn(self, function: Callable[[*Ts], Coroutine[Any, Any, None]], *args: *Ts) -> None:
        async def run() -> None:
            await self._state.run_until_ended(function(*args), WHAT)
            self._changed.set()

        self._tasks.spawn(run, name=function.__name__)

    async def _follow_metadata(self) -> None:
        while True:
            await self._cluster.wait_updated()
            self._lookups.metadata_changed()
            self._changed.set()

    async def _refresh(self) -> None:
        await self._cluster.try_refresh()
        self._lookups.end_refresh(self._time())

    async def _fetch_commits(self, lookup: StartLookup) -> None:
        """Request the committed offsets of the partitions of a lookup, all at once."""
        try:
            result = await self._source.fetch_commits(lookup.partitions)
        except (BrokerError, TransportError) as error:
            self._on_problems(lookup, dict.fromkeys(lookup.partitions, error), _is_retriable)
            return
        self._on_problems(lookup, result.problems, _is_retriable)
        starts, recreated = self._source.claim_starts(result.found)
        without = [
            tp for tp in self._lookups.current(lookup) if tp not in starts and tp not in result.problems
        ]
        self._source.reset_timestamps(without, recreated)  # an error for all of them together
        self._lookups.found(lookup, starts, self._time())
        self._lookups.without_commit(lookup, set(without), recreated)

    async def _list_offsets(self, lookup: StartLookup) -> None:
        """Ask a leader for the offsets by `auto_offset_reset` of partitions without a commit."""
        result = await self._source.list_start_offsets(lookup.partitions, lookup.recreated)
        self._on_problems(lookup, result.problems, may_be_listed_later)
        self._lookups.found(lookup, {tp: ClaimStart(o) for tp, o in result.offsets.items()}, self._time())

    def _on_problems(
        self,
        lookup: StartLookup,
        problems: Mapping[TopicPartition, AsyncGroupError],
        is_retriable: Callable[[AsyncGroupError], bool],
    ) -> None:
        """Look up again what failed and is still assigned. Raises an error that a repetition cannot change."""
        current = [tp for tp in self._lookups.current(lookup) if tp in problems]
        if not current:
            return
        for tp in current:
            if not is_retriable(problems[tp]):
                raise problems[tp]
        self._lookups.fail(lookup, problems, self._time())
        # one error of each kind: thousands of partitions may have lost the same leader
        for error in {error_kind(problems[tp]): problems[tp] for tp in reversed(current)}.values():
            if not self._member_health.report_error(error):
                _log.info("group %s: recovering: %s", self._state.group_id, error)


def _is_retriable(error: AsyncGroupError) -> bool:
    """Return whether a committed offset may be known later.

    A refusal of the member (KIP-848) may come from a former coordinator: it ends the session only if a heartbeat also has it.
    """
    is_unknown = isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_MEMBER_ID
    return is_unknown or is_retriable_fetch(error)
