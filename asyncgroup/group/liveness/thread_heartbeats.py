"""ThreadHeartbeats: heartbeats for a member whose event loop is blocked, over separate connections.

It runs on another event loop, in the heartbeat thread, and knows of the member only what its heartbeats have published
(`HeartbeatSnapshot`). It decides nothing about the membership: refused, it stops, and the member's own heartbeats find out when the
event loop runs again. One thing cannot wait for that: if a claim is stuck, or the event loop blocked, for
`max_poll_interval`, it leaves the group, so that others get the partitions (as the heartbeat thread of Java's
`AbstractCoordinator` at `pollTimeoutExpired`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.network_client import RequestBuilder
from asyncgroup.errors import AsyncGroupError, BrokerError, ClaimStuck
from asyncgroup.group.leaving import LeaveResult, leave_group
from asyncgroup.group.liveness.heartbeat_snapshot import (
    HeartbeatSnapshot,
    ThreadHandover,
    ThreadReport,
    ThreadResult,
)
from asyncgroup.lifecycle import describe_error
from asyncgroup.log_events import claim_stuck_fields, log_fields
from asyncgroup.offsets import GROUP_LANE
from asyncgroup.wire.message import Message, Request

__all__ = ["ThreadHeartbeats"]

R = TypeVar("R", bound=Message)

LEAVE_ATTEMPTS: Final = 3
"""How many times the limit of one heartbeat a leave is repeated: for about a session timeout."""

LEAVES: Final = "the member leaves its group"
STAYS: Final = "this static member sends no more heartbeats, so its session times out"
"""What the member does about a stuck claim, or a blocked event loop, in words."""

_log = logging.getLogger("asyncgroup.group")


class ThreadHeartbeats:
    """Sends the heartbeats of one member while its event loop is blocked.

    `find_stuck(now)` returns why the member must leave its group, if it must; `check_period` are the seconds between two
    calls of it. `make_cluster` makes a client of the member's cluster that is not open yet.
    """

    def __init__(
        self,
        handover: ThreadHandover,
        make_cluster: Callable[[], ClusterClient],
        find_stuck: Callable[[float], AsyncGroupError | None],
        check_period: float,
    ) -> None:
        self._handover = handover
        self._make_cluster = make_cluster
        self._cluster = make_cluster()
        self._find_stuck = find_stuck
        self._check_period = check_period
        self._accepted_at = self._stable_at = float("-inf")
        self._was_refused = False

    async def run(self) -> None:
        """Send heartbeats when they are due, until cancelled, refused, or the member has left."""
        member, report = self._handover.snapshot, self._handover.report
        # it may have left during the last block, which its own heartbeats have not found out yet
        if member is None or (report is not None and report.left_because is not None):
            return
        try:
            await self._run(member)
        finally:
            await self._cluster.aclose()

    async def _run(self, member: HeartbeatSnapshot) -> None:
        time, due = asyncio.get_running_loop().time, member.due
        retry = self._cluster.retry(longest=member.interval)
        while True:
            if (error := self._find_stuck(time())) is not None:
                await self._leave(member, error)
                return
            if (left := due - time()) > 0:
                await asyncio.sleep(min(left, self._check_period))
                continue
            result, member = await self._send(member)
            if result is ThreadResult.REFUSED:
                return
            if result in (ThreadResult.ALIVE, ThreadResult.REBALANCE):
                retry.reset()
                due = time() + member.interval
            else:
                due = time() + retry.next()

    async def _send(self, member: HeartbeatSnapshot) -> tuple[ThreadResult, HeartbeatSnapshot]:
        """Send one heartbeat; publish it if it was accepted."""
        sent_at = asyncio.get_running_loop().time()
        self._publish(member)  # before: the event loop may run again before the response arrives
        try:
            async with asyncio.timeout(member.timeout):
                response = await self._request(member, type(member.request()), lambda _: member.request())
        except (AsyncGroupError, TimeoutError) as error:
            why = describe_error(error)
            if isinstance(error, TimeoutError):
                why = f"no response to the heartbeat within {member.timeout:g} s"
            _log.info("group %s: a heartbeat of the heartbeat thread failed: %s", member.group_id, why)
            self._cluster.coordinators.mark_unknown(member.group_id)
            return ThreadResult.RETRY, member
        result, after = member.result(response)
        if result is ThreadResult.ALIVE:
            self._stable_at = sent_at
        if result in (ThreadResult.ALIVE, ThreadResult.REBALANCE):
            self._accepted_at, self._was_refused = sent_at, False
            self._publish(after)
        elif result is ThreadResult.COORDINATOR_MOVED:
            self._cluster.coordinators.mark_unknown(member.group_id)
        elif result is ThreadResult.REFUSED:
            result = self._on_refused(member, response.error_code)
        return result, after

    def _publish(self, member: HeartbeatSnapshot, left_because: AsyncGroupError | None = None) -> None:
        self._handover.report = ThreadReport(
            self._accepted_at, self._stable_at, member.identity, left_because
        )

    def _on_refused(self, member: HeartbeatSnapshot, code: int) -> ThreadResult:
        """Ask once more after the first refusal, which may come from a former coordinator."""
        is_final, self._was_refused = self._was_refused, True
        error = BrokerError(code, f"heartbeat of group {member.group_id!r}")
        _log.info("group %s: the heartbeat thread was refused: %s", member.group_id, error)
        self._cluster.coordinators.mark_stale(member.group_id)
        return ThreadResult.REFUSED if is_final else ThreadResult.RETRY

    async def _leave(self, member: HeartbeatSnapshot, error: AsyncGroupError) -> None:
        """Leave the group, or only end the heartbeats if this kind of member does not leave."""
        does = LEAVES if member.leaves else STAYS
        if isinstance(error, ClaimStuck):
            fields = claim_stuck_fields(error)
        else:
            fields = log_fields("loop_blocked", group=member.group_id, error=error)
        _log.warning("%s; %s", error, does, extra=fields)
        self._publish(member, error)
        if not member.leaves:
            return
        retry = self._cluster.retry(timeout=LEAVE_ATTEMPTS * member.timeout, longest=member.interval)
        while not self._cluster.is_open:
            try:
                await self._open()
            except AsyncGroupError as failure:
                _log.info("group %s: could not leave: %s", member.group_id, failure)
                if not retry.failed():
                    return
                await retry.wait()

        async def send(lane: str, seconds: float) -> LeaveResult:
            return member.leave_result(
                await self._cluster.coordinators.request_versioned(
                    member.group_id, member.leave_type, member.leave_request, lane=lane, timeout=seconds
                )
            )

        await leave_group(
            self._cluster, member.group_id, send, timeout=retry.left, attempt_timeout=member.timeout
        )

    async def _request(self, member: HeartbeatSnapshot, cls: type[Request[R]], build: RequestBuilder[R]) -> R:
        """Send a request to the group's coordinator; open the client first if it is not."""
        if not self._cluster.is_open:
            await self._open()
        return await self._cluster.coordinators.request_versioned(
            member.group_id, cls, build, lane=GROUP_LANE, timeout=member.timeout
        )

    async def _open(self) -> None:
        self._cluster = self._make_cluster()  # one that could not be opened cannot be used again
        await self._cluster.__aenter__()
