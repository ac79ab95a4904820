"""How a member reacts to each error code of a Heartbeat response (sarama.md 2.7), and to a missing response.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import BrokerError, ErrorCode as E, Session
from tests.scenario.support import (
    SessionEndHook,
    WorkHandler,
    committed,
    group_requests,
    member,
    now,
    running,
)
from tests.stories.virtual import VirtualEnvironment

FIND, ID_REQUIRED, JOIN = "FindCoordinator", "JoinGroup MEMBER_ID_REQUIRED", "JoinGroup"
SYNC, OFFSETS = "SyncGroup with the plan", "OffsetFetch"
BEAT = "Heartbeat"

NAME = {"ids": lambda code: code.name}

LIVES_ON = {
    # the error code: the next requests
    E.NOT_COORDINATOR: [FIND, BEAT],
    E.COORDINATOR_NOT_AVAILABLE: [FIND, BEAT],
    E.COORDINATOR_LOAD_IN_PROGRESS: [f"{BEAT}"],
    E.REQUEST_TIMED_OUT: [f"{BEAT}"],  # any other code that Kafka calls retriable
}

LOST = {
    # an unknown member needs a new id; after ILLEGAL_GENERATION the id is still valid (Java; sarama drops it)
    # while its join waits for the end of the former id's session, the member asks who coordinates
    E.UNKNOWN_MEMBER_ID: [ID_REQUIRED, JOIN, "FindCoordinator", SYNC, OFFSETS],
    E.ILLEGAL_GENERATION: [JOIN, SYNC, OFFSETS],
}

ENDS = [
    E.FENCED_INSTANCE_ID,
    E.GROUP_AUTHORIZATION_FAILED,
    E.INVALID_GROUP_ID,  # any other code that Kafka calls final
    E.UNKNOWN_SERVER_ERROR,
]


@pytest.mark.parametrize("code", LIVES_ON, **NAME)
async def test_errors_that_do_not_end_the_session(env: VirtualEnvironment, code: E):
    """The claims continue, and the next heartbeat is sent after a backoff, before its regular time."""
    handler, ends = WorkHandler(env), SessionEndHook()
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        fault = env.cluster.faults.on("Heartbeat").error(code)
        await fault.wait_hit()
        errors = group.errors()
        before = len(group_requests(env))
        await env.bell.until(lambda: group_requests(env)[-1] == BEAT, "a good heartbeat", env.limit)
        assert group_requests(env)[before:] == LIVES_ON[code]
        bad, good = env.cluster.history.of("Heartbeat")[-2:]
        assert 0.08 <= good.time - bad.time <= 0.12
        assert code.name in str(await anext(errors))
        await env.produce(3, [0])
        await handler.until("done 0@2")
        assert ends.names == []


@pytest.mark.parametrize("code", LOST, **NAME)
async def test_errors_that_lose_the_membership(env: VirtualEnvironment, code: E):
    """Nothing more is committed; run() joins again."""
    handler, ends = WorkHandler(env), SessionEndHook()
    await env.produce(5, [0])
    async with (
        member(env, hooks=(ends,), auto_commit_interval=3000.0) as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("done 0@4")
        first = handler.sessions[0]
        env.cluster.faults.on("Heartbeat").error(code)
        await handler.until("setup", 2)
        assert ends.names == ["MemberLost"]
        assert code.name in str(ends.causes[0])
        assert "lost [0, 1, 2, 3]" in handler.calls
        assert not any(call.startswith("revoked") for call in handler.calls)
        assert group_requests(env)[5:] == [f"Heartbeat {code.name}", *LOST[code]]
        assert (handler.sessions[1].member_id == first.member_id) is (code == E.ILLEGAL_GENERATION)
        assert committed(env) == {}
        await handler.until("claim 0@0", 2)


@pytest.mark.parametrize("code", ENDS, **NAME)
@pytest.mark.parametrize("how", ["consume", "run"])
async def test_final_errors(env: VirtualEnvironment, code: E, how: str):
    """They are raised, with the names of member and group; marks are not committed."""
    handler, ends = WorkHandler(env), SessionEndHook()
    await env.produce(5, [0])
    async with member(env, hooks=(ends,), auto_commit_interval=3000.0) as group:
        env.cluster.faults.on("Heartbeat").error(code)
        with pytest.raises(BrokerError, match=f"'ann-.*'g'.*{code.name}"):
            await getattr(group, how)("orders", handler)
    assert "done 0@4" in handler.calls
    assert "lost [0, 1, 2, 3]" in handler.calls
    assert ends.names == ["MemberLost"]
    assert committed(env) == {}
    # the member id is still valid, so the member sends LeaveGroup
    assert group_requests(env)[5:] == [f"Heartbeat {code.name}", "LeaveGroup"]


async def test_lost_consume_returns(handler: WorkHandler, env: VirtualEnvironment):
    """consume() returns after a loss; only permanent errors are raised."""
    async with member(env) as group:
        env.cluster.faults.on("Heartbeat").error(E.UNKNOWN_MEMBER_ID)
        await group.consume("orders", handler)
        assert handler.sessions[0].is_lost


async def test_rebalance(handler: WorkHandler, ends: SessionEndHook, env: VirtualEnvironment):
    """The member commits its marks under the old generation, then joins again with the same id."""
    await env.produce(5, [0])
    async with (
        member(env, hooks=(ends,), auto_commit_interval=3000.0) as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("done 0@4")
        env.cluster.faults.on("Heartbeat").error(E.REBALANCE_IN_PROGRESS)
        await handler.until("setup", 2)
        rebalance = ["Heartbeat REBALANCE_IN_PROGRESS", "OffsetCommit", JOIN, SYNC, OFFSETS]
        assert group_requests(env)[5:] == rebalance
        assert handler.sessions[0].member_id == handler.sessions[1].member_id
        assert ends.names == ["Rebalanced"]
        await handler.until("claim 0@5")


async def test_heartbeats_continue_while_handlers_drain(env: VirtualEnvironment):
    """A member with slow handlers stays in the group: heartbeats continue during drain, cleanup and commit."""

    async def slow(session: Session, _claim: object, _record: object) -> None:
        await session.wait_ended()
        await asyncio.sleep(25.0)  # longer than the session timeout

    class SlowCleanup(WorkHandler):
        async def cleanup(self, session: Session) -> None:
            await asyncio.sleep(25.0)
            self.note("cleanup")

    handler, ends = SlowCleanup(env, slow), SessionEndHook()
    await env.produce(1, [0])
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("record 0@0")
        first = handler.sessions[0]
        bob = await env.member("bob")
        await handler.until("setup", 2)
        assert ends.names == ["Rebalanced"]
        assert committed(env) == {0: 1}
        assert handler.sessions[1].member_id == first.member_id
        beats = env.cluster.history.of("Heartbeat", client_id="ann")
        assert len([beat for beat in beats if beat.response.error_code == E.REBALANCE_IN_PROGRESS]) >= 15
        await bob.leave()


@pytest.mark.parametrize("when", ["before", "after", "mid-frame"])
async def test_a_cut_connection(handler: WorkHandler, ends: SessionEndHook, env: VirtualEnvironment, when):
    """A lost connection does not end the membership: the member looks up the coordinator and reconnects."""
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        fault = env.cluster.faults.on("Heartbeat").disconnect(when)
        await fault.wait_hit()
        await asyncio.sleep(0.5)
        assert group_requests(env)[-2:] == [FIND, BEAT]
        assert ends.names == []


async def test_a_heartbeat_that_is_never_answered(env: VirtualEnvironment):
    """It times out early enough for another heartbeat within the session, on a new connection."""
    handler, ends = WorkHandler(env), SessionEndHook()
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        env.cluster.faults.on("Heartbeat", nth=2).drop()
        await asyncio.sleep(30.0)
        good, dropped, after, *_ = env.cluster.history.of("Heartbeat")
        assert dropped.time - good.time == pytest.approx(3.0)
        assert after.time - dropped.time == pytest.approx(env.session_timeout / 3 + 0.1, abs=0.03)
        assert ends.names == []
        assert env.cluster.group("g").generation == 1


async def test_a_stuck_commit_does_not_cost_the_membership(env: VirtualEnvironment):
    """Commits and heartbeats share a connection: a heartbeat that waits for a pending commit times out early enough."""
    handler, ends = WorkHandler(env), SessionEndHook()
    await env.produce(1, [0])
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        env.cluster.faults.on("OffsetCommit").drop()
        await handler.until("done 0@0")
        await asyncio.sleep(40.0)
        assert ends.names == []
        assert env.cluster.group("g").generation == 1
        assert committed(env) == {0: 1}


# -- zombies: the coordinator has expelled the member, and the member does not know it yet -------------------------------


async def test_a_zombie_refused_at_its_heartbeat(env: VirtualEnvironment):
    """Its heartbeats were delayed for longer than its session, while it continued to receive records."""
    handler, ends = WorkHandler(env), SessionEndHook()
    await env.produce(5, [0])
    async with (
        member(env, "zed", hooks=(ends,), auto_commit_interval=3000.0) as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("done 0@4")
        held = env.cluster.faults.on("Heartbeat", client_id="zed", times=None).hold()
        await env.bell.until(lambda: env.cluster.group("g").state == "Empty", "expelled", env.limit)
        ann = await env.member("ann")
        await env.settled(ann)
        await env.all_handled()
        await env.produce(5, [0])
        await handler.until("done 0@9")  # a zombie continues until a request is refused
        assert ends.names == []
        held.release()
        await handler.until("setup", 2)
        assert ends.names == ["MemberLost"]
        assert handler.sessions[0].member_id != handler.sessions[1].member_id
        assert env.cluster.history.of("OffsetCommit", client_id="zed") == []


@pytest.mark.parametrize("code", [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION])
async def test_a_zombie_refused_at_its_commit(env: VirtualEnvironment, code: E):
    """A refused commit ends the session at once, before the next record and the next heartbeat."""
    gate = asyncio.Event()

    async def work(_session: Session, _claim: object, record) -> None:
        if (record.partition, record.offset) == (0, 2):
            gate.set()
            await handler.sessions[0].wait_ended()

    handler, ends = WorkHandler(env, work), SessionEndHook()
    await env.produce(5, [0])
    env.cluster.faults.on("OffsetCommit").error(code)
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await gate.wait()
        began = now()
        await handler.until("cleanup")
        assert now() - began < env.heartbeat_interval
        await handler.until("setup", 2)
        assert ends.names == ["MemberLost"]
        assert "record 0@3" not in handler.calls[: handler.calls.index("cleanup")]
        assert committed(env) == {}
        assert (handler.sessions[1].member_id == handler.sessions[0].member_id) is (
            code == E.ILLEGAL_GENERATION
        )


async def test_a_static_zombie_is_fenced(handler: WorkHandler, ends: SessionEndHook, env: VirtualEnvironment):
    """Another process has joined with the same instance id: this member ends and does not join again."""
    async with member(env, group_instance_id="desk-1", hooks=(ends,)) as group:
        async with running(group.run("orders", handler)) as consuming:
            await handler.until("claim 3@0")
            twin = await env.member("twin", group_instance_id="desk-1")
            with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
                await consuming
        await env.settled(twin)
        assert ends.names == ["MemberLost"]
        assert committed(env) == {}
