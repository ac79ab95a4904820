"""The group's coordinator is suspended for longer than a session, and resumes when another broker has taken over.

In its state the members' sessions have expired: it refuses the requests it received (UNKNOWN_MEMBER_ID, or
ILLEGAL_GENERATION, FENCED_INSTANCE_ID), until it learns that it is not the coordinator any more.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from asyncgroup import ErrorCode as E
from tests.profiles import thinned
from tests.scenario.brokers.frozen_coordinator import FrozenCoordinator
from tests.scenario.support import (
    SessionEndHook,
    WorkHandler,
    committed,
    group_requests,
    member,
    now,
    orders,
    running,
)
from tests.stories.virtual import VirtualEnvironment

REFUSALS = [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.FENCED_INSTANCE_ID]


def on_another_node(frozen: FrozenCoordinator) -> int:
    """Return a partition that the frozen broker does not lead."""
    cluster = frozen.env.cluster
    return next(p for p in range(4) if cluster.leader("orders", p) != frozen.node)


async def after_a_heartbeat(env: VirtualEnvironment) -> FrozenCoordinator:
    """Return the coordinator, frozen just after it has answered a heartbeat."""
    beats = len(env.cluster.history.of("Heartbeat"))
    history = env.cluster.history
    await env.bell.until(lambda: len(history.of("Heartbeat")) > beats, "a heartbeat", env.limit)
    await asyncio.sleep(0.1)
    frozen = FrozenCoordinator(env)
    frozen.freeze()
    return frozen


async def go_on(env: VirtualEnvironment, handler: WorkHandler) -> None:
    """Check that records are handled and committed as before."""
    await env.produce(1, [0])
    last = env.produced[orders(0)]
    await handler.until(f"done 0@{last - 1}")
    await env.bell.until(lambda: committed(env).get(0) == last, f"a commit at {last}", env.limit)


@pytest.mark.parametrize(
    ("code", "instance_id", "lookups"),
    thinned(itertools.product(REFUSALS, [None, "desk-1"], [False, True]), every=5),
)
async def test_the_late_refusal_of_a_heartbeat_does_not_end_the_session(
    env: VirtualEnvironment, code: E, instance_id: str | None, lookups: bool
):
    """The last lookup before the failover still named the old coordinator, so a heartbeat is pending there."""
    handler, ends = WorkHandler(env), SessionEndHook()
    await env.produce(5, [0])
    async with (
        member(env, hooks=(ends,), group_instance_id=instance_id) as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("done 0@4")
        frozen = await after_a_heartbeat(env)
        await asyncio.sleep(env.heartbeat_interval + env.session_timeout / 3 + 2.0)
        with frozen.answering_from_stale_state(code, lookups=lookups) as faults:
            frozen.fail_over()
            frozen.thaw()
            await asyncio.sleep(1.0)
            assert faults[0].hits, "no heartbeat was refused: the test tests nothing"
        assert ends.names == []
        await asyncio.sleep(2 * env.session_timeout)
        assert ends.names == []
        assert env.cluster.group("g").generation == 1
        await go_on(env, handler)


@pytest.mark.parametrize(
    ("code", "instance_id", "lookups"),
    thinned(itertools.product(REFUSALS, [None, "desk-1"], [False, True]), every=5),
)
async def test_the_late_refusal_of_a_commit_does_not_end_the_session(
    env: VirtualEnvironment, code: E, instance_id: str | None, lookups: bool
):
    """The commit was retried at the old coordinator, which a lookup still named; no heartbeat is due."""
    handler, ends = WorkHandler(env), SessionEndHook()
    config = {
        "group_instance_id": instance_id,
        "heartbeat_interval": 8.0,
        "request_timeout": 2.0,
        "auto_commit_interval": 0.5,
    }
    async with member(env, hooks=(ends,), **config) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        frozen = await after_a_heartbeat(env)
        partition = on_another_node(frozen)
        await env.produce(1, [partition])
        await asyncio.sleep(4.0)
        with frozen.answering_from_stale_state(code, lookups=lookups) as faults:
            frozen.fail_over()
            frozen.thaw()
            await asyncio.sleep(1.0)
            assert faults[1].hits, "no commit was refused: the test tests nothing"
        assert committed(env) == {partition: 1}
        await asyncio.sleep(2 * env.session_timeout)
        assert ends.names == []
        assert env.cluster.group("g").generation == 1
        await go_on(env, handler)


@pytest.mark.parametrize("by_commit", [False, True])
async def test_a_member_that_the_new_coordinator_does_not_know_is_lost_at_once(
    handler: WorkHandler, ends: SessionEndHook, env: VirtualEnvironment, by_commit: bool
):
    """The new coordinator confirms the refusal: the session ends at once."""
    interval = 0.5 if by_commit else 3000.0
    async with (
        member(env, hooks=(ends,), auto_commit_interval=interval) as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("claim 3@0")
        await asyncio.sleep(1.1 * env.heartbeat_interval)
        FrozenCoordinator(env).fail_over()
        on = env.cluster.faults.on
        refusal = on("OffsetCommit" if by_commit else "Heartbeat", nth=2, times=None)
        refusal.error(E.UNKNOWN_MEMBER_ID)
        also = on("Heartbeat", times=None).optional()
        if by_commit:
            also.error(E.UNKNOWN_MEMBER_ID)
            await env.produce(1, [0])
        await refusal.wait_hit()
        began = now()
        await handler.until("cleanup")
        assert now() - began < 0.1
        refusal.cancel()
        also.cancel()
        await handler.until("setup", 2)
        assert ends.names == ["MemberLost"]


async def test_a_refusal_by_the_coordinator_of_the_last_heartbeat_needs_no_second_one(
    handler: WorkHandler, ends: SessionEndHook, env: VirtualEnvironment
):
    """The same coordinator answered before, so no lookup and no further heartbeat are needed."""
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        await asyncio.sleep(2.5 * env.heartbeat_interval)
        env.cluster.faults.on("Heartbeat").error(E.UNKNOWN_MEMBER_ID)
        before = len(group_requests(env))
        await handler.until("setup", 2)
        assert group_requests(env)[before : before + 2] == [
            "Heartbeat UNKNOWN_MEMBER_ID",
            "JoinGroup MEMBER_ID_REQUIRED",
        ]
        assert ends.names == ["MemberLost"]


@pytest.mark.parametrize("times", [1, 2])
async def test_the_late_refusal_of_a_join_does_not_cost_the_member_id(env: VirtualEnvironment, times: int):
    """The new coordinator still has the member, and would wait for its join until the session expires."""
    handler = WorkHandler(env)
    async with member(env, "a") as group, running(group.run("orders", handler)):
        await handler.until("setup")
        first = handler.sessions[0].member_id
        refused = env.cluster.faults.on("JoinGroup", where=lambda r: r.member_id == first, times=times)
        refused.error(E.UNKNOWN_MEMBER_ID)
        lookups = len(env.cluster.history.of("FindCoordinator", client_id="a"))
        begun = now()
        other = WorkHandler(env)
        async with member(env, "b") as late, running(late.run("orders", other)):
            await other.until("setup")
            assert (handler.sessions[-1].member_id == first) is (times == 1)
            if times == 1:
                assert len(env.cluster.history.of("FindCoordinator", client_id="a")) == lookups + 1
                assert now() - begun < env.heartbeat_interval + 1
