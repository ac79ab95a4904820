"""Heartbeats: an identity in, verdicts out. Knows nothing of sessions, so that it may run on a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, NoBrokersError, RequestTimedOut
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

    While any broker answers anything the member is only waiting for its coordinator; when none answers for
    `session_timeout` the verdict is LOST, since the coordinator has expelled us by then.
    """

    def __init__(self, cluster: Cluster, group_id: str, config: ConsumerConfig) -> None:
        self._cluster, self._group_id, self._config = cluster, group_id, config
        # an answer that comes later than this may be too late for a second try within the session
        self._timeout = max(config.heartbeat_interval, config.session_timeout / 3)
        self._started = self.last_beat = float("-inf")

    async def run(
        self, identity: MemberIdentity, report: Callable[[Verdict, AsyncGroupError | None], None]
    ) -> None:
        """Beat for `identity`; `report(verdict, error)` hears every verdict but ALIVE. Ends after LOST and FATAL."""
        loop = asyncio.get_running_loop()
        self._started = self.last_beat = loop.time()
        backoff = self._cluster.backoff()
        pause = self._config.heartbeat_interval
        while True:
            await asyncio.sleep(pause)
            sent = loop.time()
            verdict, error = await self._beat_in_time(identity)
            if verdict in (Verdict.MOVED, Verdict.RETRY):
                if loop.time() >= self._lost_at:
                    verdict = Verdict.LOST
            else:
                backoff.reset()
                self.last_beat = loop.time()
                self._cluster.hooks.emit("on_heartbeat", self._group_id, loop.time() - sent)
            if verdict is not Verdict.ALIVE:
                report(verdict, error)
            if verdict in (Verdict.LOST, Verdict.FATAL):
                return
            pause = self._config.heartbeat_interval
            if verdict in (Verdict.MOVED, Verdict.RETRY):
                pause = min(pause, backoff.next(), self._lost_at - loop.time())

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
        except BrokerError as error:  # the lookup of the coordinator was answered
            return (Verdict.MOVED if error.retriable else Verdict.FATAL), error
        except AsyncGroupError as error:
            return Verdict.MOVED, error
        code = response.error_code
        said = BrokerError(code, f"heartbeat of member {identity.member_id!r} in group {self._group_id!r}")
        verdict = ACTIONS.get(code, Verdict.RETRY if said.retriable else Verdict.FATAL)
        if verdict is Verdict.MOVED:
            self._cluster.coordinators.forget(self._group_id)
        return verdict, said if code else None
