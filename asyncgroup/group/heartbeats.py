"""Heartbeats: an identity in, verdicts out. Knows nothing of sessions, so that it may run on a thread of its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

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
from asyncgroup.offsets import GROUP_LANE, MemberIdentity
from asyncgroup.wire import messages as m

__all__ = ["ACTIONS", "Heartbeats", "Verdict"]


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


class Heartbeats:
    """Sends heartbeats for one identity until cancelled, on the lane that it shares with commits.

    They fall on `begun` + k × `heartbeat_interval`, however long an answer takes. The answers to the group's SyncGroups
    come at one moment, so members beat at one moment, too, and hear of a rebalance together: the eager protocol then
    stands still for the time of a round trip, and not for up to an interval.

    `last_beat` is the loop time of the last answer that decided anything, `last_alive` that at which the last heartbeat
    was sent that found the group at work: a rebalance that is told later began after it.

    While any broker answers anything the member is only waiting for its coordinator; when none answers for
    `session_timeout` the verdict is LOST, since the coordinator has expelled us by then.
    """

    def __init__(self, cluster: Cluster, group_id: str, config: ConsumerConfig) -> None:
        self._cluster, self._group_id, self._config = cluster, group_id, config
        # an answer that comes later than this may be too late for a second try within the session
        self._timeout = max(config.heartbeat_interval, config.session_timeout / 3)
        self._started = self.last_beat = self.last_alive = float("-inf")
        self._turns: _Turns | None = None

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
        self._started = self.last_beat = self.last_alive = begun
        backoff = self._cluster.backoff()
        turns = self._turns = _Turns(begun, self._config.heartbeat_interval)
        due = turns.next
        while True:
            await asyncio.sleep(due - loop.time())
            sent = loop.time()
            verdict, error = await self._beat_in_time(identity)
            if verdict in (Verdict.MOVED, Verdict.RETRY):
                if loop.time() >= self._lost_at:
                    verdict = Verdict.LOST
            else:
                backoff.reset()
                self.last_beat = loop.time()
                if verdict is Verdict.ALIVE:
                    self.last_alive = sent
                self._cluster.hooks.emit("on_heartbeat", self._group_id, loop.time() - sent)
            if verdict is not Verdict.ALIVE:
                report(verdict, error)
            if verdict in (Verdict.LOST, Verdict.FATAL):
                return
            turns.pass_by(max(due, loop.time()))
            due = turns.next
            if verdict in (Verdict.MOVED, Verdict.RETRY):
                due = min(due, loop.time() + backoff.next(), self._lost_at)

    @property
    def _lost_at(self) -> float:
        """The loop's time at which the silence of all brokers has lasted for `session_timeout`."""
        return max(self._started, self._cluster.last_answer) + self._config.session_timeout

    async def _beat_in_time(self, identity: MemberIdentity) -> tuple[Verdict, AsyncGroupError | None]:
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
            return Verdict.MOVED, RequestTimedOut(text)

    async def _beat(self, identity: MemberIdentity) -> tuple[Verdict, AsyncGroupError | None]:
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
            return Verdict.RETRY, error
        except (
            BrokerError,
            AuthenticationError,
        ) as error:  # the lookup of the coordinator was answered, or refused
            return (Verdict.MOVED if error.retriable else Verdict.FATAL), error
        except AsyncGroupError as error:
            return Verdict.MOVED, error
        code = response.error_code
        said = BrokerError(code, f"heartbeat of member {identity.member_id!r} in group {self._group_id!r}")
        verdict = ACTIONS.get(code, Verdict.RETRY if said.retriable else Verdict.FATAL)
        if verdict is Verdict.MOVED:
            self._cluster.coordinators.forget(self._group_id)
        return verdict, said if code else None


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
