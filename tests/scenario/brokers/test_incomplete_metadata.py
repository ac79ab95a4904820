"""A single incomplete response changes nothing: a restarted broker may not know all topics yet.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.wire import messages as m
from tests.scenario.support import SessionEndHook, WorkHandler, member, now, running
from tests.stories.virtual import VirtualEnvironment


def unknown(response: Any) -> Any:
    """Return the response without topics."""
    for topic in response.topics:
        topic.error_code, topic.topic_id, topic.partitions = 3, m.NO_UUID, []
    return response


def empty(response: Any) -> Any:
    """Return the response without partitions."""
    for topic in response.topics:
        topic.partitions = []
    return response


@pytest.mark.parametrize("lie", [unknown, empty])
async def test_the_leader_checks_twice_before_it_assigns(env: VirtualEnvironment, lie: Any):
    """The metadata response with the partition counts has no partitions."""
    ann = await env.member("ann", metadata_refresh_interval=300.0)
    await env.settled(ann)
    env.cluster.faults.on("Metadata", client_id="ann").mutate(lie)
    bob = await env.member("bob", metadata_refresh_interval=300.0)
    group = await env.settled(ann, bob)
    assert group.generation == 2
    assert group.assignment == {"ann": {"orders": [0, 1]}, "bob": {"orders": [2, 3]}}
    await asyncio.sleep(30.0)
    assert env.cluster.group("g").generation == 2


@pytest.mark.parametrize("lie", [unknown, empty])
async def test_the_leader_checks_twice_before_a_rebalance(env: VirtualEnvironment, lie: Any):
    """The topic is missing in a periodic refresh."""
    handler, ends = WorkHandler(env), SessionEndHook()
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        fault = env.cluster.faults.on("Metadata", client_id="ann").mutate(lie)
        await fault.wait_hit()
        await asyncio.sleep(30.0)
        assert ends.names == []
        assert env.cluster.group("g").generation == 1


async def test_an_offset_fetch_without_groups_resets_nothing(handler: WorkHandler, env: VirtualEnvironment):
    """The request is repeated, instead of starting at `auto_offset_reset`."""
    await env.produce(5, [0])
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")

    def without_groups(response: Any) -> Any:
        response.groups = []
        return response

    env.cluster.faults.on("OffsetFetch").mutate(without_groups)
    again = WorkHandler(env)
    async with member(env) as group, running(group.run("orders", again)):
        await again.until("claim 0@5")


@pytest.mark.parametrize("instance_id", [None, "desk-1"])
async def test_a_cancelled_join_delays_no_other(env: VirtualEnvironment, instance_id: str | None):
    """It is pending at the coordinator; the next join of the same group object uses another connection."""
    handler = WorkHandler(env)
    config = {"group_instance_id": instance_id, "rebalance_timeout": 60.0}
    bob = await env.member("bob")
    await env.settled(bob)
    async with member(env, **config) as group:
        parked = env.cluster.faults.on("JoinGroup", client_id="ann", nth=1 if instance_id else 2).hold()
        async with running(group.run("orders", handler)) as consuming:
            await parked.wait_hit()
            open_before = set(env.network.connections("10.2.0.1"))
            consuming.cancel()
            await asyncio.wait([consuming])
        closed = open_before - set(env.network.connections("10.2.0.1"))
        assert len(closed) == 1, "the join's connection"
        begun = now()
        async with running(group.run("orders", handler)):
            await handler.until("setup")
            assert now() - begun < 2 * env.heartbeat_interval
        parked.release()
    await bob.leave()
