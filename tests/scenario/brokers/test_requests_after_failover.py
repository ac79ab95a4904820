"""Requests that are pending at a frozen coordinator are sent to the new one as soon as it is known.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import CommitFailedError
from asyncgroup.broker import Exchange
from tests.scenario.brokers.frozen_coordinator import FrozenCoordinator
from tests.scenario.brokers.test_frozen_coordinator import after_a_heartbeat, go_on, on_another_node
from tests.scenario.support import SessionEndHook, WorkHandler, committed, member, now, running
from tests.stories.virtual import VirtualEnvironment


def first_at_another(env: VirtualEnvironment, frozen: FrozenCoordinator, api: str) -> Exchange:
    """Return the first request of this API that another broker served after the coordinator was frozen."""
    return next(
        e
        for e in env.cluster.history.of(api, client_id="ann")
        if e.node_id != frozen.node and e.response is not None
    )


@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize("known_after", [1.0, 7.0, 8.0])
async def test_commits_reach_the_new_coordinator_with_the_heartbeats(
    handler: WorkHandler, ends: SessionEndHook, env: VirtualEnvironment, known_after: float, automatic: bool
):
    """The old one stays frozen: no request waits for it, and session.commit() does not fail."""
    config = {"auto_commit_interval": 0.5} if automatic else {"auto_commit": False}
    async with member(env, hooks=(ends,), **config) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        frozen = await after_a_heartbeat(env)
        partition = on_another_node(frozen)
        await env.produce(1, [partition])
        await handler.until(f"done {partition}@0")
        commit = None if automatic else asyncio.create_task(handler.sessions[0].commit())
        await asyncio.sleep(known_after)
        frozen.fail_over()
        await env.bell.until(lambda: committed(env) == {partition: 1}, "the commit", 30.0)
        await asyncio.sleep(env.heartbeat_interval)
        beat = first_at_another(env, frozen, "Heartbeat")
        found = first_at_another(env, frozen, "OffsetCommit")
        assert found.time - beat.time < 1.0
        if commit is not None:
            await commit
        frozen.thaw()
        if automatic:
            await go_on(env, handler)
        assert ends.names == []


async def test_marks_of_an_abandoned_commit_are_committed_again_at_the_end(env: VirtualEnvironment):
    """The old coordinator may process it after newer commits: the last commit repeats its partitions."""
    handler = WorkHandler(env)
    async with (
        member(env, auto_commit_interval=0.5) as group,
        running(group.run("orders", handler)) as consuming,
    ):
        await handler.until("claim 3@0")
        frozen = await after_a_heartbeat(env)
        partition = on_another_node(frozen)
        await env.produce(1, [partition])
        await asyncio.sleep(1.0)
        frozen.fail_over()
        await env.bell.until(lambda: committed(env) == {partition: 1}, "the commit", 30.0)
        commits = len(env.cluster.history.of("OffsetCommit", client_id="ann"))
        await group.aclose()
        await consuming
        assert len(env.cluster.history.of("OffsetCommit", client_id="ann")) == commits + 1
        frozen.thaw()


async def test_the_start_of_a_session_does_not_wait_for_the_frozen_one(env: VirtualEnvironment):
    """Its OffsetFetch is pending there; the heartbeats, which already run, find the new coordinator."""
    handler, ends = WorkHandler(env), SessionEndHook()
    await env.produce(5, range(4))
    frozen = FrozenCoordinator(env)
    fetch = env.cluster.faults.on("OffsetFetch", node=frozen.node).hold()
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await fetch.wait_hit()
        begun = now()
        frozen.freeze()
        await asyncio.sleep(7.0)
        frozen.fail_over()
        await handler.until("setup")
        found = first_at_another(env, frozen, "OffsetFetch")
        assert found.time - begun < 10.5, (
            "less than the 16.4 s after which connecting to the frozen one times out"
        )
        fetch.release()
        frozen.thaw()
        await handler.until("done 0@4")
        assert ends.names == []


async def test_a_pending_sync_group_is_replaced_by_a_join_at_the_new_coordinator(env: VirtualEnvironment):
    """SyncGroup is pending at the frozen one; heartbeats already run, and the member joins again with its id."""
    handler = WorkHandler(env)
    frozen = FrozenCoordinator(env)
    sync = env.cluster.faults.on("SyncGroup", node=frozen.node).hold()
    async with member(env) as group, running(group.run("orders", handler)):
        await sync.wait_hit()
        begun = now()
        frozen.freeze()
        await asyncio.sleep(1.0)
        frozen.fail_over()
        await handler.until("setup")
        assert now() - begun < env.heartbeat_interval + env.session_timeout / 3 + 2.5
        frozen.thaw()
        sync.release()
        assert len(env.cluster.group("g").members) == 1


async def test_a_commit_fails_when_there_is_no_coordinator(handler: WorkHandler, env: VirtualEnvironment):
    """If no new coordinator is found, a commit is retried `commit_retry_max` times."""
    async with member(env, auto_commit=False) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        await env.produce(1, [0])
        await handler.until("done 0@0")
        env.cluster.faults.on("OffsetCommit", times=4).disconnect("before")
        with pytest.raises(CommitFailedError):
            await handler.sessions[0].commit()
        await handler.sessions[0].commit()
