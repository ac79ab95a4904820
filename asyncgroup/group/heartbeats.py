"""Heartbeats: an identity in, verdicts out. Knows nothing of sessions, so that it may run on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    AuthenticationError,
    BrokerError,
    ErrorCode,
    NoBrokersError,
    RequestTimedOut,
)
from asyncgroup.lifecycle import wait_within
from asyncgroup.offsets import GROUP_LANE, MemberIdentity
from asyncgroup.wire import messages as m

__all__ = ["ACTIONS", "PAUSE_SHARE", "Heartbeats", "Verdict"]

_log = logging.getLogger("asyncgroup.group")

PAUSE_SHARE: Final = 0.1
"""The longest pause between two tries to reach the coordinator, as a part of `session_timeout`."""


class Verdict(Enum):
    """What a heartbeat's answer means for the membership."""

    ALIVE = "the coordinator knows the member"
    REBALANCE = "the group rebalances: join again; heartbeats go on"
    MOVED = "look the coordinator up again; the member lives on"
    RETRY = "the coordinator is not ready; the member lives on"
    LOST = "the member was expelled or is silent for too long: commit nothing more"
    FATAL = "trying again does not help"


ACTIONS: Final[Mapping[int, Verdict]] = {
    ErrorCode.NONE: Verdict.ALIVE,
    ErrorCode.REBALANCE_IN_PROGRESS: Verdict.REBALANCE,
    ErrorCode.NOT_COORDINATOR: Verdict.MOVED,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Verdict.MOVED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Verdict.RETRY,
    ErrorCode.UNKNOWN_MEMBER_ID: Verdict.LOST,
    ErrorCode.ILLEGAL_GENERATION: Verdict.LOST,
    ErrorCode.FENCED_INSTANCE_ID: Verdict.FATAL,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: Verdict.FATAL,
}
"""By `AbstractCoordinator.HeartbeatResponseHandler` in Kafka and `heartbeatLoop` in sarama; others: retriable ones
RETRY, final ones FATAL."""


class _Answer(NamedTuple):
    """What became of one heartbeat. `refused`: the coordinator itself says that the member is none of the group's."""

    verdict: Verdict
    error: AsyncGroupError | None
    refused: bool = False


class Heartbeats:
    """Sends heartbeats for one identity until cancelled, on the lane that it shares with commits.

    They fall on `begun` + k × `heartbeat_interval`, however long an answer takes. The answers to the group's SyncGroups
    come at one moment, so members beat at one moment, too, and hear of a rebalance together: the eager protocol then
    stands still for the time of a round trip, and not for up to an interval.

    `last_beat` is the loop time of the last answer that decided anything, `last_alive` that at which the last heartbeat
    was sent that found the group at work: a rebalance that is told later began after it.

    While any broker answers anything the member is only waiting for its coordinator; when none answers for
    `session_timeout` the verdict is LOST, since the coordinator has expelled us by then.

    A refusal (LOST, FATAL) counts at once if it comes from the coordinator that answered the last good heartbeat, or the
    SyncGroup, within `session_timeout` of that one, and the coordinator was not looked up again meanwhile. Otherwise the
    refusing broker may be a former coordinator: one that was stopped for longer than `session_timeout` expels all
    members when it goes on, before it learns that another broker has taken the group over. The coordinator is then looked up, at other brokers first, and
    its answer to the next heartbeat decides. (Java believes any answer, but disconnects from a coordinator that it no
    longer knows as such, `AbstractCoordinator.markCoordinatorUnknown`.)
    """

    def __init__(self, cluster: Cluster, group_id: str, config: ConsumerConfig) -> None:
        self._cluster, self._group_id, self._config = cluster, group_id, config
        # an answer that comes later than this may be too late for a second try within the session
        self._timeout = max(config.heartbeat_interval, config.session_timeout / 3)
        self._started = self.last_beat = self.last_alive = float("-inf")
        self._turns: _Turns | None = None
        self._trusted: int | None = None
        """The lookup that named the coordinator of the last good heartbeat."""
        self._trusted_at = float("-inf")
        """Loop time at which that heartbeat was sent."""
        self._running = False
        self._wake = asyncio.Event()
        self._check: asyncio.Future[bool] | None = None
        """The outcome of the check that was asked for."""

    def beat_after(self, moment: float) -> float | None:
        """The loop time of the first beat behind `moment`, of this member and of those that synced with it; None
        before the first session."""
        return None if self._turns is None else self._turns.after(moment)

    async def run(
        self,
        identity: MemberIdentity,
        report: Callable[[Verdict, AsyncGroupError | None], None],
        begun: float | None = None,
    ) -> None:
        """Beat for `identity`; `report(verdict, error)` hears every verdict but ALIVE. Ends after LOST and FATAL.

        `begun` is the loop time of the answer that made us a member, by default now.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time() if begun is None else begun
        self._started = self.last_beat = self.last_alive = self._trusted_at = begun
        self._trusted = self._cluster.coordinators.lookup_number(self._group_id)
        self._turns = _Turns(begun, self._config.heartbeat_interval)
        self._running = True
        try:
            await self._run(identity, report, self._turns)
        finally:
            self._running = False
            if self._check is not None:
                self._check.cancel()

    async def _run(
        self,
        identity: MemberIdentity,
        report: Callable[[Verdict, AsyncGroupError | None], None],
        turns: _Turns,
    ) -> None:
        loop = asyncio.get_running_loop()
        backoff = self._cluster.backoff()
        due = turns.next
        while True:
            is_early = await wait_within(self._wake, max(0.0, due - loop.time()))
            self._wake.clear()
            check = self._check
            # a lookup of somebody else, asked before, may have named the former coordinator once more
            is_in_doubt = is_early and self._cluster.coordinators.lookup_number(self._group_id) is None
            sent, (verdict, error, _) = await self._beat_surely(identity, report, is_in_doubt=is_in_doubt)
            if verdict in (Verdict.MOVED, Verdict.RETRY):
                if loop.time() >= self._lost_at:
                    verdict = Verdict.LOST
            else:
                backoff.reset()
                self._note_answer(verdict, sent)
            if verdict is not Verdict.ALIVE:
                report(verdict, error)
            if verdict in (Verdict.LOST, Verdict.FATAL):
                self._tell(self._check, verdict)  # nobody will answer those who asked meanwhile
                return
            self._tell(check, verdict)
            turns.pass_by(loop.time() if is_early else max(due, loop.time()))
            due = turns.next
            if verdict in (Verdict.MOVED, Verdict.RETRY):
                pause = min(backoff.next(), PAUSE_SHARE * self._config.session_timeout)
                due = min(due, loop.time() + pause, self._lost_at)

    def _note_answer(self, verdict: Verdict, sent: float) -> None:
        """The heartbeat sent at `sent` was answered, and that decided something."""
        self.last_beat = asyncio.get_running_loop().time()
        if verdict is Verdict.ALIVE:
            self.last_alive = sent
        if verdict in (Verdict.ALIVE, Verdict.REBALANCE):
            self._trusted, self._trusted_at = self._cluster.coordinators.lookup_number(self._group_id), sent
        self._cluster.hooks.emit("on_heartbeat", self._group_id, self.last_beat - sent)

    # --- refusals -----------------------------------------------------------------------------------------------

    async def is_final(self, lookup: int | None, sent_at: float) -> bool:
        """Whether the refusal of a commit ends the membership; where that is in doubt, a heartbeat at once finds out.

        `lookup` and `sent_at` say which lookup named the coordinator that the commit was sent to
        (`Coordinators.lookup_number`), and when. If the heartbeat finds the membership lost, it was reported when this
        returns.
        """
        if not self._running or self._counts(lookup, sent_at):
            return True
        if self._check is None:
            self._check = asyncio.get_running_loop().create_future()
            self._cluster.coordinators.doubt(self._group_id)
            self._wake.set()
        return not await asyncio.shield(self._check)

    def _tell(self, check: asyncio.Future[bool] | None, verdict: Verdict) -> None:
        """Answer those who asked before the heartbeat was sent, if it decided anything."""
        if check is not None and verdict not in (Verdict.MOVED, Verdict.RETRY):
            self._check = None
            check.set_result(verdict in (Verdict.ALIVE, Verdict.REBALANCE))

    def _counts(self, lookup: int | None, sent_at: float) -> bool:
        """Whether a refusal counts now, of a request that was sent at `sent_at` to the coordinator that `lookup` named."""
        present = self._cluster.coordinators.lookup_number(self._group_id)
        is_coordinator = lookup is not None and lookup == present == self._trusted
        # later than this it may have been stopped, and have found our session expired when it went on
        expires_at = self._trusted_at + self._config.session_timeout
        is_in_time = asyncio.get_running_loop().time() < expires_at
        return is_coordinator and is_in_time and sent_at >= self._trusted_at

    async def _beat_surely(
        self,
        identity: MemberIdentity,
        report: Callable[[Verdict, AsyncGroupError | None], None],
        *,
        is_in_doubt: bool,
    ) -> tuple[float, _Answer]:
        """A heartbeat, and a second one if a broker refused the first that may be a former coordinator.

        `is_in_doubt`: the coordinator is looked up for the first one already, because a commit was refused. Returns also
        when the heartbeat that counts was sent.
        """
        coordinators, time = self._cluster.coordinators, asyncio.get_running_loop().time
        sent = time()
        answer = await self._beat_in_time(identity)
        if not answer.refused:
            return sent, answer
        if not is_in_doubt and not self._counts(coordinators.lookup_number(self._group_id), sent):
            _log.info("group %s: looking for the coordinator to be sure: %s", self._group_id, answer.error)
            report(Verdict.MOVED, answer.error)
            coordinators.doubt(self._group_id)
            sent = time()
            answer = await self._beat_in_time(identity)
        if answer.refused and coordinators.lookup_number(self._group_id) is None:
            answer = answer._replace(verdict=Verdict.MOVED)  # forgotten by others meanwhile: ask once more
        return sent, answer

    # --- one heartbeat ------------------------------------------------------------------------------------------

    @property
    def _lost_at(self) -> float:
        """The loop's time at which the silence of all brokers has lasted for `session_timeout`."""
        return max(self._started, self._cluster.last_answer) + self._config.session_timeout

    async def _beat_in_time(self, identity: MemberIdentity) -> _Answer:
        """A heartbeat with all that it takes, lookup and connecting included, which have longer limits of their own.

        The last one before the end ends with the session; one that begins later (the process was stopped) has its
        whole time, as a broker may know better.
        """
        left = self._lost_at - asyncio.get_running_loop().time()
        limit = min(left, self._timeout) if left > 0 else self._timeout
        try:
            async with asyncio.timeout(limit):
                return await self._beat(identity)
        except TimeoutError:
            self._cluster.coordinators.forget(self._group_id)
            text = f"no answer to the heartbeat of group {self._group_id!r} within {limit:g} s"
            if limit == left:  # the last one had no more
                text += f", nor to anything else for session_timeout={self._config.session_timeout:g} s"
            return _Answer(Verdict.MOVED, RequestTimedOut(text))

    async def _beat(self, identity: MemberIdentity) -> _Answer:
        request = m.HeartbeatRequest(
            group_id=self._group_id,
            generation_id=identity.generation_id,
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
        )
        try:
            response = await self._cluster.coordinators.request(
                self._group_id, request, lane=GROUP_LANE, timeout=self._timeout
            )
        except NoBrokersError as error:
            return _Answer(Verdict.RETRY, error)
        except (
            BrokerError,
            AuthenticationError,
        ) as error:  # the lookup of the coordinator was answered, or refused
            return _Answer(Verdict.MOVED if error.retriable else Verdict.FATAL, error)
        except AsyncGroupError as error:
            return _Answer(Verdict.MOVED, error)
        code = response.error_code
        said = BrokerError(code, f"heartbeat of member {identity.member_id!r} in group {self._group_id!r}")
        verdict = ACTIONS.get(code, Verdict.RETRY if said.retriable else Verdict.FATAL)
        if verdict is Verdict.MOVED:
            self._cluster.coordinators.forget(self._group_id)
        refused = verdict in (Verdict.LOST, Verdict.FATAL)
        return _Answer(verdict, said if code else None, refused)


class _Turns:
    """The moments `begun` + k × `interval`, counted, so that no rounding can make one of them come twice."""

    def __init__(self, begun: float, interval: float) -> None:
        self._begun, self._interval, self._turn = begun, interval, 1

    @property
    def next(self) -> float:
        """The first moment that is not past."""
        return self._begun + self._turn * self._interval

    def after(self, moment: float) -> float:
        """The first turn behind `moment`."""
        return self._begun + (math.floor((moment - self._begun) / self._interval) + 1) * self._interval

    def pass_by(self, now: float) -> None:
        """It is `now`: what lies before is past, however many turns that are."""
        if self.next <= now:
            self._turn = max(self._turn + 1, int((now - self._begun) / self._interval) + 1)
