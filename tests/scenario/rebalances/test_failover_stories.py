"""The stories of `tests/stories/failover.py` in virtual time, with every request that the members send."""

from __future__ import annotations

import asyncio

from tests.scenario.rebalances.test_membership_stories import ANN_JOINS, BOB_IS_ALONE, BOB_JOINS
from tests.stories import failover, membership
from tests.stories.virtual import VirtualEnvironment, lines

ANN_TAKES_OVER = """
    ann OffsetCommit
    ann Heartbeat × 3
    ann Heartbeat REBALANCE_IN_PROGRESS
    ann JoinGroup
    ann SyncGroup with the plan
    ann OffsetFetch
"""


async def test_crash_found_by_expiry(env: VirtualEnvironment):
    await failover.crash_found_by_expiry(env)
    assert env.chapters["both consume"] == lines(ANN_JOINS + BOB_JOINS)
    assert env.chapters["bob dies"] == lines(ANN_TAKES_OVER)


async def test_a_consumer_dies(env: VirtualEnvironment):
    await failover.a_consumer_dies(env)
    assert env.chapters["both consume"] == lines(ANN_JOINS + BOB_JOINS)
    assert env.chapters["ann dies"] == lines("bob OffsetCommit\n bob Heartbeat × 3" + BOB_IS_ALONE)


async def test_coordinator_dies(env: VirtualEnvironment):
    await failover.coordinator_dies(env)
    assert env.chapters["both consume"] == [
        *lines(ANN_JOINS + BOB_JOINS),
        "ann OffsetCommit",
        "bob OffsetCommit",
    ]
    # no join: the new coordinator has loaded the group from the log
    assert env.chapters["the coordinator dies"] == lines("""
        ann FindCoordinator @ 3
        bob FindCoordinator @ 2
        ann OffsetCommit @ 3
        bob OffsetCommit @ 3
    """)
    assert env.chapters["time passes"] == ["ann Heartbeat @ 3", "bob Heartbeat @ 3"] * 4
    assert env.chapters["ann leaves"] == ["ann LeaveGroup", *lines(BOB_IS_ALONE)]


async def test_a_zombie_wakes(env: VirtualEnvironment):
    await failover.a_zombie_wakes(env)
    assert env.chapters["zed is stopped"] == [*lines(ANN_TAKES_OVER), "ann OffsetCommit"]
    # the requests that zed sent while it was cut off are answered now; none is a commit
    assert env.chapters["zed wakes"] == lines("""
        zed FindCoordinator × 2
        zed Heartbeat UNKNOWN_MEMBER_ID
        zed FindCoordinator × 2
        zed JoinGroup UNKNOWN_MEMBER_ID
        zed FindCoordinator
        zed JoinGroup UNKNOWN_MEMBER_ID
        zed JoinGroup MEMBER_ID_REQUIRED
        zed JoinGroup
        ann Heartbeat REBALANCE_IN_PROGRESS
        ann JoinGroup
        zed SyncGroup
        ann SyncGroup with the plan
        ann OffsetFetch
        zed OffsetFetch
    """)


async def test_coordinator_moves(env: VirtualEnvironment):
    """The old node answers NOT_COORDINATOR: each member looks up the new one, without a join or duplicates."""
    ann, bob = await membership.both(env)
    before = await env.settled(ann, bob)
    env.requests()
    env.cluster.move_coordinator("g", 2 if env.cluster.coordinator("g") != 2 else 3)
    await env.produce(5, range(4))
    await env.all_handled()
    await asyncio.sleep(2 * env.session_timeout)
    assert await env.settled(ann, bob) == before
    seen = env.requests()
    assert seen[:6] == lines("""
        ann OffsetCommit NOT_COORDINATOR
        bob OffsetCommit NOT_COORDINATOR
        ann FindCoordinator
        ann OffsetCommit
        bob FindCoordinator
        bob OffsetCommit
    """)
    assert set(seen[6:]) == {"ann Heartbeat", "bob Heartbeat"}
    everything = ann.log.handled + bob.log.handled
    assert len(everything) == len(set(everything)) == 20


async def test_coordinator_dies_during_a_rebalance(env: VirtualEnvironment):
    """Carl's join is pending there. The new coordinator has the group without him, and he joins again."""
    ann, bob = await membership.both(env)
    before = await env.settled(ann, bob)
    carl = await env.member("carl")
    await env.bell.until(
        lambda: env.cluster.group("g").state == "PreparingRebalance", "a parked join", env.limit
    )
    await env.kill_node(env.cluster.coordinator("g"))
    env.admin.cluster.coordinators.mark_unknown("g")
    group = await env.settled(ann, bob, carl)
    assert group.generation == before.generation + 1
    assert group.assignment == {
        "ann": {"orders": [0, 1]},
        "bob": {"orders": [2]},
        "carl": {"orders": [3]},
    }
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()


async def test_every_node_restarts_one_after_the_other(env: VirtualEnvironment):
    """A rolling restart of the cluster does not end the members' sessions."""
    ann, bob = await membership.both(env)
    before = await env.settled(ann, bob)
    for node in (1, 2, 3):
        await env.cluster.stop_node(node)
        await env.produce(3, range(4))
        await asyncio.sleep(5.0)
        await env.cluster.start_node(node)
        await asyncio.sleep(5.0)
    await env.all_handled()
    await env.all_committed()
    env.admin.cluster.coordinators.mark_unknown("g")
    assert await env.settled(ann, bob) == before
    assert len(bob.log.sessions) == 1


async def test_the_whole_cluster_is_down_for_long(env: VirtualEnvironment):
    """All nodes are down for two minutes: the sessions are lost but no records, and all members join again."""
    ann, bob = await membership.both(env)
    await env.settled(ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    for node in (1, 2, 3):
        await env.cluster.stop_node(node)
    await asyncio.sleep(120.0)
    assert [member.log.sessions[-1].cause for member in (ann, bob)] == ["MemberLost", "MemberLost"]
    for node in (1, 2, 3):
        await env.cluster.start_node(node)
    env.admin.cluster.coordinators.mark_unknown("g")
    await env.settled(ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    everything = ann.log.handled + bob.log.handled
    assert len(everything) == len(set(everything)) == 40
