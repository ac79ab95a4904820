"""Static members (KIP-345): a restart within the session costs no rebalance."""

from __future__ import annotations

import pytest

from tests.stories import membership
from tests.stories.environment import Group
from tests.stories.virtual import VirtualEnvironment, lines

pytestmark = pytest.mark.asyncio


async def desks(env: VirtualEnvironment):
    """Ann, who leads, and bob."""
    ann = await env.member("ann", group_instance_id="desk-a")
    await env.settled(ann)
    bob = await env.member("bob", group_instance_id="desk-b")
    before = await env.settled(ann, bob)
    assert before == Group(2, "ann", {"ann": {"orders": [0, 1]}, "bob": {"orders": [2, 3]}})
    env.requests()
    return ann, bob


async def test_the_leader_restarts(env: VirtualEnvironment):
    """The returning leader is told to skip the assignment: its SyncGroup carries no plan."""
    await membership.static_leader_restarts(env)
    assert [line for line in env.chapters["ann restarts"] if not line.startswith("bob")] == lines("""
        ann OffsetCommit
        ann-again FindCoordinator
        ann-again JoinGroup
        ann-again SyncGroup
        ann-again OffsetFetch
    """)


async def test_a_follower_restarts(env: VirtualEnvironment):
    ann, bob = await desks(env)
    await bob.leave()
    again = await env.member("bob-again", group_instance_id="desk-b")
    group = await env.settled(ann, again)
    assert group == Group(2, "ann", {"ann": {"orders": [0, 1]}, "bob-again": {"orders": [2, 3]}})
    assert len(ann.log.sessions) == 2
    assert ann.log.sessions[0].cause == "Rebalanced"  # when bob came first


async def test_one_that_does_not_come_back(env: VirtualEnvironment):
    """Its partitions wait for its session's end, then go to the others."""
    ann, bob = await desks(env)
    await bob.leave()
    await env.produce(5, range(4))
    assert await env.settled(ann) == Group(3, "ann", {"ann": {"orders": [0, 1, 2, 3]}})
    await env.all_handled()
