"""Regression tests for bugs that `python -m tests.simulate` found.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

from tests.scenario.support import WorkHandler, member, running
from tests.stories.virtual import VirtualEnvironment


async def test_a_topic_that_grew_while_its_static_leader_was_away(env: VirtualEnvironment):
    """The returning leader finds its old assignment in use (KIP-814), which lacks the new partitions, and replaces it."""
    first = WorkHandler(env)
    async with member(env, group_instance_id="place") as group, running(group.run("orders", first)):
        await first.until("assigned [0, 1, 2, 3]")
        await group.aclose()
    env.cluster.create_partitions("orders", 6)
    await env.produce(1, [5])
    again = WorkHandler(env)
    async with member(env, group_instance_id="place") as group, running(group.run("orders", again)):
        await again.until("done 5@0")
    assert "assigned [0, 1, 2, 3]" in again.calls
    assert "assigned [0, 1, 2, 3, 4, 5]" in again.calls
    assert env.cluster.history.of("DescribeGroups", client_id="ann")


async def test_a_static_leader_that_comes_back_to_the_same_topic_sends_no_new_assignment(
    env: VirtualEnvironment,
):
    for _ in range(2):
        handler = WorkHandler(env)
        async with member(env, group_instance_id="place") as group, running(group.run("orders", handler)):
            await handler.until("assigned [0, 1, 2, 3]")
            await asyncio.sleep(30.0)
            assert handler.calls.count("assigned [0, 1, 2, 3]") == 1
            await group.aclose()
    assert env.cluster.group("g").generation == 1
