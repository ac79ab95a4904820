"""Stories about groups with members of both protocols: they become consumer groups and classic groups again while they live."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import encode_versioned
from tests.interop.parity.asks import commit, heartbeat, join as join_classic, joined, leave, sync
from tests.interop.parity.consumer_groups import beat, describe, join, left, listed, owned
from tests.interop.parity.groups import describe as describe_classic
from tests.interop.parity.scene import Scene

__all__ = [
    "a_group_that_is_upgraded_and_downgraded",
    "classic_members_of_consumer_groups",
    "classic_members_that_change_their_topics",
    "groups_that_may_not_change",
    "mixed_groups_at_their_limits",
    "refused_upgrades",
    "static_members_that_change_their_protocol",
    "upgrades_during_a_rebalance",
]

Subscription = m.ConsumerProtocolSubscription
Assignment = m.ConsumerProtocolAssignment


def protocols(
    topics: Iterable[str],
    owns: Mapping[str, list[int]] | None = None,
    *,
    names: Iterable[str] = ("range",),
    version: int = 1,
) -> dict[str, Any]:
    """Return the field with the assignors of a classic member and its subscription."""
    places = [Subscription.TopicPartition(topic, indexes) for topic, indexes in (owns or {}).items()]
    metadata = encode_versioned(Subscription(list(topics), None, places), version)
    return {"protocols": tuple((name, metadata) for name in names)}


def plan(topic: str, shares: Mapping[str, list[int]], user_data: bytes | None = None) -> dict[str, bytes]:
    """Return the assignments that a leader makes."""
    return {
        member: encode_versioned(Assignment([Assignment.TopicPartition(topic, indexes)], user_data), 1)
        for member, indexes in shares.items()
    }


async def said(scene: Scene, label: str, request: Any) -> None:
    """Send a request that is refused, and keep Kafka's sentence."""
    answer = await scene.ask(label, request)
    scene.keep(f"{label}: the sentence", str(answer.error_message).replace(request.group_id, "g"))


async def pair(scene: Scene, group: str, topic: str) -> tuple[str, str, int]:
    """Make a classic group of two; return the ids of leader and follower, and the generation."""
    first = await joined(scene, "first joins", group, **protocols([topic]))
    me = first.member_id
    await scene.ask("first syncs", sync(scene, group, 1, me, plan(topic, {me: [0, 1, 2, 3, 4, 5]})))
    other = ""
    if scene.version("JoinGroup") >= 4:
        other = (
            await scene.ask("second asks", join_classic(scene, group, **protocols([topic])), via="second")
        ).member_id
    waiting = await scene.send(
        "second joins", join_classic(scene, group, other, **protocols([topic])), via="second"
    )
    await scene.ask(
        "first hears of it", heartbeat(scene, group, 1, me), until=lambda answer: answer.error_code
    )
    again = await scene.ask("first joins again", join_classic(scene, group, me, **protocols([topic])))
    second = (await scene.receive(waiting)).member_id
    generation = again.generation_id
    shares = plan(topic, {me: [0, 1, 2], second: [3, 4, 5]})
    await scene.ask("first syncs again", sync(scene, group, generation, me, shares))
    await scene.ask("second syncs", sync(scene, group, generation, second))
    return me, second, generation


async def a_group_that_is_upgraded_and_downgraded(scene: Scene) -> None:
    """A member with the consumer protocol joins two classic ones, gets partitions of theirs, and leaves."""
    topic = await scene.topic("moving", 6)
    group = await scene.consumer_group("upgraded")
    me, second, generation = await pair(scene, group, topic)
    await listed(scene, "a classic group", group)
    await scene.ask("the third joins", join(group, "three", topic))
    await listed(scene, "a consumer group", group)
    await describe(scene, "upgraded", group)
    await describe_classic(scene, "no longer classic", group)
    for name, member in (("first", me), ("second", second)):
        await scene.ask(
            f"{name} commits", commit(scene, group, {(topic, 0): 3}, member_id=member, generation=generation)
        )
        await scene.ask(f"{name} shall join", heartbeat(scene, group, generation, member))
        await scene.ask(f"{name} syncs before it joins", sync(scene, group, generation, member))
    await scene.ask("the third waits", beat(group, "three", generation + 1))
    await scene.ask("an older generation", heartbeat(scene, group, generation - 1, me))
    await scene.ask("nobody", heartbeat(scene, group, generation, "nobody"))
    await scene.ask("the third is not classic", heartbeat(scene, group, generation + 1, "three"))
    keeps = protocols([topic], {topic: [0, 1, 2]})
    revokes = await scene.ask("first owns all of it", join_classic(scene, group, me, **keeps), version=None)
    await describe(scene, "first must revoke", group)
    await scene.ask("first syncs while it revokes", sync(scene, group, revokes.generation_id, me))
    await scene.ask("first must still revoke", heartbeat(scene, group, revokes.generation_id, me))
    gone = protocols([topic], {topic: [0, 1]})
    new = await scene.ask("first has revoked", join_classic(scene, group, me, **gone))
    await scene.ask("first gets its share", sync(scene, group, new.generation_id, me))
    await scene.ask("first is fine", heartbeat(scene, group, new.generation_id, me))
    await scene.ask("the third gets one", beat(group, "three", generation + 1))
    nothing = protocols([topic])
    new = await scene.ask("second owns nothing", join_classic(scene, group, second, **nothing))
    await scene.ask("second gets its share", sync(scene, group, new.generation_id, second))
    await scene.ask("the third gets another", beat(group, "three", generation + 1))
    await describe(scene, "all have theirs", group)
    for label, epoch in (("present", new.generation_id), ("old", generation), ("to come", 99)):
        request = commit(scene, group, {(topic, 3): 4}, member_id=second, generation=epoch)
        await scene.ask(f"second commits in a generation that is {label}", request)
        request = commit(scene, group, {(topic, 5): 4}, member_id=second, generation=epoch)
        await scene.ask(f"second commits what it gave up in a generation that is {label}", request)
    await scene.ask("the third leaves", beat(group, "three", -1))
    await listed(scene, "a classic group again", group)
    await describe_classic(scene, "downgraded", group)
    await describe(scene, "no longer a consumer group", group)
    await back_in_a_classic_group(scene, group, topic, (me, second), new.generation_id)


async def back_in_a_classic_group(
    scene: Scene, group: str, topic: str, members: tuple[str, str], generation: int
) -> None:
    """The members of a downgraded group join again, one of them leads, and both leave."""
    me, second = members
    await scene.ask("first shall join again", heartbeat(scene, group, generation, me))
    fields = protocols([topic])
    # in Kafka the order of a hash map decides who leads, so roles are compared, not names
    waiting = [
        await scene.send(via, join_classic(scene, group, member, **fields), via=via)
        for via, member in (("first", me), ("second", second))
    ]
    answers = {answer.member_id: answer for answer in [await scene.peek(sent) for sent in waiting]}
    leader = answers[me].leader
    follower = second if leader == me else me
    for role, member in (("the leader", leader), ("the follower", follower)):
        answer = answers[member]
        scene.keep(f"{role}'s members", [len(answer.members), {one.metadata for one in answer.members}])
        scene.keep(
            f"{role}'s answer",
            (answer.error_code, answer.generation_id, answer.protocol_name, answer.leader == leader),
        )
    generation = answers[leader].generation_id
    shares = plan(topic, {leader: [0, 1, 2], follower: [3, 4, 5]})
    await scene.ask("the leader syncs", sync(scene, group, generation, leader, shares))
    await scene.ask("the follower syncs", sync(scene, group, generation, follower))
    await scene.ask("first leaves", leave(scene, group, (me, None)))
    await scene.ask("second leaves", leave(scene, group, (second, None)))
    await scene.ask("deleted", m.DeleteGroupsRequest([group]))


async def classic_members_of_consumer_groups(scene: Scene) -> None:
    """Classic members join a consumer group; requests that are refused; members that leave."""
    topic = await scene.topic("joined", 6)
    group = await scene.consumer_group("joined")
    await scene.ask("one", join(group, "one", topic))
    both = {"names": ("range", "cooperative-sticky")}
    new = await joined(scene, "two", group, **protocols([topic], **both))
    two = new.member_id
    await scene.ask("two syncs", sync(scene, group, new.generation_id, two))
    await describe(scene, "two waits", group)
    await scene.ask("two has to wait", heartbeat(scene, group, new.generation_id, two))
    await scene.ask("one is asked", beat(group, "one", 2))
    await scene.ask("two still waits", heartbeat(scene, group, new.generation_id, two))
    await scene.ask("one has revoked", beat(group, "one", 2, **owned(scene, topic, 0, 1, 2)))
    await scene.ask("two can get them", heartbeat(scene, group, new.generation_id, two))
    cases = {
        "another type": join_classic(scene, group, protocol_type="connect"),
        "no protocols": join_classic(scene, group, protocols=()),
        "an assignor that two does not have": join_classic(
            scene, group, "x", **protocols([topic], names=["roundrobin"])
        ),
        "a subscription that cannot be read": join_classic(scene, group, "x", protocols=(("range", b""),)),
        "an instance of nobody": join_classic(
            scene, group, "x", instance="nobody" if scene.version("JoinGroup") >= 5 else None, **protocols([])
        ),
    }
    for label, request in cases.items():
        await scene.ask(label, request)
    await describe(scene, "what the cases left", group)
    if scene.version("JoinGroup") < 5:
        return
    new = await scene.ask("two joins again", join_classic(scene, group, two, **protocols([topic], **both)))
    epoch = new.generation_id
    cases = {
        "a sync of another generation": sync(scene, group, epoch - 1, two),
        "a sync of another protocol": sync(scene, group, epoch, two, protocol="cooperative-sticky"),
        "a sync of another type": sync(scene, group, epoch, two, protocol_type="connect"),
        "a sync of nobody": sync(scene, group, epoch, "nobody"),
        "a sync of one": sync(scene, group, epoch, "one"),
        "a sync of an instance": sync(scene, group, epoch, two, instance="nobody"),
        "two syncs again": sync(scene, group, epoch, two),
    }
    for label, request in cases.items():
        await scene.ask(label, request)
    known = await scene.ask("three, by its own id", join_classic(scene, group, "three", **protocols([topic])))
    await describe(scene, "three", group)
    await scene.ask("one becomes classic", join_classic(scene, group, "one", **protocols([topic])))
    await describe(scene, "classic members only", group)
    await scene.ask("three changes its protocol", join(group, "three", topic))
    await describe(scene, "three has changed", group)
    await scene.ask("nobody leaves", leave(scene, group, ("nobody", None)))
    await scene.ask("two leaves", leave(scene, group, (two, None), ("nobody", None)))
    await describe(scene, "two has left", group)
    await scene.ask("one leaves", leave(scene, group, ("one", None)))
    await scene.ask("three was", heartbeat(scene, group, known.generation_id, "three"))
    await describe(scene, "three alone", group)
    await scene.ask("three gets all", join(group, "three", topic))
    await joined(scene, "four", group, **protocols([topic]))
    await scene.ask("an admin removes three", leave(scene, group, ("three", None)))
    await describe_classic(scene, "four alone", group)


async def classic_members_that_change_their_topics(scene: Scene) -> None:
    """A new subscription is a new target at once."""
    first, second = await scene.topic("first", 2), await scene.topic("second", 2)
    group = await scene.consumer_group("topics")
    await scene.ask("one", join(group, "one", first))
    new = await joined(scene, "two", group, **protocols([first, scene.named("absent")]))
    two = new.member_id
    await scene.ask("two wants another", join_classic(scene, group, two, **protocols([second])))
    await describe(scene, "another topic", group)
    new = await scene.ask(
        "two owns it", join_classic(scene, group, two, **protocols([second], {second: [0, 1]}))
    )
    await scene.ask("two syncs", sync(scene, group, new.generation_id, two))
    new = await scene.ask(
        "two wants nothing", join_classic(scene, group, two, **protocols([], {second: [0, 1]}))
    )
    await scene.ask("two has nothing to do", sync(scene, group, new.generation_id, two))
    await describe(scene, "no topic", group)
    await scene.ask("two shall give up", heartbeat(scene, group, new.generation_id, two))
    new = await scene.ask("two has given up", join_classic(scene, group, two, **protocols([])))
    await scene.ask("two has nothing", sync(scene, group, new.generation_id, two))
    for version in (0, 2, 3):
        fields = protocols([second], version=version)
        new = await scene.ask(f"two, subscription v{version}", join_classic(scene, group, two, **fields))
        await scene.ask(f"two syncs, v{version}", sync(scene, group, new.generation_id, two))
    await describe(scene, "the last", group)


async def static_members_that_change_their_protocol(scene: Scene) -> None:
    """Members with a group instance id restart with the other protocol, one after the other."""
    if scene.version("JoinGroup") < 5 or scene.version("Heartbeat") < 3:
        return
    topic = await scene.topic("static", 4)
    group = await scene.consumer_group("statics")
    fields = protocols([topic])
    first = await scene.ask("i joins", join_classic(scene, group, instance="i", **fields))
    me = first.member_id
    await scene.ask("i syncs", sync(scene, group, 1, me, plan(topic, {me: [0, 1, 2, 3]}), instance="i"))
    await scene.ask("i restarts", join(group, "one", topic, instance_id="i"))
    await describe(scene, "i is upgraded", group)
    await scene.ask("the one before", heartbeat(scene, group, 1, me, instance="i"))
    await scene.ask("the one before syncs", sync(scene, group, 1, me, instance="i"))
    await scene.ask("j joins", join(group, "two", topic, instance_id="j"))
    back = await scene.ask("i goes back", join_classic(scene, group, instance="i", **fields))
    await describe(scene, "i is back", group)
    classic = back.member_id
    await scene.ask("i syncs there", sync(scene, group, back.generation_id, classic, instance="i"))
    await scene.ask("i is fenced", beat(group, "one", 2, instance_id="i"))
    wrong = join_classic(scene, group, "x", instance="i", **fields)
    await scene.ask("somebody else says it is i", wrong)
    await scene.ask("i again by another id", join_classic(scene, group, instance="i", **fields))
    await describe(scene, "i by another id", group)
    last = await scene.ask("j goes back", join_classic(scene, group, instance="j", **fields))
    await listed(scene, "downgraded", group)
    await describe_classic(scene, "both are back", group)
    answer = await scene.ask("j syncs", sync(scene, group, last.generation_id, last.member_id, instance="j"))
    scene.keep("j's error", answer.error_code)
    await scene.ask("j is fine", heartbeat(scene, group, last.generation_id, last.member_id, instance="j"))


async def refused_upgrades(scene: Scene) -> None:
    """Groups that a member with the consumer protocol cannot join."""
    topic = await scene.topic("refused", 2)

    async def group_of(name: str, assignment: bytes, **fields: Any) -> str:
        group = await scene.consumer_group(name)
        new = await joined(scene, f"{name}: a member", group, **fields)
        kind = fields.get("protocol_type", "consumer")
        given = {new.member_id: assignment}
        request = sync(scene, group, 1, new.member_id, given, protocol_type=kind)
        await scene.ask(f"{name}: it syncs", request)
        return group

    fields, member = protocols([topic]), "x"
    whole = plan(topic, {member: [0, 1]})[member]
    custom = plan(topic, {member: [0, 1]}, b"custom")[member]
    empty = plan(topic, {member: [0, 1]}, b"")[member]
    refused = {
        "another type": await group_of("type", whole, protocol_type="connect", **fields),
        "user data": await group_of("data", custom, **fields),
        "a broken assignment": await group_of("assignment", b"\x00", **fields),
        "a broken subscription": await group_of("subscription", whole, protocols=(("range", b"s"),)),
    }
    for label, group in refused.items():
        await said(scene, label, join(group, "new", topic))
        await describe_classic(scene, f"{label} stays", group)
    left = await scene.consumer_group("left")
    await scene.ask("left: one", join(left, "one", topic))
    await scene.ask("left: one leaves", beat(left, "one", -1))
    await scene.ask("left: a member that is not known", join_classic(scene, left, "x", **fields))
    await scene.ask("left: a sync", sync(scene, left, 2, "one"))
    await scene.ask("left: a heartbeat", heartbeat(scene, left, 2, "one"))
    await scene.ask("left: a leave", leave(scene, left, ("one", None)))
    await joined(scene, "left: a new member", left, **fields)
    await describe_classic(scene, "left: a classic group", left)
    fine = await group_of("fine", empty, **fields)
    await said(scene, "a heartbeat that does not join", beat(fine, "new", 1))
    await said(scene, "a heartbeat that leaves", beat(fine, "new", -1))
    await scene.ask("a group that is refused", join(fine, "new", topic, server_assignor="sticky"))
    await describe_classic(scene, "still classic", fine)
    await scene.ask("empty user data", join(fine, "new", topic))
    await describe(scene, "fine", fine)


async def outline(scene: Scene, label: str, group: str) -> None:
    """Keep a group without its partitions: which new member gets which depends on the order of a hash map."""
    answer = await scene.quietly(m.ConsumerGroupDescribeRequest([group]), 1)
    (found,) = answer.groups
    members = sorted(
        (one.member_type, one.member_epoch, count(one.assignment), count(one.target_assignment))
        for one in found.members
    )
    scene.keep(label, [found.group_state, found.group_epoch, found.assignment_epoch, members])


def count(assignment: m.ConsumerGroupDescribeResponse.Assignment) -> int:
    return sum(len(topic.partitions) for topic in assignment.topic_partitions)


async def upgrades_during_a_rebalance(scene: Scene) -> None:
    """Requests that are parked when the group is upgraded are answered, and their members join again."""
    topic = await scene.topic("parked", 4)
    group = await scene.consumer_group("parked")
    fields = protocols([topic])
    first = await joined(scene, "first joins", group, **fields)
    me = first.member_id
    await scene.ask("first syncs", sync(scene, group, 1, me, plan(topic, {me: [0, 1, 2, 3]})))
    other = ""
    if scene.version("JoinGroup") >= 4:
        asked = join_classic(scene, group, **fields)
        other = (await scene.ask("second asks", asked, via="second")).member_id
    waiting = await scene.send("second joins", join_classic(scene, group, other, **fields), via="second")
    await scene.ask(
        "first hears of it", heartbeat(scene, group, 1, me), until=lambda answer: answer.error_code
    )
    await scene.ask("the third joins", join(group, "three", topic))
    answer = await scene.receive(waiting)
    await outline(scene, "upgraded", group)
    if other:
        await scene.ask("second joins again", join_classic(scene, group, other, **fields), via="second")
    await scene.ask("first joins again", join_classic(scene, group, me, **protocols([topic])))
    scene.keep("who waited", answer.error_code)
    await outline(scene, "all are there", group)
    late = await scene.consumer_group("late")
    first = await joined(scene, "late: first joins", late, **fields)
    third = await scene.quietly(join(late, "three", topic))
    # no member has partitions yet: which one gets which follows from a hash of the random member id
    scene.keep("late: the third joins", (third.error_code, third.member_epoch))
    me = first.member_id
    await scene.ask("late: first syncs", sync(scene, late, 1, me, plan(topic, {me: [0, 1, 2, 3]})))
    await scene.ask("late: first hears of it", heartbeat(scene, late, 1, me))
    await outline(scene, "late: upgraded", late)
    if scene.version("JoinGroup") < 5:
        return
    static = await scene.consumer_group("static")
    await scene.ask("static: first joins", join_classic(scene, static, instance="i", **fields))
    await scene.ask("static: it restarts", join(static, "one", topic, instance_id="i"))
    await describe(scene, "static: it has nothing", static)
    await scene.ask("static: another joins", join(static, "two", topic))
    await describe(scene, "static: they share", static)


async def groups_that_may_not_change(scene: Scene) -> None:
    """Where `group.consumer.migration.policy` is not the default: what is refused then, and empty groups, which may change."""
    topic = await scene.topic("fixed", 4)
    fields = protocols([topic])
    group = await scene.consumer_group("classic")
    me = (await joined(scene, "one", group, **fields)).member_id
    await scene.ask("one syncs", sync(scene, group, 1, me, plan(topic, {me: [0, 1, 2, 3]})))
    await said(scene, "two", join(group, "two", topic))
    await describe_classic(scene, "two has joined or not", group)
    await scene.ask("one leaves", leave(scene, group, (me, None)))
    await scene.ask("two may join an empty group", join(group, "two", topic))
    group = await scene.consumer_group("consumer")
    await scene.ask("three", join(group, "three", topic))
    new = await joined(scene, "four", group, **fields)
    await scene.ask("four syncs", sync(scene, group, new.generation_id, new.member_id))
    await scene.ask("three leaves", beat(group, "three", -1))
    await describe_classic(scene, "a classic group or not", group)
    await describe(scene, "a consumer group or not", group)
    # with the policy "upgrade" four is never asked to take the partitions of three: only joins would assign them
    await scene.ask("four hears of it or not", heartbeat(scene, group, new.generation_id, new.member_id))
    await joined(scene, "five", await scene.consumer_group("another"), **fields)


async def mixed_groups_at_their_limits(scene: Scene) -> None:
    """Members that are too many, that do not join or sync in time, and whose sessions expire."""
    topic = await scene.topic("limited", 4)
    fields = protocols([topic])
    group = await scene.consumer_group("mixed")
    await scene.ask("one", join(group, "one", topic))
    new = await joined(scene, "two", group, **fields)
    await scene.ask("two syncs", sync(scene, group, new.generation_id, new.member_id))
    await scene.ask("three", join_classic(scene, group, **fields))
    await scene.ask("three by its own id", join_classic(scene, group, "three", **fields))

    await left(scene, group, set())
    await describe(scene, "the session of one has expired", group)
    await describe_classic(scene, "two is left", group)
    await scene.ask("two shall join", heartbeat(scene, group, new.generation_id, new.member_id))
    early = await scene.consumer_group("early")
    waiting = await scene.send(
        "early: one waits",
        join_classic(scene, early, instance="i" if scene.version("JoinGroup") >= 5 else None, **fields),
        via="early",
    )
    async with asyncio.timeout(20):
        while (await scene.quietly(m.DescribeGroupsRequest([early]), 5)).groups[0].group_state == "Dead":
            await asyncio.sleep(0.02)
    await scene.ask("early: before the first generation", join(early, "two", topic))
    await scene.receive(waiting)
    slow = await scene.consumer_group("slow")
    await scene.ask("ann", join(slow, "ann", topic))
    bob = await joined(scene, "bob", slow, rebalance_timeout_ms=500, **fields)
    half = owned(scene, topic, 0, 1)
    await left(scene, slow, {"ann"}, beat(slow, "ann", 2))
    await scene.quietly(beat(slow, "ann", 2, **half))
    await describe(scene, "bob did not sync", slow)
    await scene.ask("bob is unknown", sync(scene, slow, bob.generation_id, bob.member_id))
    bob = await joined(scene, "bob again", slow, rebalance_timeout_ms=500, **fields)
    await scene.ask("bob syncs", sync(scene, slow, bob.generation_id, bob.member_id))
    await scene.ask("ann is asked", beat(slow, "ann", 4))
    await scene.ask("ann has revoked", beat(slow, "ann", 4, **half))
    shall = heartbeat(scene, slow, bob.generation_id, bob.member_id)
    await scene.ask("bob shall join", shall)
    await left(scene, slow, {"ann"}, shall, beat(slow, "ann", 5, **half))
    await scene.quietly(beat(slow, "ann", 5, **half))
    await describe(scene, "bob did not join", slow)
    await scene.ask("bob is unknown again", heartbeat(scene, slow, bob.generation_id, bob.member_id))
