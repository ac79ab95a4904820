"""Stories of failures: members that crash or are suspended, and a killed coordinator (seed 003; issue 3, stories 3, 5, 6, 9)."""

from __future__ import annotations

import asyncio

from asyncgroup import TopicPartition
from tests.stories.environment import Environment, Group

__all__ = ["a_consumer_dies", "a_zombie_wakes", "coordinator_dies", "crash_found_by_expiry"]


async def crash_found_by_expiry(env: Environment) -> None:
    """3: bob crashes without LeaveGroup; the coordinator removes him when his session expires, not before."""
    ann = await env.member("ann")
    await env.settled(ann)
    bob = await env.member("bob", frail=True)
    before = await env.settled(ann, bob)
    assert before.assignment["bob"] == {env.topic: [2, 3]}
    env.chapter("both consume")

    died_at = asyncio.get_running_loop().time()
    await env.crash(bob)
    await env.produce(5, range(4))
    group = await env.settled(ann)
    took = asyncio.get_running_loop().time() - died_at
    # his last heartbeat was at most an interval before, ann's next one at most an interval after
    assert took > env.session_timeout - 2 * env.heartbeat_interval
    assert group == Group(before.generation + 1, env.leader("ann"), {"ann": {env.topic: [0, 1, 2, 3]}})
    env.chapter("bob dies")
    await env.all_handled()
    await env.all_committed()


async def a_consumer_dies(env: Environment) -> None:
    """6: the leader crashes with marked but uncommitted records: they are handled again, none is lost."""
    ann = await env.member("ann", frail=True, auto_commit_interval=3000.0)
    await env.settled(ann)
    bob = await env.member("bob")
    before = await env.settled(ann, bob)
    assert (before.leader, before.assignment["ann"]) == (env.leader("ann"), {env.topic: [0, 1]})
    await env.produce(5, range(4))
    await env.all_handled()
    env.chapter("both consume")

    await env.crash(ann)
    group = await env.settled(bob)
    assert group == Group(before.generation + 1, env.leader("bob"), {"bob": {env.topic: [0, 1, 2, 3]}})
    env.chapter("ann dies")
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    # ann's five records of each of her partitions were handled again
    assert sorted(set(ann.log.handled) & set(bob.log.handled)) == [
        (env.topic, partition, offset) for partition in (0, 1) for offset in range(5)
    ]


async def coordinator_dies(env: Environment) -> None:
    """5: the group continues with another coordinator: same generation, same claims, no record missed."""
    ann = await env.member("ann")
    await env.settled(ann)
    bob = await env.member("bob")
    before = await env.settled(ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    env.chapter("both consume")

    node = await env.admin.coordinator(env.group_id)
    await env.kill_node(node)
    env.admin.cluster.coordinators.mark_unknown(env.group_id)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    env.chapter("the coordinator dies", nodes=True)
    await asyncio.sleep(env.session_timeout)
    assert await env.settled(ann, bob) == before
    assert len(bob.log.sessions) == 1
    env.chapter("time passes", nodes=True)
    assert await env.admin.coordinator(env.group_id) != node

    await ann.leave()
    group = await env.settled(bob)
    assert group == Group(before.generation + 1, env.leader("bob"), {"bob": {env.topic: [0, 1, 2, 3]}})
    env.chapter("ann leaves")


async def a_zombie_wakes(env: Environment) -> None:
    """9: a member suspended past its session timeout with uncommitted marks commits nothing on resume, and rejoins."""
    ann = await env.member("ann")
    await env.settled(ann)
    zed = await env.member("zed", frail=True, auto_commit_interval=3000.0)
    before = await env.settled(ann, zed)
    assert before.assignment["zed"] == {env.topic: [2, 3]}
    await env.produce(5, range(4))
    await env.all_handled()
    env.chapter("both consume")

    await env.suspend(zed)
    alone = await env.settled(ann)
    assert alone == Group(before.generation + 1, env.leader("ann"), {"ann": {env.topic: [0, 1, 2, 3]}})
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    committed = await env.committed()
    env.chapter("zed is stopped")

    old_id = zed.member_id
    await env.resume(zed)
    group = await env.settled(ann, zed)
    env.chapter("zed wakes")
    assert group.assignment == before.assignment
    assert group.generation == alone.generation + env.generations_of_a_move
    # a member of the consumer protocol keeps its id for life (KIP-848)
    assert (zed.member_id != old_id) is env.has_leader
    first, *_ = zed.log.sessions
    assert (first.cause, first.lost) == ("MemberLost", True)
    # its old marks were not committed: no offset moved back
    assert [commit for commit in zed.log.commits if commit["error"] is None] == []
    assert await env.committed() == committed
    assert committed[TopicPartition(env.topic, 2)] == 10

    await env.produce(5, range(4))
    await env.all_handled()
    await zed.leave()
    await env.all_committed()
