"""The last commit and LeaveGroup are retried as long as the end may take: the coordinator may come back in that time.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import CommitFailedError, ConsumerGroup, ErrorCode as E
from tests.scenario.brokers.frozen_coordinator import FrozenCoordinator
from tests.scenario.support import Gate, SessionEndHook, WorkHandler, committed, member, now, running
from tests.stories.virtual import HOST, VirtualEnvironment

NAME = {"ids": lambda code: code.name}
PASSING = [E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS]
CLOSE = {"close_timeout": 20.0, "auto_commit_interval": 3000.0}


class Failures:
    """A hook that records failed commits."""

    def __init__(self) -> None:
        self.count = 0

    def on_commit(self, _group_id: str, _offsets: object, error: object) -> None:
        self.count += error is not None


@pytest.mark.parametrize("code", PASSING, **NAME)
async def test_a_close_retries_on_errors_of_the_coordinator(env: VirtualEnvironment, code: E):
    handler = WorkHandler(env)
    await env.produce(5, [0])
    async with member(env, **CLOSE) as group, running(group.run("orders", handler)) as consuming:
        await handler.until("done 0@4")
        for api in ("OffsetCommit", "LeaveGroup"):
            env.cluster.faults.on(api, times=7).error(code)
        begun = now()
        await group.aclose()
        await consuming
        assert 4.0 < now() - begun < 20.0
    assert committed(env) == {0: 5}
    assert env.cluster.group("g").members == {}


async def close_without_coordinator(env: VirtualEnvironment, group: ConsumerGroup) -> asyncio.Task[None]:
    """Make the coordinator's connections fail, and begin to close the group."""
    node = env.cluster.nodes[env.cluster.coordinator("g")]
    env.network.refuse(HOST, node.port)
    env.network.cut(HOST, node.port)
    return asyncio.create_task(group.aclose())


@pytest.mark.parametrize("times", [1, 6])
async def test_a_close_retries_on_refused_connections(env: VirtualEnvironment, times: int):
    """The coordinator is down for some seconds and is not replaced."""
    handler = WorkHandler(env)
    await env.produce(5, [0])
    async with member(env, **CLOSE) as group, running(group.run("orders", handler)) as consuming:
        await handler.until("done 0@4")
        closing = await close_without_coordinator(env, group)
        await asyncio.sleep(times)
        assert not closing.done()
        env.network.heal()
        await asyncio.wait_for(closing, 3.0)
        await consuming
    assert committed(env) == {0: 5}
    assert env.cluster.group("g").members == {}


async def test_the_leave_alone_is_retried_while_connections_are_refused(env: VirtualEnvironment):
    """The member has nothing to commit."""
    handler = WorkHandler(env)
    async with member(env, **CLOSE) as group, running(group.run("orders", handler)) as consuming:
        await handler.until("claim 3@0")
        closing = await close_without_coordinator(env, group)
        await asyncio.sleep(5.0)
        env.network.heal()
        await asyncio.wait_for(closing, 3.0)
        await consuming
    assert env.cluster.group("g").members == {}


@pytest.mark.parametrize("marks", [0, 5])
async def test_a_close_at_a_frozen_coordinator_uses_the_new_one(env: VirtualEnvironment, marks: int):
    """A leaving member sends no heartbeats: LeaveGroup itself must detect that it is not answered."""
    handler = WorkHandler(env)
    if marks:
        await env.produce(marks, [0])
    async with member(env, **CLOSE) as group, running(group.run("orders", handler)) as consuming:
        await handler.until(f"done 0@{marks - 1}" if marks else "claim 3@0")
        frozen = FrozenCoordinator(env)
        frozen.freeze()
        closing = asyncio.create_task(group.aclose())
        await asyncio.sleep(2.0)
        frozen.fail_over()
        await asyncio.wait_for(closing, 12.0)
        await consuming
        assert env.cluster.group("g").members == {}
        assert committed(env) == ({0: marks} if marks else {})
        frozen.thaw()


async def test_a_close_ends_in_time_if_no_broker_comes_back(env: VirtualEnvironment, caplog):
    handler, failures = WorkHandler(env), Failures()
    await env.produce(5, [0])
    config = {"close_timeout": 8.0, "auto_commit_interval": 3000.0, "session_timeout": 30.0}
    async with (
        member(env, hooks=(failures,), **config) as group,
        running(group.run("orders", handler)) as consuming,
    ):
        await handler.until("done 0@4")
        env.network.refuse(HOST)
        env.network.cut(HOST)
        begun = now()
        await group.aclose()
        assert 7.0 < now() - begun <= 8.01
        await consuming
        env.network.heal()
    assert failures.count >= 6
    texts = [record.getMessage() for record in caplog.records]
    assert any("the last commit took too long" in text and "refused" in text for text in texts), texts
    assert any("could not leave" in text for text in texts), texts


async def test_a_close_does_not_wait_for_a_deleted_topic(handler: WorkHandler, env: VirtualEnvironment):
    """The coordinator works, so the commit is retried only `commit_retry_max` times."""
    await env.produce(5, [0])
    env.cluster.faults.on("OffsetCommit", times=None).error(E.UNKNOWN_TOPIC_OR_PARTITION)
    async with member(env, **CLOSE) as group, running(group.run("orders", handler)) as consuming:
        await handler.until("done 0@4")
        begun = now()
        await group.aclose()
        await consuming
        assert now() - begun < 1.5
    assert len(env.cluster.history.of("OffsetCommit")) == 4


@pytest.mark.parametrize("code", PASSING, **NAME)
async def test_a_revoke_retries_on_errors_of_the_coordinator(env: VirtualEnvironment, code: E):
    """The group waits for the member that long anyway, and no record is handled twice."""
    gate, ends = Gate(0, 4), SessionEndHook()
    handler = WorkHandler(env, gate)
    await env.produce(5, [0])
    config = {"auto_commit_interval": 3000.0, "rebalance_timeout": 20.0}
    async with member(env, hooks=(ends,), **config) as group, running(group.run("orders", handler)):
        await gate.reached.wait()
        env.cluster.faults.on("OffsetCommit", client_id="ann", times=8).error(code)
        bob = await env.member("bob", rebalance_timeout=20.0)
        gate.open.set()
        await handler.until("setup", 2)
        assert ends.names == ["Rebalanced"]
        assert committed(env)[0] == 5
        assert handler.sessions[1].member_id == handler.sessions[0].member_id
        await handler.until("assigned [0, 1]")
        assert bob.log.handled == []
        await bob.leave()


async def test_a_revoke_joins_in_time_if_the_commit_never_succeeds(env: VirtualEnvironment):
    """The commit is retried for `rebalance_timeout` less the reserve, so the member stays in the group."""
    gate, ends = Gate(0, 4), SessionEndHook()
    handler = WorkHandler(env, gate)
    await env.produce(5, [0])
    config = {"auto_commit_interval": 3000.0, "rebalance_timeout": 10.0}
    async with member(env, hooks=(ends,), **config) as group, running(group.run("orders", handler)):
        await gate.reached.wait()
        errors = group.errors()
        fault = env.cluster.faults.on("OffsetCommit", client_id="ann", times=None)
        fault.error(E.COORDINATOR_LOAD_IN_PROGRESS)
        bob = await env.member("bob", rebalance_timeout=10.0)
        gate.open.set()
        begun = now()
        await handler.until("setup", 2)
        assert 6.0 < now() - begun < 10.0
        assert ends.names == ["Rebalanced"]
        assert handler.sessions[1].member_id == handler.sessions[0].member_id
        assert any([isinstance(await anext(errors), CommitFailedError) for _ in range(1)])
        fault.cancel()
        await bob.leave()
