"""Heartbeats of a member of a classic group: send them for one identity and report the results.

They run on the group's event loop. While that is blocked, the heartbeat thread sends others (`thread_heartbeats`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    AuthenticationError,
    BrokerError,
    ErrorCode,
    NoBrokersError,
    RequestTimedOut,
)
from asyncgroup.group.classic.heartbeat_schedule import HeartbeatSchedule
from asyncgroup.group.liveness.heartbeat_snapshot import ClassicSnapshot, ThreadHandover
from asyncgroup.group.liveness.silence import has_expired
from asyncgroup.group.membership import (
    HEARTBEAT_LANE,
    RETRY_BACKOFF_SHARE,
    HeartbeatResult,
    heartbeat_timeout,
)
from asyncgroup.lifecycle import wait_within
from asyncgroup.offsets import GROUP_LANE, MemberIdentity
from asyncgroup.wire import messages as m

__all__ = ["HEARTBEAT_RESULTS", "ClassicHeartbeats"]

_log = logging.getLogger("asyncgroup.group")


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
"""As `AbstractCoordinator.HeartbeatResponseHandler` in Kafka and `heartbeatLoop` in sarama. Other codes: RETRY if they
are retriable, else FATAL."""


def heartbeat_result(error: BrokerError) -> HeartbeatResult:
    """Return what the error code of a response means."""
    default = HeartbeatResult.RETRY if error.retriable else HeartbeatResult.FATAL
    return HEARTBEAT_RESULTS.get(error.code, default)


class _HeartbeatResponse(NamedTuple):
    """The outcome of one heartbeat."""

    result: HeartbeatResult
    error: AsyncGroupError | None
    answered: bool = False
    """Whether the coordinator responded to it; else it failed before, for example at the coordinator lookup."""
    refused: bool = False
    """Whether the coordinator itself reports that the member is not in the group."""


class ClassicHeartbeats:
    """Sends heartbeats for one identity until cancelled, on the connection of commits, unless a request there may delay them.

    They are sent at `started_at` + k × `heartbeat_interval`, however long a response takes, and some before the first one.
    The coordinator responds to all SyncGroups of a group at once, so the members' heartbeats coincide and all learn of a
    rebalance together: with the eager protocol consumption then stops for a round trip instead of up to an interval.

    While any broker responds to any request, the member keeps waiting for its coordinator. When none responds for
    `session_timeout` the result is LOST, since the coordinator has removed the member by then.

    A refusal (LOST, FATAL) is final if it comes from the coordinator that answered the last successful heartbeat or
    the SyncGroup, within `session_timeout` after that, with no coordinator lookup in between. Otherwise the broker
    may be a former coordinator: one that was suspended for longer than `session_timeout` expires all members when it
    resumes, before it learns that another broker has taken over the group. The coordinator is then looked up, at
    other brokers first, and its response to the next heartbeat decides. (Java accepts any response, but disconnects
    from a coordinator once it is unknown, `AbstractCoordinator.markCoordinatorUnknown`.)
    """

    def __init__(self, cluster: ClusterClient, group_id: str, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._config = config
        self.session_timeout = config.effective_session_timeout
        """See `HeartbeatStatus`."""
        self.heartbeat_interval = config.effective_heartbeat_interval
        """See `HeartbeatStatus`."""
        self.timeout = heartbeat_timeout(self.heartbeat_interval, self.session_timeout)
        """Seconds for one heartbeat."""
        self._started_at = float("-inf")
        self.last_response_at = float("-inf")
        """Loop time of the last response other than COORDINATOR_MOVED and RETRY."""
        self.last_stable_sent_at = float("-inf")
        """Loop time at which the last heartbeat was sent whose response was ALIVE: a later rebalance began after it."""
        self.handover = ThreadHandover()
        """See `HeartbeatStatus`."""
        self._schedule: HeartbeatSchedule | None = None
        self._confirmed_lookup: int | None = None
        """The number of the lookup that found the coordinator of the last successful heartbeat."""
        self._confirmed_at = float("-inf")
        """Loop time at which that heartbeat was sent."""
        self._running = False
        self._wake = asyncio.Event()  # set: send a heartbeat now, for `confirm_refusal`
        self._check: asyncio.Future[bool] | None = None
        """For `confirm_refusal`: whether the member is still in the group by the next heartbeat that decides it."""
        self._joining: asyncio.Future[bool] | None = None
        """While the member joins again (`suspend`): whether it is a member afterwards."""
        self._repeat_join: Callable[[], None]
        """See `suspend`."""
        self._rejoined_at = float("-inf")
        """Loop time at which the member had joined again: commits sent until then are under a former generation."""

    def next_heartbeat_after(self, moment: float) -> float | None:
        """Return the loop time of the first heartbeat after `moment`, of this member and of all members that synced with
        it; None before `run`."""
        return None if self._schedule is None else self._schedule.after(moment)

    async def run(
        self,
        identity: MemberIdentity,
        on_result: Callable[[HeartbeatResult, AsyncGroupError | None], None],
        started_at: float | None = None,
        early: Sequence[float] = (),
    ) -> None:
        """Send heartbeats for `identity`; `on_result(result, error)` is called with every result but ALIVE.

        Returns after LOST and FATAL. `started_at` is the loop time of the SyncGroup response, by default now; `early` are
        the seconds after it at which heartbeats are sent before the first of the interval.
        """
        loop = asyncio.get_running_loop()
        started_at = loop.time() if started_at is None else started_at
        self._started_at = self._confirmed_at = started_at
        self.last_response_at = self.last_stable_sent_at = started_at
        self._confirmed_lookup = self._cluster.coordinators.lookup_number(self._group_id)
        self._schedule = HeartbeatSchedule(started_at, self._config.effective_heartbeat_interval, early)
        self._running = True
        self.handover.report = None
        try:
            await self._run(identity, on_result, self._schedule)
            self.handover.snapshot = None  # not if cancelled: it is still a member, and joins or leaves next
        finally:
            self._running = False
            # undecided: the commit is repeated, and asks again. A cancellation would end the task that commits
            check, self._check = self._check, None
            if check is not None:
                check.set_result(True)

    async def _run(
        self,
        identity: MemberIdentity,
        on_result: Callable[[HeartbeatResult, AsyncGroupError | None], None],
        schedule: HeartbeatSchedule,
    ) -> None:
        loop = asyncio.get_running_loop()
        retry = self._cluster.retry(longest=RETRY_BACKOFF_SHARE * self._config.effective_session_timeout)
        # loop time of the next heartbeat: by the schedule, or earlier for a retry; `_wake` sends one before that
        due = schedule.next
        failed: _HeartbeatResponse | None = None  # of the last heartbeat, if it is to be sent again
        while True:
            self.publish(identity, due)
            is_early = await wait_within(self._wake, max(0.0, due - loop.time()))
            self._wake.clear()
            if self._has_left(on_result):
                return
            # only a heartbeat that is sent after a check was requested can resolve it
            check = self._check
            # a lookup by another task, sent before, may have returned the former coordinator once more
            is_in_doubt = is_early and self._cluster.coordinators.lookup_number(self._group_id) is None
            if failed is not None and has_expired(self._session_expires_at, due):
                sent, response = due, failed  # another attempt would keep the claims until its time limit
            else:
                sent, response = await self._confirmed_heartbeat(identity, on_result, is_in_doubt=is_in_doubt)
            if self._has_left(on_result):  # the event loop may have been blocked in the meantime
                return
            result, error, failed = response.result, response.error, None
            if result in (HeartbeatResult.COORDINATOR_MOVED, HeartbeatResult.RETRY):
                if loop.time() >= self._session_expires_at:
                    result = HeartbeatResult.LOST
            else:
                retry.reset()
                if response.answered:
                    self._on_response(result, sent)
            if result is not HeartbeatResult.ALIVE:
                on_result(result, error)
            if result in (HeartbeatResult.LOST, HeartbeatResult.FATAL):
                self._resolve_check(self._check, result)  # also the newer one: no later heartbeat resolves it
                return
            self._resolve_check(check, result)
            schedule.advance(loop.time() if is_early else max(due, loop.time()))
            due = schedule.next
            if result in (HeartbeatResult.COORDINATOR_MOVED, HeartbeatResult.RETRY):
                failed, due = response, min(due, loop.time() + retry.next(), self._session_expires_at)

    def publish(self, identity: MemberIdentity, due: float | None = None, *, joins: bool = False) -> None:
        """Publish the member for a heartbeat thread, with the loop time of its next heartbeat, by default after an interval.

        `joins`: while it waits for the response to a JoinGroup. Without a generation there is nothing to publish.
        """
        if identity.generation_id < 0:
            self.handover.snapshot = None
            return
        if due is None:
            due = asyncio.get_running_loop().time() + self.heartbeat_interval
        self.handover.snapshot = ClassicSnapshot(
            self._group_id, identity, due, self.heartbeat_interval, self.timeout, joins
        )

    def _has_left(self, on_result: Callable[[HeartbeatResult, AsyncGroupError | None], None]) -> bool:
        """Whether the member has left its group while the event loop was blocked, which is reported."""
        left_because = self.take_report()
        if left_because is None:
            return False
        on_result(HeartbeatResult.LOST, left_because)
        self._resolve_check(self._check, HeartbeatResult.LOST)
        return True

    def take_report(self) -> AsyncGroupError | None:
        """Take note of the heartbeats that were sent while the event loop was blocked; return why the member left, if it did."""
        if (report := self.handover.take_report()) is None:
            return None
        self.last_response_at = max(self.last_response_at, report.accepted_at)
        self.last_stable_sent_at = max(self.last_stable_sent_at, report.stable_at)
        return report.left_because

    def _on_response(self, result: HeartbeatResult, sent: float) -> None:
        """Record a response that is neither COORDINATOR_MOVED nor RETRY to the heartbeat sent at `sent`."""
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

    def suspend(self, repeat_join: Callable[[], None]) -> None:
        """The member joins again: refusals of requests under its former generation are confirmed by the outcome.

        `repeat_join()` is called if a commit was refused, and the join is not complete within the limit of a heartbeat; then
        after pauses that double.
        """
        self._joining, self._repeat_join = asyncio.get_running_loop().create_future(), repeat_join

    def resume(self, *, is_member: bool) -> None:
        """The member has joined again, or is lost."""
        if self._joining is not None:
            self._joining.set_result(is_member)
            self._joining = None
        if is_member:
            self._rejoined_at = asyncio.get_running_loop().time()

    async def wait_joined(self) -> bool:
        """Wait until the member has joined again; return whether it has. False at once if it is not joining."""
        return False if self._joining is None else await asyncio.shield(self._joining)

    async def confirm_refusal(self, lookup: int | None, sent_at: float) -> bool:
        """Return whether the refusal of a commit ends the membership; if in doubt, send a heartbeat at once that decides.

        `lookup` is the number of the lookup that found the coordinator to which the commit was sent
        (`CoordinatorClient.lookup_number`), `sent_at` the loop time of that. If the heartbeat finds that the membership is
        lost, its result has been reported when this returns. False also if the heartbeats stop before that, as when the member
        joins again: the next refusal is decided by what follows.
        """
        if self._joining is not None:
            return not await self._is_joined_after_refusal(self._joining)
        if sent_at <= self._rejoined_at:
            return False  # it was sent under a former generation
        if not self._running or self._is_authoritative(lookup, sent_at):
            return True
        if self._check is None:
            self._check = asyncio.get_running_loop().create_future()
            self._cluster.coordinators.mark_stale(self._group_id)
            self._wake.set()
        return not await asyncio.shield(self._check)

    async def _is_joined_after_refusal(self, joining: asyncio.Future[bool]) -> bool:
        """Return whether the member has joined again, after a commit under its former generation was refused.

        The coordinator accepts such commits until it completes the join or removes the member, and responds to JoinGroup
        then. A response that does not come is lost, and others may get the member's partitions. (Java's consumer has
        one connection for both: it gives the generation up, and with it the partitions.)
        """
        pause = self.timeout
        while not (await asyncio.wait({joining}, timeout=pause))[0]:
            self._repeat_join()
            pause *= 2  # the group may rebalance once more, and the response has to wait
        return joining.result()

    def _resolve_check(self, check: asyncio.Future[bool] | None, result: HeartbeatResult) -> None:
        """Resolve a check that was requested before the heartbeat was sent, if the result decides it."""
        if check is not None and result not in (HeartbeatResult.COORDINATOR_MOVED, HeartbeatResult.RETRY):
            self._check = None
            check.set_result(result in (HeartbeatResult.ALIVE, HeartbeatResult.REBALANCE))

    def _is_authoritative(self, lookup: int | None, sent_at: float) -> bool:
        """Whether to believe the refusal of a request, sent at `sent_at` to the coordinator found by lookup `lookup`."""
        present = self._cluster.coordinators.lookup_number(self._group_id)
        is_coordinator = lookup is not None and lookup == present == self._confirmed_lookup
        # after this it may have been suspended, and have expired our session when it resumed
        expires_at = self._confirmed_at + self._config.effective_session_timeout
        is_in_time = asyncio.get_running_loop().time() < expires_at
        return is_coordinator and is_in_time and sent_at >= self._confirmed_at

    async def _confirmed_heartbeat(
        self,
        identity: MemberIdentity,
        on_result: Callable[[HeartbeatResult, AsyncGroupError | None], None],
        *,
        is_in_doubt: bool,
    ) -> tuple[float, _HeartbeatResponse]:
        """Send a heartbeat, and a second one if the first was refused by what may be a former coordinator.

        `is_in_doubt`: a refused commit has already made the first one look up the coordinator. Returns the loop time at
        which the deciding heartbeat was sent, and its response.
        """
        coordinators, time = self._cluster.coordinators, asyncio.get_running_loop().time
        sent = time()
        response = await self._heartbeat_within_limit(identity)
        if not response.refused:
            return sent, response
        if not is_in_doubt and not self._is_authoritative(coordinators.lookup_number(self._group_id), sent):
            _log.info("group %s: looking up the coordinator to confirm: %s", self._group_id, response.error)
            on_result(HeartbeatResult.COORDINATOR_MOVED, response.error)
            coordinators.mark_stale(self._group_id)
            sent = time()
            response = await self._heartbeat_within_limit(identity)
        if response.refused and coordinators.lookup_number(self._group_id) is None:
            # another task has forgotten the coordinator in the meantime: ask again
            response = response._replace(result=HeartbeatResult.COORDINATOR_MOVED)
        return sent, response

    # --- one heartbeat ------------------------------------------------------------------------------------------

    @property
    def _session_expires_at(self) -> float:
        """Loop time at which no broker has responded for `session_timeout`."""
        last = max(self._started_at, self.handover.accepted_at, self._cluster.last_response_at)
        return last + self._config.effective_session_timeout

    async def _heartbeat_within_limit(self, identity: MemberIdentity) -> _HeartbeatResponse:
        """Send a heartbeat with one limit for all its steps: lookup and connecting alone have longer timeouts.

        The limit is cut at the expiry of the session. A heartbeat that begins after that (the process was suspended)
        has the full limit, since the coordinator may still have the member.
        """
        left = self._session_expires_at - asyncio.get_running_loop().time()
        limit = min(left, self.timeout) if left > 0 else self.timeout
        try:
            async with asyncio.timeout(limit):
                return await self._send_heartbeat(identity)
        except TimeoutError:
            self._cluster.coordinators.mark_unknown(self._group_id)
            text = f"no response to the heartbeat of group {self._group_id!r} within {limit:g} s"
            if limit == left:  # the last one before the session expires
                text += f", nor to any other request for session_timeout={self._config.effective_session_timeout:g} s"
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
                self._group_id, request, lane=GROUP_LANE, spare_lane=HEARTBEAT_LANE, timeout=self.timeout
            )
        except NoBrokersError as error:
            return _HeartbeatResponse(HeartbeatResult.RETRY, error)
        # an error of the coordinator lookup, or of authentication
        except (BrokerError, AuthenticationError) as error:
            return _HeartbeatResponse(
                HeartbeatResult.COORDINATOR_MOVED if error.retriable else HeartbeatResult.FATAL, error
            )
        except AsyncGroupError as error:
            return _HeartbeatResponse(HeartbeatResult.COORDINATOR_MOVED, error)
        code = response.error_code
        broker_error = BrokerError(
            code, f"heartbeat of member {identity.member_id!r} in group {self._group_id!r}"
        )
        result = heartbeat_result(broker_error)
        if result is HeartbeatResult.COORDINATOR_MOVED:
            self._cluster.coordinators.mark_unknown(self._group_id)
        refused = result in (HeartbeatResult.LOST, HeartbeatResult.FATAL)
        return _HeartbeatResponse(result, broker_error if code else None, answered=True, refused=refused)
