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

__all__ = ["HEARTBEAT_RESULTS", "RETRY_BACKOFF_SHARE", "HeartbeatResult", "Heartbeats"]

_log = logging.getLogger("asyncgroup.group")

RETRY_BACKOFF_SHARE: Final = 0.1
"""The longest pause between two tries to reach the coordinator, as a part of `session_timeout`."""


class HeartbeatResult(Enum):
    """What a heartbeat's answer means for the membership."""

    ALIVE = "the coordinator knows the member"
    REBALANCE = "the group rebalances: join again; heartbeats go on"
    COORDINATOR_MOVED = "look the coordinator up again; the member lives on"
    RETRY = "the coordinator is not ready; the member lives on"
    LOST = "the member was expelled or is silent for too long: commit nothing more"
    FATAL = "trying again does not help"


HEARTBEAT_RESULTS: Final[Mapping[int, HeartbeatResult]] = {
    ErrorCode.NONE: HeartbeatResult.ALIVE,
    ErrorCode.REBALANCE_IN_PROGRESS: HeartbeatResult.REBALANCE,
    ErrorCode.NOT_COORDINATOR: HeartbeatResult.COORDINATOR_MOVED,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: HeartbeatResult.COORDINATOR_MOVED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: HeartbeatResult.RETRY,
    ErrorCode.UNKNOWN_MEMBER_ID: HeartbeatResult.LOST,
    ErrorCode.ILLEGAL_GENERATION: HeartbeatResult.LOST,
    ErrorCode.FENCED_INSTANCE_ID: HeartbeatResult.FATAL,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: HeartbeatResult.FATAL,
}
"""By `AbstractCoordinator.HeartbeatResponseHandler` in Kafka and `heartbeatLoop` in sarama; others: retriable ones
RETRY, final ones FATAL."""


class _HeartbeatResponse(NamedTuple):
    """What became of one heartbeat. `refused`: the coordinator itself says that the member is none of the group's."""

    result: HeartbeatResult
    error: AsyncGroupError | None
    refused: bool = False


class Heartbeats:
    """Sends heartbeats for one identity until cancelled, on the lane that it shares with commits.

    They fall on `started_at` + k × `heartbeat_interval`, however long an answer takes. The answers to the group's SyncGroups
    come at one moment, so members beat at one moment, too, and hear of a rebalance together: the eager protocol then
    stands still for the time of a round trip, and not for up to an interval.

    `last_response_at` is the loop time of the last answer that decided anything, `last_stable_sent_at` that at which the last heartbeat
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
        self._started_at = self.last_response_at = self.last_stable_sent_at = float("-inf")
        self._schedule: _Schedule | None = None
        self._confirmed_lookup: int | None = None
        """The lookup that named the coordinator of the last good heartbeat."""
        self._confirmed_at = float("-inf")
        """Loop time at which that heartbeat was sent."""
        self._running = False
        self._wake = asyncio.Event()
        self._check: asyncio.Future[bool] | None = None
        """The outcome of the check that was asked for."""

    def next_heartbeat_after(self, moment: float) -> float | None:
        """The loop time of the first beat behind `moment`, of this member and of those that synced with it; None
        before the first session."""
        return None if self._schedule is None else self._schedule.after(moment)

    async def run(
        self,
        identity: MemberIdentity,
        on_result: Callable[[HeartbeatResult, AsyncGroupError | None], None],
        started_at: float | None = None,
    ) -> None:
        """Beat for `identity`; `on_result(result, error)` hears every verdict but ALIVE. Ends after LOST and FATAL.

        `started_at` is the loop time of the answer that made us a member, by default now.
        """
        loop = asyncio.get_running_loop()
        started_at = loop.time() if started_at is None else started_at
        self._started_at = self.last_response_at = self.last_stable_sent_at = self._confirmed_at = started_at
        self._confirmed_lookup = self._cluster.coordinators.lookup_number(self._group_id)
        self._schedule = _Schedule(started_at, self._config.heartbeat_interval)
        self._running = True
        try:
            await self._run(identity, on_result, self._schedule)
        finally:
            self._running = False
            if self._check is not None:
                self._check.cancel()

    async def _run(
        self,
        identity: MemberIdentity,
        on_result: Callable[[HeartbeatResult, AsyncGroupError | None], None],
        schedule: _Schedule,
    ) -> None:
        loop = asyncio.get_running_loop()
        backoff = self._cluster.backoff()
        due = schedule.next
        while True:
            is_early = await wait_within(self._wake, max(0.0, due - loop.time()))
            self._wake.clear()
            check = self._check
            # a lookup of somebody else, asked before, may have named the former coordinator once more
            is_in_doubt = is_early and self._cluster.coordinators.lookup_number(self._group_id) is None
            sent, (result, error, _) = await self._confirmed_heartbeat(
                identity, on_result, is_in_doubt=is_in_doubt
            )
            if result in (HeartbeatResult.COORDINATOR_MOVED, HeartbeatResult.RETRY):
                if loop.time() >= self._session_expires_at:
                    result = HeartbeatResult.LOST
            else:
                backoff.reset()
                self._on_response(result, sent)
            if result is not HeartbeatResult.ALIVE:
                on_result(result, error)
            if result in (HeartbeatResult.LOST, HeartbeatResult.FATAL):
                self._resolve_check(self._check, result)  # nobody will answer those who asked meanwhile
                return
            self._resolve_check(check, result)
            schedule.advance(loop.time() if is_early else max(due, loop.time()))
            due = schedule.next
            if result in (HeartbeatResult.COORDINATOR_MOVED, HeartbeatResult.RETRY):
                pause = min(backoff.next(), RETRY_BACKOFF_SHARE * self._config.session_timeout)
                due = min(due, loop.time() + pause, self._session_expires_at)

    def _on_response(self, result: HeartbeatResult, sent: float) -> None:
        """The heartbeat sent at `sent` was answered, and that decided something."""
        self.last_response_at = asyncio.get_running_loop().time()
        if result is HeartbeatResult.ALIVE:
            self.last_stable_sent_at = sent
        if result in (HeartbeatResult.ALIVE, HeartbeatResult.REBALANCE):
            self._confirmed_lookup, self._confirmed_at = (
                self._cluster.coordinators.lookup_number(self._group_id),
                sent,
            )
        self._cluster.hooks.emit("on_heartbeat", self._group_id, self.last_response_at - sent)

    # --- refusals -----------------------------------------------------------------------------------------------

    async def is_final(self, lookup: int | None, sent_at: float) -> bool:
        """Whether the refusal of a commit ends the membership; where that is in doubt, a heartbeat at once finds out.

        `lookup` and `sent_at` say which lookup named the coordinator that the commit was sent to
        (`Coordinators.lookup_number`), and when. If the heartbeat finds the membership lost, it was reported when this
        returns.
        """
        if not self._running or self._is_authoritative(lookup, sent_at):
            return True
        if self._check is None:
            self._check = asyncio.get_running_loop().create_future()
            self._cluster.coordinators.doubt(self._group_id)
            self._wake.set()
        return not await asyncio.shield(self._check)

    def _resolve_check(self, check: asyncio.Future[bool] | None, result: HeartbeatResult) -> None:
        """Answer those who asked before the heartbeat was sent, if it decided anything."""
        if check is not None and result not in (HeartbeatResult.COORDINATOR_MOVED, HeartbeatResult.RETRY):
            self._check = None
            check.set_result(result in (HeartbeatResult.ALIVE, HeartbeatResult.REBALANCE))

    def _is_authoritative(self, lookup: int | None, sent_at: float) -> bool:
        """Whether a refusal counts now, of a request that was sent at `sent_at` to the coordinator that `lookup` named."""
        present = self._cluster.coordinators.lookup_number(self._group_id)
        is_coordinator = lookup is not None and lookup == present == self._confirmed_lookup
        # later than this it may have been stopped, and have found our session expired when it went on
        expires_at = self._confirmed_at + self._config.session_timeout
        is_in_time = asyncio.get_running_loop().time() < expires_at
        return is_coordinator and is_in_time and sent_at >= self._confirmed_at

    async def _confirmed_heartbeat(
        self,
        identity: MemberIdentity,
        on_result: Callable[[HeartbeatResult, AsyncGroupError | None], None],
        *,
        is_in_doubt: bool,
    ) -> tuple[float, _HeartbeatResponse]:
        """A heartbeat, and a second one if a broker refused the first that may be a former coordinator.

        `is_in_doubt`: the coordinator is looked up for the first one already, because a commit was refused. Returns also
        when the heartbeat that counts was sent.
        """
        coordinators, time = self._cluster.coordinators, asyncio.get_running_loop().time
        sent = time()
        answer = await self._heartbeat_within_limit(identity)
        if not answer.refused:
            return sent, answer
        if not is_in_doubt and not self._is_authoritative(coordinators.lookup_number(self._group_id), sent):
            _log.info("group %s: looking for the coordinator to be sure: %s", self._group_id, answer.error)
            on_result(HeartbeatResult.COORDINATOR_MOVED, answer.error)
            coordinators.doubt(self._group_id)
            sent = time()
            answer = await self._heartbeat_within_limit(identity)
        if answer.refused and coordinators.lookup_number(self._group_id) is None:
            answer = answer._replace(
                result=HeartbeatResult.COORDINATOR_MOVED
            )  # forgotten by others meanwhile: ask once more
        return sent, answer

    # --- one heartbeat ------------------------------------------------------------------------------------------

    @property
    def _session_expires_at(self) -> float:
        """The loop's time at which the silence of all brokers has lasted for `session_timeout`."""
        return max(self._started_at, self._cluster.last_answer) + self._config.session_timeout

    async def _heartbeat_within_limit(self, identity: MemberIdentity) -> _HeartbeatResponse:
        """A heartbeat with all that it takes, lookup and connecting included, which have longer limits of their own.

        The last one before the end ends with the session; one that begins later (the process was stopped) has its
        whole time, as a broker may know better.
        """
        left = self._session_expires_at - asyncio.get_running_loop().time()
        limit = min(left, self._timeout) if left > 0 else self._timeout
        try:
            async with asyncio.timeout(limit):
                return await self._send_heartbeat(identity)
        except TimeoutError:
            self._cluster.coordinators.forget(self._group_id)
            text = f"no answer to the heartbeat of group {self._group_id!r} within {limit:g} s"
            if limit == left:  # the last one had no more
                text += f", nor to anything else for session_timeout={self._config.session_timeout:g} s"
            return _HeartbeatResponse(HeartbeatResult.COORDINATOR_MOVED, RequestTimedOut(text))

    async def _send_heartbeat(self, identity: MemberIdentity) -> _HeartbeatResponse:
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
            return _HeartbeatResponse(HeartbeatResult.RETRY, error)
        except (
            BrokerError,
            AuthenticationError,
        ) as error:  # the lookup of the coordinator was answered, or refused
            return _HeartbeatResponse(
                HeartbeatResult.COORDINATOR_MOVED if error.retriable else HeartbeatResult.FATAL, error
            )
        except AsyncGroupError as error:
            return _HeartbeatResponse(HeartbeatResult.COORDINATOR_MOVED, error)
        code = response.error_code
        broker_error = BrokerError(
            code, f"heartbeat of member {identity.member_id!r} in group {self._group_id!r}"
        )
        result = HEARTBEAT_RESULTS.get(
            code, HeartbeatResult.RETRY if broker_error.retriable else HeartbeatResult.FATAL
        )
        if result is HeartbeatResult.COORDINATOR_MOVED:
            self._cluster.coordinators.forget(self._group_id)
        refused = result in (HeartbeatResult.LOST, HeartbeatResult.FATAL)
        return _HeartbeatResponse(result, broker_error if code else None, refused)


class _Schedule:
    """The moments `started_at` + k × `interval`, counted, so that no rounding can make one of them come twice."""

    def __init__(self, started_at: float, interval: float) -> None:
        self._started_at, self._interval, self._ticks = started_at, interval, 1

    @property
    def next(self) -> float:
        """The first moment that is not past."""
        return self._started_at + self._ticks * self._interval

    def after(self, moment: float) -> float:
        """The first turn behind `moment`."""
        return (
            self._started_at + (math.floor((moment - self._started_at) / self._interval) + 1) * self._interval
        )

    def advance(self, now: float) -> None:
        """It is `now`: what lies before is past, however many turns that are."""
        if self.next <= now:
            self._ticks = max(self._ticks + 1, int((now - self._started_at) / self._interval) + 1)
