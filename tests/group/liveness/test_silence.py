"""The session timeout without a response of any broker, in virtual time: it counts from the last response.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import RequestTimedOut
from asyncgroup.group.liveness.heartbeat_thread import BLOCKED_SECONDS
from asyncgroup.group.liveness.silence import has_expired, unless_silent
from tests.offsets.fakes import now
from tests.scenario.support import SessionEndHook, WorkHandler, member, running
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.stories.virtual import block

SESSION_TIMEOUT = 10.0


# -- heartbeats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0.0, 0.003, 0.9 * BLOCKED_SECONDS])
async def test_a_session_that_expires_before_the_next_attempt_is_lost(late: float) -> None:
    expires_at = due = now() + 5.0
    await asyncio.sleep(5.0)
    block(late)
    assert has_expired(expires_at, due)


async def test_an_attempt_before_the_session_expires_is_made() -> None:
    assert not has_expired(now() + 0.001, now())


async def test_a_suspended_process_makes_one_more_attempt() -> None:
    due = now() + 4.0
    block(4.0 + BLOCKED_SECONDS)
    assert not has_expired(due, due)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_only_broker_is_down_and_connections_are_refused_late(protocol: str) -> None:
    """The session ended one refused connection later: the last attempt began when the session timeout was over.

    Found by the simulation: seeds 5970 and 1005970.
    """
    ends = SessionEndHook()
    async with made_for(protocol) as env:
        handler = WorkHandler(env)
        async with (
            member(env, hooks=(ends,)) as group,
            running(group.run("orders", handler)),
        ):
            await handler.until("claim 3@0")
            await asyncio.sleep(4.0)
            env.network.set_latency(0.2, "10.2.0.1")
            await env.kill_node(1)
            await env.bell.until(lambda: bool(ends.causes), "the loss", 60.0)
            last_response_at = group.cluster._inner.last_response_at
            assert now() - last_response_at == pytest.approx(env.session_timeout, abs=0.01)
            assert ends.names == ["MemberLost"]
            await env.cluster.start_node(1)
            await handler.until("claim 3@0", 2)


# -- a join that keeps the claims ---------------------------------------------------------------------------------------


async def join(last_response_at: float) -> float:
    """Wait for a join that no broker responds to; return for how many seconds."""
    began = now()
    with pytest.raises(RequestTimedOut, match="the join: no broker has responded for session_timeout=10 s"):
        await unless_silent(asyncio.sleep(3600), "the join", SESSION_TIMEOUT, lambda: last_response_at)
    return now() - began


async def test_silence_before_a_join_counts() -> None:
    """The limit began with the join: a member whose heartbeats were not answered kept its claims for up to twice as long."""
    await asyncio.sleep(100.0)
    assert await join(now() - 7.5) == pytest.approx(2.5)


@pytest.mark.parametrize("silence", [SESSION_TIMEOUT, 3600.0, float("inf")])
async def test_a_process_that_was_suspended_before_a_join_has_the_whole_time(silence: float) -> None:
    await asyncio.sleep(100.0)
    assert await join(now() - silence) == pytest.approx(SESSION_TIMEOUT)


async def test_responses_during_a_join_count() -> None:
    began = now()
    work = asyncio.sleep(35.0, "joined")
    result = await unless_silent(
        work, "the join", SESSION_TIMEOUT, lambda: began + 9.0 * ((now() - began) // 9)
    )
    assert (result, now() - began) == ("joined", 35.0)
