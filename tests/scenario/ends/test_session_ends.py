"""How claims and sessions end (the table "How things end" of the design): handlers, offsets and caller in each case.

Errors and callers are tested in `test_session_ends_callers.py`.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import pytest

from asyncgroup import Claim, ErrorCode, Record, Session
from tests.scenario.support import (
    ClaimReturns,
    Gate,
    SessionEndHook,
    WorkHandler,
    committed,
    member,
    now,
    running,
    working,
)
from tests.stories.virtual import VirtualEnvironment

# -- a claim is revoked -------------------------------------------------------------------------------------------------


async def test_revoked(ends: SessionEndHook, env: VirtualEnvironment):
    """The current record is finished, no other is started; its mark is committed; consume() returns."""
    async with working(env, "consume", hooks=(ends,)) as (_group, consuming, handler, gate):
        bob = await env.member("bob")
        await env.bell.until(lambda: handler.sessions[0].ended, "the rebalance seen", env.limit)
        assert handler.sessions[0].claims[0].ended
        gate.open.set()
        await consuming
        assert handler.calls[-4:] == ["done 0@2", "end 0", "revoked [0, 1, 2, 3]", "cleanup"]
        assert "record 0@3" not in handler.calls
        assert committed(env) == {0: 3}
        assert ends.names == ["Rebalanced"]
        await bob.leave()


async def test_revoked_and_run_continues(handler: WorkHandler, ends: SessionEndHook, env: VirtualEnvironment):
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)) as consuming:
        await handler.until("assigned [0, 1, 2, 3]")
        bob = await env.member("bob")
        await handler.until("assigned [0, 1]")
        await bob.leave()
        await handler.until("assigned [0, 1, 2, 3]", 2)
        assert not consuming.done()
        assert ends.names == ["Rebalanced", "Rebalanced"]


async def test_revoked_handler_has_its_time(env: VirtualEnvironment):
    """A handler that does not end is cancelled once, early enough for the member to join again.

    The coordinator waits for `rebalance_timeout` from a time after the last successful heartbeat; a fifth of it is
    reserved for the steps after the handlers.
    """
    async with working(env, "consume", rebalance_timeout=20.0) as (_group, consuming, handler, _gate):
        bob = await env.member("bob")
        await env.bell.until(lambda: handler.sessions[0].ended, "the rebalance seen", env.limit)
        last_good = now() - env.heartbeat_interval
        await handler.until("cancelled 0")
        assert now() == pytest.approx(last_good + 20.0 * 0.8, abs=0.01)
        await consuming
        assert handler.calls.count("cancelled 0") == 1
        assert committed(env) == {0: 2}
        await bob.leave()


async def test_revoked_handler_that_blocks_the_group(env: VirtualEnvironment):
    """It ignores its cancellation: finished work is committed while it still drains, and the group continues from there
    without it.
    """
    cancelled = asyncio.Event()

    async def stubborn(_session: Session, claim: Claim, record: Record) -> None:
        if (record.partition, record.offset) == (0, 2) and not cancelled.is_set():
            try:
                await asyncio.sleep(1000.0)
            except asyncio.CancelledError:
                cancelled.set()
                await asyncio.sleep(10.0)

    handler = WorkHandler(env, stubborn)
    await env.produce(5, [0])
    async with (
        member(env, rebalance_timeout=20.0) as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("record 0@2")
        bob = await env.member("bob", rebalance_timeout=20.0)
        await cancelled.wait()
        await handler.until("assigned [0, 1]")
        assert bob.log.handled == [("orders", 0, offset) for offset in (2, 3, 4)]
        commits = [
            partition.committed_offset
            for exchange in env.cluster.history.of("OffsetCommit")
            for topic, answered in zip(exchange.request.topics, exchange.response.topics, strict=True)
            for partition, answer in zip(topic.partitions, answered.partitions, strict=True)
            if not answer.error_code
        ]
        assert commits == [2, 5], "never backwards"
        await bob.leave()


# -- a member is lost ---------------------------------------------------------------------------------------------------


async def test_lost_when_fenced(env: VirtualEnvironment):
    """Iterators stop, on_lost is called instead of on_revoked, nothing is committed, run() joins again."""
    gate, ends = Gate(0, 2), SessionEndHook()
    handler = WorkHandler(env, gate)
    await env.produce(5, [0])
    env.cluster.faults.on("Heartbeat").error(ErrorCode.UNKNOWN_MEMBER_ID)
    async with (
        member(env, hooks=(ends,), auto_commit_interval=3000.0) as group,
        running(group.run("orders", handler)),
    ):
        await gate.reached.wait()
        await env.bell.until(lambda: handler.sessions[0].ended, "the loss seen", env.limit)
        assert handler.sessions[0].is_lost
        gate.open.set()
        await handler.until("cleanup")
        assert handler.calls[handler.calls.index("end 0") :][:3] == ["end 0", "lost [0, 1, 2, 3]", "cleanup"]
        assert "record 0@3" not in handler.calls[: handler.calls.index("cleanup")]
        assert committed(env) == {}
        assert env.cluster.history.of("OffsetCommit") == []
        await handler.until("claim 0@0", 2)  # again from the start: nothing was committed
        await handler.until("done 0@4")
        assert ends.names == ["MemberLost"]


@pytest.mark.parametrize("handler_time", [0.0, 5.0])
async def test_lost_when_no_broker_answers(env: VirtualEnvironment, handler_time: float):
    """The session ends exactly session_timeout after the last response of any broker."""
    ends, lost_at = SessionEndHook(), []

    async def work(session: Session, _claim: Claim, _record: Record) -> None:
        await session.wait_ended()
        lost_at.append(now())
        await asyncio.sleep(handler_time)

    handler = WorkHandler(env, work)
    await env.produce(5, [0])
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("record 0@0")
        await asyncio.sleep(4.0)
        last_response_at = group.cluster._inner.last_response_at
        env.network.blackhole("10.2.0.1")
        await env.bell.until(lambda: ends.names == ["MemberLost"], "the loss", env.limit)
        assert lost_at == [pytest.approx(last_response_at + env.session_timeout, abs=0.01)]
        assert committed(env) == {}
        env.network.heal()
        await handler.until("record 0@0", 2)


async def test_one_node_that_answers_keeps_a_session_alive(env: VirtualEnvironment):
    """While any broker answers, the coordinator may be down for minutes: claims continue and marks wait."""
    handler, ends = WorkHandler(env), SessionEndHook()
    await env.produce(5, [0])
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        await asyncio.sleep(2.0)
        assert committed(env) == {0: 5}
        for api in ("Heartbeat", "OffsetCommit"):
            env.cluster.faults.on(api, times=None).error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        env.cluster.faults.on("FindCoordinator", times=None).error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        await env.produce(5, [0])
        await handler.until("done 0@9")
        await asyncio.sleep(60.0)
        assert ends.names == []
        assert committed(env) == {0: 5}
        assert not handler.sessions[0].ended


# -- consume_claim returns ----------------------------------------------------------------------------------------------


async def test_claim_returned(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture):
    """The session ends for all claims; marks are committed; one warning names the claim."""
    ends = SessionEndHook()

    handler = ClaimReturns(env)
    handler.last = 2
    await env.produce(5, [0, 1])
    async with member(env, hooks=(ends,)) as group:
        with caplog.at_level(logging.WARNING, "asyncgroup"):
            await group.consume("orders", handler)
        assert ends.names == ["ClaimReturned"]
        assert "end 0" in handler.calls
        assert handler.calls[-2:] == ["revoked [0, 1, 2, 3]", "cleanup"]
        assert committed(env)[1] == 3
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "orders-1" in warnings[0]


async def test_claim_returned_and_run_joins_again_after_backoff(env: VirtualEnvironment):
    ends = SessionEndHook()
    starts: list[float] = []

    class Returns(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            self.note("returned")

        async def setup(self, session: Session) -> None:
            starts.append(now())

    async with member(env, hooks=(ends,), retry_backoff=1.0, retry_backoff_max=8.0) as group:
        handler = Returns(env)
        async with running(group.run("orders", handler)) as consuming:
            await handler.until("returned", 16)
            assert not consuming.done()
    assert set(ends.names[:4]) == {"ClaimReturned"}
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert pauses[0] >= 0.8
    assert pauses[2] >= 3.2
