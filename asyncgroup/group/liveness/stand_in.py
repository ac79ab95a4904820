"""StandIn: sends heartbeats for a member whose event loop is blocked, over separate connections.

It runs on another event loop, in the heartbeat thread, and knows of the member only what its heartbeats have published
(`KeepAlive`). It decides nothing about the membership: refused, it stops, and the member's own heartbeats find out when the
event loop runs again. One thing cannot wait for that: if a claim is stuck, or the event loop blocked, for
`max_poll_interval`, it leaves the group, so that others get the partitions (as the heartbeat thread of Java's
`AbstractCoordinator` at `pollTimeoutExpired`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.network_client import RequestBuilder
from asyncgroup.errors import AsyncGroupError, BrokerError, ClaimStuck
from asyncgroup.group.leaving import LeaveResult, leave_group
from asyncgroup.group.liveness.keep_alive import KeepAlive, KeepAliveResult, KeptAlive
from asyncgroup.lifecycle import describe_error
from asyncgroup.log_events import claim_stuck_fields, log_fields
from asyncgroup.offsets import GROUP_LANE
from asyncgroup.wire.message import Message, Request

__all__ = ["KeptAliveMember", "StandIn"]

R = TypeVar("R", bound=Message)

LEAVE_ATTEMPTS: Final = 3
"""How many times the limit of one heartbeat a leave is repeated: for about a session timeout."""

LEAVES: Final = "the member leaves its group"
STAYS: Final = "this static member sends no more heartbeats, so its session times out"
"""What the member does about a stuck claim, or a blocked event loop, in words."""

_log = logging.getLogger("asyncgroup.group")


class KeptAliveMember(Protocol):
    """What the heartbeats of a member publish, and what they take back."""

    @property
    def keep_alive(self) -> KeepAlive | None:
        """See `HeartbeatStatus`."""
        ...

    kept_alive: KeptAlive | None
    """Set by the stand-in; the next heartbeat of the member takes it."""


class StandIn:
    """Stands in for the heartbeats of one member while its event loop is blocked.

    `find_stuck(now)` returns why the member must leave its group, if it must; `check_period` are the seconds between two
    calls of it. `make_cluster` makes a client of the member's cluster that is not open yet.
    """

    def __init__(
        self,
        member: KeptAliveMember,
        make_cluster: Callable[[], ClusterClient],
        find_stuck: Callable[[float], AsyncGroupError | None],
        check_period: float,
    ) -> None:
        self._member = member
        self._make_cluster = make_cluster
        self._cluster = make_cluster()
        self._find_stuck = find_stuck
        self._check_period = check_period
        self._accepted_at = self._stable_at = float("-inf")
        self._was_refused = False

    async def run(self) -> None:
        """Send heartbeats when they are due, until cancelled, refused, or the member has left."""
        member, kept = self._member.keep_alive, self._member.kept_alive
        # it may have left during the last block, which its own heartbeats have not found out yet
        if member is None or (kept is not None and kept.left_because is not None):
            return
        try:
            await self._run(member)
        finally:
            await self._cluster.aclose()

    async def _run(self, member: KeepAlive) -> None:
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
            if result is KeepAliveResult.REFUSED:
                return
            if result in (KeepAliveResult.ALIVE, KeepAliveResult.REBALANCE):
                retry.reset()
                due = time() + member.interval
            else:
                due = time() + retry.next()

    async def _send(self, member: KeepAlive) -> tuple[KeepAliveResult, KeepAlive]:
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
            return KeepAliveResult.RETRY, member
        result, after = member.result(response)
        if result is KeepAliveResult.ALIVE:
            self._stable_at = sent_at
        if result in (KeepAliveResult.ALIVE, KeepAliveResult.REBALANCE):
            self._accepted_at, self._was_refused = sent_at, False
            self._publish(after)
        elif result is KeepAliveResult.COORDINATOR_MOVED:
            self._cluster.coordinators.mark_unknown(member.group_id)
        elif result is KeepAliveResult.REFUSED:
            result = self._on_refused(member, response.error_code)
        return result, after

    def _publish(self, member: KeepAlive, left_because: AsyncGroupError | None = None) -> None:
        self._member.kept_alive = KeptAlive(self._accepted_at, self._stable_at, member.epoch, left_because)

    def _on_refused(self, member: KeepAlive, code: int) -> KeepAliveResult:
        """Ask once more after the first refusal, which may come from a former coordinator."""
        is_final, self._was_refused = self._was_refused, True
        error = BrokerError(code, f"heartbeat of group {member.group_id!r}")
        _log.info("group %s: the heartbeat thread was refused: %s", member.group_id, error)
        self._cluster.coordinators.mark_stale(member.group_id)
        return KeepAliveResult.REFUSED if is_final else KeepAliveResult.RETRY

    async def _leave(self, member: KeepAlive, error: AsyncGroupError) -> None:
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

    async def _request(self, member: KeepAlive, cls: type[Request[R]], build: RequestBuilder[R]) -> R:
        """Send a request to the group's coordinator; open the client first if it is not."""
        if not self._cluster.is_open:
            await self._open()
        return await self._cluster.coordinators.request_versioned(
            member.group_id, cls, build, lane=GROUP_LANE, timeout=member.timeout
        )

    async def _open(self) -> None:
        self._cluster = self._make_cluster()  # one that could not be opened cannot be used again
        await self._cluster.__aenter__()
