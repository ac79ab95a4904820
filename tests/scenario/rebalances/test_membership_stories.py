"""The stories of `tests/stories/membership.py` in virtual time, with every request that the members send."""

from __future__ import annotations

import asyncio

from asyncgroup import Claim, Session
from asyncgroup.testing import run_virtual
from tests.scenario.support import WorkHandler, group_requests, member, running
from tests.stories import membership
from tests.stories.virtual import VirtualEnvironment, lines

ANN_JOINS = """
    ann FindCoordinator
    ann JoinGroup MEMBER_ID_REQUIRED
    ann JoinGroup
    ann SyncGroup with the plan
    ann OffsetFetch
"""

BOTH_SYNC = """
    bob SyncGroup
    ann SyncGroup with the plan
    ann OffsetFetch
    bob OffsetFetch
"""

BOB_IS_NEW = """
    bob JoinGroup MEMBER_ID_REQUIRED
    bob JoinGroup
"""

ANN_REJOINS = """
    ann Heartbeat REBALANCE_IN_PROGRESS
    ann JoinGroup
"""

BOB_JOINS = "bob FindCoordinator" + BOB_IS_NEW + ANN_REJOINS + BOTH_SYNC

BOB_LEAVES = """
    bob OffsetCommit
    bob LeaveGroup
"""

BOB_IS_ALONE = """
    bob Heartbeat REBALANCE_IN_PROGRESS
    bob JoinGroup
    bob SyncGroup with the plan
    bob OffsetFetch
"""


async def test_two_joiners(env: VirtualEnvironment):
    await membership.two_joiners(env)
    assert env.chapters["ann joins"] == lines(ANN_JOINS)
    assert env.chapters["bob joins"] == lines(
        "bob FindCoordinator" + BOB_IS_NEW + "ann OffsetCommit" + ANN_REJOINS + BOTH_SYNC
    )


async def test_graceful_leave(env: VirtualEnvironment):
    await membership.graceful_leave(env)
    assert env.chapters["both consume"] == lines(ANN_JOINS + BOB_JOINS)
    assert env.chapters["bob leaves"] == lines(
        BOB_LEAVES + "ann OffsetCommit" + ANN_REJOINS + "ann SyncGroup with the plan\n ann OffsetFetch"
    )


async def test_a_leader_leaves(env: VirtualEnvironment):
    await membership.a_leader_leaves(env)
    assert env.chapters["both consume"] == lines(ANN_JOINS + BOB_JOINS)
    assert env.chapters["ann leaves"] == ["ann LeaveGroup", *lines(BOB_IS_ALONE)]


async def test_partition_increase(env: VirtualEnvironment):
    await membership.partition_increase(env)
    assert env.chapters["both consume"] == lines(ANN_JOINS + BOB_JOINS)
    routine = {"ann Heartbeat", "bob Heartbeat", "ann OffsetCommit", "bob OffsetCommit"}
    assert [line for line in env.chapters["two partitions more"] if line not in routine] == lines(
        "ann JoinGroup\n bob Heartbeat REBALANCE_IN_PROGRESS\n bob JoinGroup" + BOTH_SYNC
    )


async def test_more_members_than_partitions(env: VirtualEnvironment):
    await membership.more_members_than_partitions(env)
    # bob has no partitions and fetches no offsets
    assert env.chapters["bob has nothing"] == lines(ANN_JOINS + BOB_JOINS)[:-1]
    # 15 seconds: each member sends a heartbeat every 3 s
    assert env.chapters["time passes"] == ["ann OffsetCommit"] + ["ann Heartbeat", "bob Heartbeat"] * 5
    assert env.chapters["bob takes over"] == ["ann LeaveGroup", *lines(BOB_IS_ALONE)]


async def test_a_member_changes_its_topics(env: VirtualEnvironment):
    await membership.a_member_changes_its_topics(env)
    assert env.chapters["both consume"] == lines(ANN_JOINS + BOB_JOINS)
    # a cancelled member leaves; the group object then joins as a new member
    assert env.chapters["bob wants payments too"] == lines(
        BOB_LEAVES + BOB_IS_NEW + "ann OffsetCommit" + ANN_REJOINS + BOTH_SYNC
    )
    assert env.chapters["bob wants payments only"] == lines(BOB_LEAVES + BOB_IS_NEW + ANN_REJOINS + BOTH_SYNC)


async def test_topics_changed_within_the_membership(env: VirtualEnvironment):
    """consume() in the user's own loop: the member keeps its id, and one rebalance is enough."""
    await env.create_topic("payments", 2)

    class Leaves(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            self.note(f"claim {claim.topic}-{claim.partition}")
            await self.enough.wait()

    first, second = Leaves(env), Leaves(env)
    first.enough, second.enough = asyncio.Event(), asyncio.Event()
    async with member(env) as group:
        async with running(group.consume("orders", first)) as one:
            await first.until("claim orders-3")
            first.enough.set()
            await one
        async with running(group.consume(["orders", "payments"], second)):
            await second.until("claim payments-1")
            assert second.sessions[0].member_id == first.sessions[0].member_id
            assert second.sessions[0].generation_id == 2
            assert group_requests(env)[5:] == lines("JoinGroup\n SyncGroup with the plan\n OffsetFetch")


def test_a_story_replays_exactly():
    """Two runs have the same requests at the same times, to the microsecond, with the same ids."""

    async def run_story() -> list[str]:
        async with VirtualEnvironment.made() as env:
            await membership.a_member_changes_its_topics(env)
            return [
                f"{e.time!r} {e.node_id} {e.client_id} {e.api} {e.request!r} {e.response!r}"
                for e in env.cluster.history
            ]

    first = run_virtual(run_story())
    assert len(first) > 100
    assert run_virtual(run_story()) == first
