"""What the heartbeat thread knows of a member, and what responses mean to it."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import ErrorCode
from asyncgroup.group.liveness.heartbeat_snapshot import ClassicSnapshot, ThreadResult
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m
from tests.group.consumer.scene import AA, scene

RESULTS = {
    ErrorCode.NONE: ThreadResult.ALIVE,
    ErrorCode.REBALANCE_IN_PROGRESS: ThreadResult.REBALANCE,
    ErrorCode.NOT_COORDINATOR: ThreadResult.COORDINATOR_MOVED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ThreadResult.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: ThreadResult.RETRY,
    ErrorCode.UNKNOWN_MEMBER_ID: ThreadResult.REFUSED,
    ErrorCode.ILLEGAL_GENERATION: ThreadResult.REFUSED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ThreadResult.REFUSED,
}


@pytest.mark.parametrize(("code", "result"), RESULTS.items())
def test_error_codes(code: ErrorCode, result: ThreadResult) -> None:
    member = ClassicSnapshot("g", MemberIdentity("m", 1), due=3.0, interval=3.0, timeout=3.0)
    assert member.result(m.HeartbeatResponse(error_code=code))[0] is result


def test_the_next_generation_is_tried_once_while_the_member_joins() -> None:
    """The response to JoinGroup has it, and the member has not read that yet."""
    member = ClassicSnapshot("g", MemberIdentity("m", 4), due=3.0, interval=3.0, timeout=3.0, joins=True)
    rebalances = m.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert member.result(rebalances) == (ThreadResult.REBALANCE, member)
    former = m.HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION)
    result, member = member.result(former)
    assert result is ThreadResult.RETRY
    assert member.request().generation_id == 5
    assert member.result(former) == (ThreadResult.REFUSED, member)


async def test_a_partition_is_reported_from_its_assignment_on() -> None:
    """The event loop may be blocked before the next heartbeat, and by a handler of that partition."""
    async with scene() as it, it.staying():
        await it.settle()
        await asyncio.sleep(1.0)
        heartbeats = it.membership.heartbeats
        it.pending, it.epoch = {AA: [0, 1, 2]}, it.epoch + 1
        seen = []
        on_response = it.membership._state.on_response

        def watch(response: m.ConsumerGroupHeartbeatResponse) -> bool:
            has_news = on_response(response)
            if response.assignment is not None:
                asyncio.get_running_loop().call_soon(lambda: seen.append(heartbeats.handover.snapshot))
            return has_news

        it.membership._state.on_response = watch  # type: ignore[method-assign]
        await asyncio.sleep(10.0)
        assert seen
        assert seen[0] is not None
        assert {number for _, number in seen[0].owned} == {0, 1, 2}
