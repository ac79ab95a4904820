"""Stories of membership changes: joining, leaving, new partitions, changed topics (seed 001; issue 3, stories 1, 2, 4, 7, 8)."""

from __future__ import annotations

import asyncio

from tests.stories.environment import Environment, Group
from tests.stories.members import LocalMember, Member

__all__ = [
    "a_leader_leaves",
    "a_member_changes_its_topics",
    "both",
    "graceful_leave",
    "more_members_than_partitions",
    "partition_increase",
    "static_leader_restarts",
    "two_joiners",
]


async def both(env: Environment) -> tuple[Member, Member]:
    """Return ann, the leader, and bob, who joins after her."""
    ann = await env.member("ann")
    await env.settled(ann)
    return ann, await env.member("bob")


async def two_joiners(env: Environment) -> None:
    """1: the first member is the leader and gets all partitions; when a second one joins they share them."""
    await env.produce(5, range(4))
    ann = await env.member("ann")
    alone = await env.settled(ann)
    assert alone.generation in env.first_generations
    assert alone == Group(alone.generation, env.leader("ann"), {"ann": {env.topic: [0, 1, 2, 3]}})
    await env.all_handled()
    env.chapter("ann joins")

    bob = await env.member("bob")
    shared = {"ann": {env.topic: [0, 1]}, "bob": {env.topic: [2, 3]}}
    assert await env.settled(ann, bob) == Group(
        alone.generation + env.generations_of_a_move, env.leader("ann"), shared
    )
    env.chapter("bob joins")
    ended = [] if env.sessions_last else ["Rebalanced"]
    assert [session.cause for session in ann.log.sessions] == [*ended, None]

    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    assert {partition for _, partition, _ in bob.log.handled} == {2, 3}
    # ann's marks were committed before bob started: no record was handled twice
    everything = ann.log.handled + bob.log.handled
    assert len(everything) == len(set(everything)) == 40


async def graceful_leave(env: Environment) -> None:
    """2: a member that closes sends LeaveGroup: the others take over before its session would have expired."""
    ann, bob = await both(env)
    before = await env.settled(ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()
    env.chapter("both consume")

    left_at = asyncio.get_running_loop().time()
    await bob.leave()
    group = await env.settled(ann)
    assert asyncio.get_running_loop().time() - left_at < env.session_timeout
    assert group == Group(before.generation + 1, env.leader("ann"), {"ann": {env.topic: [0, 1, 2, 3]}})
    env.chapter("bob leaves")
    assert bob.log.sessions[-1].cause == "GroupClosed"
    assert bob.log.failure is None

    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    everything = ann.log.handled + bob.log.handled
    assert len(everything) == len(set(everything)) == 40


async def a_leader_leaves(env: Environment) -> None:
    """2, for the leader: the other member becomes the leader and gets the partitions."""
    ann, bob = await both(env)
    before = await env.settled(ann, bob)
    assert before.leader == env.leader("ann")
    env.chapter("both consume")
    await ann.leave()
    group = await env.settled(bob)
    assert group == Group(before.generation + 1, env.leader("bob"), {"bob": {env.topic: [0, 1, 2, 3]}})
    env.chapter("ann leaves")
    await env.produce(3, range(4))
    await env.all_handled()
    await env.all_committed()


async def partition_increase(env: Environment) -> None:
    """4: the leader detects new partitions in the metadata, and rejoins."""
    ann, bob = await both(env)
    before = await env.settled(ann, bob)
    env.chapter("both consume")

    await env.admin.create_partitions(env.topic, 6)
    await env.produce(5, range(6))  # partly before the members know the new partitions
    group = await widened(env, before, ann, bob)
    assert group.generation == before.generation + 1
    env.chapter("two partitions more")
    assert group.leader == env.leader("ann")
    if not env.sessions_last:
        assert ann.log.sessions[-2].cause == "PartitionsChanged"
        assert bob.log.sessions[-2].cause == "Rebalanced"
    await env.all_handled()
    await env.all_committed()


async def widened(env: Environment, before: Group, ann: Member, bob: Member) -> Group:
    """Return the group when the two share six partitions instead of four.

    Members whose sessions last keep the two that they have. A coordinator chooses by the order of a hash map which one
    gets which new partition (Kafka's UniformHomogeneousAssignmentBuilder).
    """
    shares = [([0, 1, 2], [3, 4, 5])]
    if env.sessions_last:
        hers, his = (before.assignment[member.name][env.topic] for member in (ann, bob))
        new = [(4, 5)] if env.has_leader else [(4, 5), (5, 4)]
        shares = [([*hers, for_ann], [*his, for_bob]) for for_ann, for_bob in new]
    wider = [{ann.name: {env.topic: first}, bob.name: {env.topic: second}} for first, second in shares]

    async def is_wider() -> bool:
        return (await env.settled(ann, bob)).assignment in wider

    await env.bell.until_known(is_wider, "six partitions assigned", env.limit)
    return await env.settled(ann, bob)


async def more_members_than_partitions(env: Environment) -> None:
    """7: a member without partitions keeps its session by heartbeats, and takes over when the other leaves."""
    narrow = await env.create_topic("narrow", 1)
    ann = await env.member("ann", [narrow])
    await env.settled(ann)
    bob = await env.member("bob", [narrow])
    before = await env.settled(ann, bob)
    assert before.assignment == {"ann": {narrow: [0]}, "bob": {}}
    await env.produce(5, [0], narrow)
    await env.all_handled()
    env.chapter("bob has nothing")

    await asyncio.sleep(1.5 * env.session_timeout)  # longer than a session without heartbeats
    assert await env.settled(ann, bob) == before
    env.chapter("time passes")

    await ann.leave()
    assert await env.settled(bob) == Group(before.generation + 1, env.leader("bob"), {"bob": {narrow: [0]}})
    env.chapter("bob takes over")
    await env.produce(5, [0], narrow)
    await env.all_handled()
    await env.all_committed()
    assert bob.log.handled == [(narrow, 0, offset) for offset in range(5, 10)]


async def a_member_changes_its_topics(env: Environment) -> None:
    """8: a member that subscribes to a further topic gets its partitions; the other topic is still shared."""
    other = await env.create_topic("payments", 2)
    ann, bob = await both(env)
    before = await env.settled(ann, bob)
    await env.produce(5, range(4))
    await env.produce(5, range(2), other)
    env.chapter("both consume")

    assert isinstance(bob, LocalMember)
    await bob.change_topics([env.topic, other])
    group = await env.settled(ann, bob)
    # the sticky assignors balance all topics together, the range assignor each one
    shared = ([0, 1, 2], [3]) if env.sessions_last else ([0, 1], [2, 3])
    if (
        not env.has_leader
    ):  # a coordinator assigns also while bob is away: which one moves depends on how long that takes
        shared = (group.assignment["ann"][env.topic], group.assignment["bob"][env.topic])
        assert (len(shared[0]), sorted(shared[0] + shared[1])) == (3, [0, 1, 2, 3])
    assert group.assignment == {"ann": {env.topic: shared[0]}, "bob": {env.topic: shared[1], other: [0, 1]}}
    assert group.generation > before.generation
    env.chapter("bob wants payments too")
    await env.all_handled()
    await env.all_committed()
    assert not any(topic == other for topic, _, _ in ann.log.handled)

    await bob.change_topics([other])
    group = await env.settled(ann, bob)
    assert group.assignment == {"ann": {env.topic: [0, 1, 2, 3]}, "bob": {other: [0, 1]}}
    env.chapter("bob wants payments only")
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()


async def static_leader_restarts(env: Environment) -> None:
    """KIP-345, KIP-814: no rebalance when a static leader restarts within the session timeout; it still detects new partitions."""
    ann = await env.member("ann", group_instance_id="desk-a")
    alone = await env.settled(ann)
    assert alone.generation in env.first_generations
    bob = await env.member("bob", group_instance_id="desk-b")
    before = await env.settled(ann, bob)
    shared = {"ann": {env.topic: [0, 1]}, "bob": {env.topic: [2, 3]}}
    assert before == Group(alone.generation + env.generations_of_a_move, env.leader("ann"), shared)
    await env.produce(5, range(4))
    await env.all_handled()
    env.chapter("both consume")

    await ann.leave()
    again = await env.member("ann-again", group_instance_id="desk-a")
    restarted = await env.settled(again, bob)
    assert restarted == Group(
        before.generation, env.leader("ann-again"), {"ann-again": shared["ann"], "bob": shared["bob"]}
    )
    env.chapter("ann restarts")
    assert len(bob.log.sessions) == 1
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    assert {offset for _, _, offset in again.log.handled} == set(range(5, 10))

    await env.admin.create_partitions(env.topic, 6)
    assert (await widened(env, restarted, again, bob)).generation == before.generation + 1
