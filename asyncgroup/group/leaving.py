"""Leave a group, by either protocol: attempts with a limit each, until the coordinator has removed the member."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.requests.actions import RequestAction
from asyncgroup.cluster.requests.repeat import repeat
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, RequestTimedOut
from asyncgroup.offsets import GROUP_LANE, MemberIdentity
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Request

__all__ = ["LeaveResult", "SendLeave", "build_leave", "leave_group", "leave_result"]

_log = logging.getLogger("asyncgroup.group")

RETRY_BACKOFF_MAX: Final = 1.0
"""Longest backoff between attempts, in seconds."""

LeaveResult: TypeAlias = "tuple[int, str | None]"
"""Error code and message of a response."""

SendLeave: TypeAlias = Callable[[str, float], Awaitable[LeaveResult]]
"""Sends the request on the connection of this purpose, within these seconds; returns what the response says."""

_LEFT: Final = (
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
"""The coordinator does not have the member, or no longer."""

_COORDINATOR_MOVED: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)

_BATCH_VERSION: Final = 3
"""The first LeaveGroup version with a list of members (KIP-345)."""


async def leave_group(
    cluster: ClusterClient,
    group_id: str,
    send: SendLeave,
    *,
    timeout: float,
    attempt_timeout: float,
    follows: type[Request[Any]] | None = None,
) -> None:
    """Send the request until it succeeds; retriable errors are retried with backoff for `timeout` seconds.

    An attempt has `attempt_timeout` seconds, as a heartbeat has: no other request detects a silent coordinator now. A final
    failure is logged only: the session timeout removes the member later.

    `follows` is the type of a request that joins and may be in flight. The first attempt then goes out on its connection, so
    that the coordinator processes the join first, as with Java's client, which has one connection to the coordinator. That
    attempt has half of the time.
    """
    retry = cluster.retry(timeout=timeout, longest=RETRY_BACKOFF_MAX)
    last: AsyncGroupError | None = None

    def report(error: AsyncGroupError | None) -> None:
        nonlocal last
        last = error
        _log.info("group %s: could not leave, retrying: %s", group_id, error)

    async def attempt() -> AsyncGroupError | None:
        join = follows if retry.failures == 0 else None
        return await _attempt(cluster, group_id, send, min(retry.left, attempt_timeout), join)

    error = await repeat(attempt, _decide, lambda _: retry, report)
    if error is not None:
        # the timeout of the last attempt, cut short by the deadline, says less than the error before it
        shown = last if isinstance(error, RequestTimedOut) and last is not None else error
        text = "group %s: could not leave; the session timeout will remove the member: %s"
        _log.warning(text, group_id, shown)


def _decide(error: AsyncGroupError | None) -> RequestAction:
    if error is None:
        return RequestAction.DONE
    return RequestAction.RETRY if error.retriable else RequestAction.FAIL


async def _attempt(
    cluster: ClusterClient,
    group_id: str,
    send: SendLeave,
    limit: float,
    follows: type[Request[Any]] | None,
) -> AsyncGroupError | None:
    """Make one attempt; return its error, or None."""
    coordinators = cluster.coordinators
    try:
        async with asyncio.timeout(limit) as scope:
            node = cluster.network.lane_node(await coordinators.locate(group_id))
            lane = None if follows is None else cluster.pool.lane_awaiting(node, follows)
            if lane is not None:
                limit /= 2  # a join that is never answered must not take the time of the next attempt
                scope.reschedule(asyncio.get_running_loop().time() + limit)
            else:
                # a request in flight on the group's connection, such as a commit, may wait for a response that does not come
                lane = CONTROL if cluster.pool.in_flight(node, GROUP_LANE) else GROUP_LANE
            code, detail = await send(lane, limit)
    except TimeoutError:
        coordinators.mark_unknown(group_id)
        return RequestTimedOut(f"no response to leaving group {group_id!r} within {limit:.3g} s")
    except AsyncGroupError as error:
        return error
    if code in _LEFT:
        return None
    if code in _COORDINATOR_MOVED:
        coordinators.mark_unknown(group_id)
    return BrokerError(code, f"leaving group {group_id!r}", detail)


def build_leave(group_id: str, identity: MemberIdentity, reason: str, version: int) -> m.LeaveGroupRequest:
    """Build the LeaveGroup request of the classic protocol."""
    if version < _BATCH_VERSION:
        return m.LeaveGroupRequest(group_id=group_id, member_id=identity.member_id)
    member = m.LeaveGroupRequest.MemberIdentity(
        member_id=identity.member_id, group_instance_id=identity.group_instance_id, reason=reason
    )
    return m.LeaveGroupRequest(group_id=group_id, members=[member])


def leave_result(response: m.LeaveGroupResponse) -> LeaveResult:
    """Return the error of the response of the classic protocol: that of the request, or of the member."""
    codes = [response.error_code, *(member.error_code for member in response.members)]
    return max(codes, key=bool), None
