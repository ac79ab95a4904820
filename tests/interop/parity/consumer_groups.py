"""Stories about groups with the consumer protocol (KIP-848): heartbeats, epochs, moves of partitions, offsets."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncgroup.wire import messages as m
from tests.interop.parity.scene import Scene
from tests.interop.parity.transactions import ended, settled, started, txn_offsets

__all__ = [
    "changed_topics_of_consumers",
    "consumers_at_their_limits",
    "consumers_that_move_partitions",
    "consumers_with_patterns",
    "offsets_of_consumers",
    "refused_consumer_heartbeats",
    "static_consumers",
    "transactional_offsets_of_consumers",
]

Beat = m.ConsumerGroupHeartbeatRequest
NOBODY = "nobody"


def beat(group: str, member: str, epoch: int, **fields: Any) -> m.ConsumerGroupHeartbeatRequest:
    return Beat(group, member, epoch, **fields)


def join(group: str, member: str, *topics: str, **fields: Any) -> m.ConsumerGroupHeartbeatRequest:
    """Return the first request of a member; a field that is None is left out."""
    given = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": list(topics),
        "topic_partitions": [],
        **fields,
    }
    return Beat(group, member, 0, **given)


def owned(scene: Scene, topic: str, *partitions: int) -> dict[str, Any]:
    """Return the field with the partitions that a member owns."""
    found = [Beat.TopicPartitions(scene.topic_ids[topic], list(partitions))] if partitions else []
    return {"topic_partitions": found}


async def describe(scene: Scene, label: str, group: str) -> None:
    await scene.ask(label, m.ConsumerGroupDescribeRequest([group], True))


async def listed(scene: Scene, label: str, group: str) -> None:
    """Keep the group's line of ListGroups."""
    answer = await scene.quietly(m.ListGroupsRequest(), 5)
    scene.keep(label, [str(one).replace(group, "") for one in answer.groups if one.group_id == group])


async def refused_consumer_heartbeats(scene: Scene) -> None:
    """Invalid ConsumerGroupHeartbeat requests, and requests of unknown groups and members."""
    topic = await scene.topic("refused")
    group = await scene.consumer_group("refused")
    cases = {
        "no group": join("", "one", topic),
        "an unknown group": beat(scene.named("unknown"), "one", 1),
        "leaving an unknown group": beat(scene.named("unknown"), "one", -1),
        "no member to leave": beat(group, "", -1),
        "no member to stay": beat(group, "", 1),
        "an empty instance": join(group, "one", topic, instance_id=""),
        "an empty rack": join(group, "one", topic, rack_id=""),
        "no rebalance timeout": join(group, "one", topic, rebalance_timeout_ms=-1),
        "no partitions": join(group, "one", topic, topic_partitions=None),
        "partitions at once": join(group, "one", topic, **owned(scene, topic, 0)),
        "no subscription": join(group, "one", subscribed_topic_names=None),
        "an epoch below those that leave": beat(group, "one", -3),
        "a static leave without an instance": beat(group, "one", -2),
        "an unknown assignor": join(group, "one", topic, server_assignor="cooperative"),
        "an unknown assignor later": beat(group, "one", 1, server_assignor="cooperative"),
        "the group does not exist": beat(group, "one", 1),
    }
    for label, request in cases.items():
        await scene.ask(label, request)
    await describe(scene, "nothing is left of it", group)
    await scene.ask("a member joins", join(group, "one", topic))
    await scene.ask("a topic that does not exist", join(group, "two", scene.named("absent")))
    await scene.ask("nothing subscribed", join(scene.named("none"), "one"))
    await scene.ask("nobody", beat(group, NOBODY, 3))
    await scene.ask("nobody leaves", beat(group, NOBODY, -1))
    await scene.ask("an instance of nobody", beat(group, "one", 2, instance_id="i"))
    await scene.ask("an epoch to come", beat(group, "one", 9))
    await scene.ask("an epoch long gone", beat(group, "one", 1))
    await describe(scene, "unknown, empty and ill", "")
    await scene.ask("not a classic group", m.DescribeGroupsRequest([group]))


async def consumers_that_move_partitions(scene: Scene) -> None:
    """A second member gets partitions only after the first has reported that it has revoked them."""
    topic = await scene.topic("moved", 4)
    group = await scene.consumer_group("moving")
    await scene.ask("one joins", join(group, "one", topic))
    await describe(scene, "one alone", group)
    await scene.ask("one owns all", beat(group, "one", 2, **owned(scene, topic, 0, 1, 2, 3)))
    await scene.ask("two joins", join(group, "two", topic))
    await describe(scene, "two waits", group)
    await scene.ask("two still waits", beat(group, "two", 3))
    await scene.ask("one is asked to revoke", beat(group, "one", 2))
    await describe(scene, "one revokes", group)
    await scene.ask("one keeps alive", beat(group, "one", 2))
    await scene.ask("one owns too much", beat(group, "one", 2, **owned(scene, topic, 0, 1, 2)))
    await scene.ask("two waits for one", beat(group, "two", 3, **owned(scene, topic)))
    await scene.ask("one has revoked", beat(group, "one", 2, **owned(scene, topic, 0, 1)))
    await scene.ask("one did not get that", beat(group, "one", 2, **owned(scene, topic, 0, 1)))
    await scene.ask("one in its old epoch owns too much", beat(group, "one", 2, **owned(scene, topic, 0, 2)))
    await scene.ask("one in its old epoch says nothing", beat(group, "one", 2))
    await describe(scene, "free partitions", group)
    await scene.ask("two gets them", beat(group, "two", 3))
    await listed(scene, "in the list", group)
    await describe(scene, "stable", group)
    full = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": [topic]}
    await scene.ask("a full request", beat(group, "two", 3, **full, **owned(scene, topic, 2, 3)))
    await scene.ask("one joins again", join(group, "one", topic))
    await describe(scene, "one has joined again", group)
    await scene.ask("no longer a group that may be deleted", m.DeleteGroupsRequest([group]))
    await scene.ask("two leaves", beat(group, "two", -1))
    await describe(scene, "one is left", group)
    await scene.ask("one gets all", beat(group, "one", 3))
    await scene.ask("one leaves", beat(group, "one", -1))
    await scene.ask("one leaves again", beat(group, "one", -1))
    await describe(scene, "empty", group)
    await listed(scene, "empty in the list", group)
    await scene.ask("deleted", m.DeleteGroupsRequest([group]))
    await describe(scene, "gone", group)


async def changed_topics_of_consumers(scene: Scene) -> None:
    """Members that change their subscriptions and assignors."""
    first, second = await scene.topic("first", 2), await scene.topic("second", 2)
    group = await scene.consumer_group("changing")
    await scene.ask("join", join(group, "one", first, server_assignor="range"))
    await describe(scene, "one topic", group)
    await scene.ask("both topics", beat(group, "one", 2, subscribed_topic_names=[first, second]))
    await describe(scene, "two topics", group)
    await scene.ask("the other only", beat(group, "one", 3, subscribed_topic_names=[second]))
    await describe(scene, "to be revoked", group)
    await scene.ask("the first is gone", beat(group, "one", 3, **owned(scene, second, 0, 1)))
    await describe(scene, "the other topic", group)
    await scene.ask("another assignor", beat(group, "one", 4, server_assignor="uniform"))
    await scene.ask("two joins", join(group, "two", first, second))
    await describe(scene, "an assignment for two", group)
    await scene.ask("nothing", beat(group, "one", 4, subscribed_topic_names=[]))
    await describe(scene, "nothing is left to one", group)
    await scene.ask("an admin removes one", leave_group(group, "one"), version=5)
    await scene.ask("one is unknown", beat(group, "one", 5))
    await describe(scene, "two alone", group)


def leave_group(group: str, *members: str) -> m.LeaveGroupRequest:
    return m.LeaveGroupRequest(
        group, members=[m.LeaveGroupRequest.MemberIdentity(member) for member in members]
    )


async def static_consumers(scene: Scene) -> None:
    """Static members leave for a while and come back, or for good."""
    topic = await scene.topic("static", 2)
    group = await scene.consumer_group("statics")
    i = {"instance_id": "i"}
    await scene.ask("join", join(group, "one", topic, **i))
    await scene.ask("owns all", beat(group, "one", 2, **i, **owned(scene, topic, 0, 1)))
    await scene.ask("another one", join(group, "two", topic, **i))
    await scene.ask("joins again", join(group, "one", topic, **i))
    await scene.ask("without its instance", beat(group, "one", 2))
    await scene.ask("a member of another instance", beat(group, "one", 2, instance_id="j"))
    await scene.ask("another member", beat(group, "two", 2, **i))
    await scene.ask("another member leaves", beat(group, "two", -2, **i))
    await scene.ask("leaves for a while", beat(group, "one", -2, **i))
    await describe(scene, "away", group)
    await scene.ask("a heartbeat of the one that is away", beat(group, "one", 2, **i))
    await scene.ask("back with another id", join(group, "two", topic, **i))
    await describe(scene, "back", group)
    await scene.ask("the one before", beat(group, "one", 2, **i))
    await scene.ask("leaves for good", beat(group, "two", -1, **i))
    await describe(scene, "empty", group)


async def offsets_of_consumers(scene: Scene) -> None:
    """Commits and fetches of members with their epochs."""
    topic = await scene.topic("offsets", 2)
    group = await scene.consumer_group("offsets")
    await scene.ask("join", join(group, "one", topic))

    def commit(member: str, epoch: int, *partitions: int) -> m.OffsetCommitRequest:
        cls = m.OffsetCommitRequest
        places = [cls.OffsetCommitRequestPartition(index, 5) for index in partitions]
        return cls(group, epoch, member, topics=[cls.OffsetCommitRequestTopic(topic, partitions=places)])

    def fetch(member: str | None, epoch: int, of: str = group) -> m.OffsetFetchRequest:
        cls = m.OffsetFetchRequest
        topics = [cls.OffsetFetchRequestTopics(topic, partition_indexes=[0, 1])]
        return cls(groups=[cls.OffsetFetchRequestGroup(of, member, epoch, topics)])

    async def asked(
        label: str, request: m.OffsetCommitRequest | m.OffsetFetchRequest, version: int = 9
    ) -> None:
        await scene.ask(label, request, version=version)

    await asked("commit", commit("one", 2, 0))
    await asked("commit in an old version", commit("one", 2, 0), 8)
    await asked("commit of nobody", commit(NOBODY, 2, 0))
    await asked("commit without a member", commit("", -1, 0))
    await asked("commit of an epoch to come", commit("one", 3, 0))
    await asked("commit of an epoch gone", commit("one", 1, 0))
    await asked("commit without an epoch", commit("one", -1, 0))
    await asked("fetch", fetch("one", 2))
    await asked("fetch without a member", fetch(None, -1))
    await asked("fetch of an old epoch", fetch("one", 1))
    await asked("fetch of an epoch to come", fetch("one", 3))
    await asked("fetch of nobody", fetch(NOBODY, 2))
    await asked("fetch of an unknown group", fetch("one", 2, scene.named("unknown")))
    await scene.ask("two joins", join(group, "two", topic))
    await scene.ask("one revokes", beat(group, "one", 2))
    await asked("commit while revoking", commit("one", 2, 0, 1))
    await scene.ask("one has revoked", beat(group, "one", 2, **owned(scene, topic, 0)))
    await asked("commit of the epoch before for what is kept", commit("one", 2, 0))
    await asked("commit of the epoch before for what is gone", commit("one", 2, 1))
    await asked("commit of the epoch before for both", commit("one", 2, 0, 1))
    await asked("commit of the new epoch for what is gone", commit("one", 3, 1))
    cls = m.OffsetDeleteRequest
    places = [cls.OffsetDeleteRequestTopic(topic, [cls.OffsetDeleteRequestPartition(0)])]
    await scene.ask("offsets in use", cls(group, places))
    await scene.ask("two leaves", beat(group, "two", -1))
    await scene.ask("one leaves", beat(group, "one", -1))
    await asked("commit to an empty group", commit("", -1, 1))
    await scene.ask("offsets no longer in use", cls(group, places))
    await asked("what is left", fetch(None, -1))
    await scene.ask("deleted", m.DeleteGroupsRequest([group]))
    await asked("nothing is left", fetch(None, -1))


async def consumers_with_patterns(scene: Scene) -> None:
    """Subscriptions by regular expression are resolved after the heartbeat that names them."""
    if scene.version("ConsumerGroupHeartbeat") < 1:
        return
    # one topic only: which of several goes to which member depends on the order of topic ids
    one = await scene.topic("pattern.one", 2)
    await scene.topic("pattern.three", 1)
    group = await scene.consumer_group("patterns")
    only = {"subscribed_topic_names": None}
    await scene.ask("a broken one", join(group, "one", **only, subscribed_topic_regex="pattern("))
    await scene.ask("an empty one", join(group, "zero", **only, subscribed_topic_regex=""))
    await scene.ask("zero leaves", beat(group, "zero", -1))
    found = scene.named("pattern.one").replace("one", "...")
    await scene.ask("join", join(group, "one", **only, subscribed_topic_regex=found))

    async def epoch(label: str, at_least: int) -> None:
        """Wait until the group has this epoch: a real broker resolves expressions on another thread."""
        async with asyncio.timeout(20):
            while True:
                answer = await scene.quietly(m.ConsumerGroupDescribeRequest([group]), 1)
                if answer.groups[0].group_epoch >= at_least:
                    break
                await asyncio.sleep(0.02)
        await describe(scene, label, group)

    await epoch("it is resolved", 3)
    await scene.ask("it gets both", beat(group, "one", 2))
    await describe(scene, "both", group)
    await scene.ask("the same for two", join(group, "two", **only, subscribed_topic_regex=found))
    await describe(scene, "known already", group)
    await scene.ask("names as well", beat(group, "one", 3, subscribed_topic_names=[one]))
    await describe(scene, "both kinds", group)
    await scene.ask("a broken one later", beat(group, "one", 4, subscribed_topic_regex="["))
    await scene.ask(
        "no longer", beat(group, "two", 4, subscribed_topic_regex="", subscribed_topic_names=[one])
    )
    await describe(scene, "names only", group)


async def left(scene: Scene, group: str, members: set[str], *requests: Any) -> None:
    """Wait until these members of the group are left, while some send heartbeats."""
    async with asyncio.timeout(20):
        while True:
            answer = await scene.quietly(m.ConsumerGroupDescribeRequest([group]), 0)
            if {member.member_id for member in answer.groups[0].members} == members:
                break
            for request in requests:
                await scene.quietly(request)
            await asyncio.sleep(0.05)


async def consumers_at_their_limits(scene: Scene) -> None:
    """Members that are too many, whose sessions expire, and that do not revoke partitions in time."""
    topic = await scene.topic("limited", 2)
    group = await scene.consumer_group("limited")
    await scene.ask("one", join(group, "one", topic, instance_id="i"))
    await scene.ask("two", join(group, "two", topic))
    cls = m.OffsetCommitRequest
    kept = cls.OffsetCommitRequestTopic(topic, partitions=[cls.OffsetCommitRequestPartition(0, 5)])
    await scene.ask("an offset keeps the group", cls(group, 3, "two", topics=[kept]), version=9)
    await scene.ask("three", join(group, "three", topic))
    await scene.ask("three of an instance", join(group, "three", topic, instance_id="j"))
    await scene.ask("two again", join(group, "two", topic))
    await scene.ask("one is away", beat(group, "one", -2, instance_id="i"))
    await scene.ask("one with another id", join(group, "three", topic, instance_id="i"))

    await left(scene, group, set())
    await describe(scene, "all sessions have expired", group)
    await scene.ask("one is unknown", beat(group, "one", 2, instance_id="i"))
    slow = await scene.consumer_group("slow")
    await scene.ask("slow", join(slow, "slow", topic, rebalance_timeout_ms=500))
    await scene.ask("quick", join(slow, "quick", topic))
    await scene.ask("slow is asked to revoke", beat(slow, "slow", 2))
    nothing = owned(scene, topic)
    await left(scene, slow, {"quick"}, beat(slow, "slow", 2), beat(slow, "quick", 3, **nothing))
    await scene.quietly(beat(slow, "quick", 3, **nothing))
    await describe(scene, "slow is gone", slow)
    await scene.ask("slow is unknown", beat(slow, "slow", 2))


async def transactional_offsets_of_consumers(scene: Scene) -> None:
    """Offset commits in a transaction, with member epochs."""
    if scene.version("TxnOffsetCommit") < 3:
        return
    topic = await scene.topic("txc", 2)
    group = await scene.consumer_group("txc")
    writer = await started(scene, "start", await scene.transactional_id("txc"))
    await scene.ask("join", join(group, "one", topic))
    await scene.ask("two joins", join(group, "two", topic))
    await scene.ask("one has revoked", beat(group, "one", 2, **owned(scene, topic, 0)))
    await scene.ask("add", m.AddOffsetsToTxnRequest(*writer, group), until=settled)
    both, first, second = {(topic, 0): 5, (topic, 1): 6}, {(topic, 0): 5}, {(topic, 1): 6}
    cases = {
        "the present epoch": (both, "one", 3),
        "an epoch to come": (first, "one", 4),
        "the epoch before, kept": (first, "one", 2),
        "the epoch before, gone": (second, "one", 2),
        "an epoch long gone": (first, "one", 1),
        "nobody": (first, NOBODY, 3),
        "no member": (first, "", -1),
        "no epoch": (first, "one", -1),
        "no member in an epoch": (first, "", 3),
    }
    for label, (offsets, member, epoch) in cases.items():
        request = txn_offsets(scene, writer, group, offsets, member_id=member, generation_id=epoch)
        await scene.ask(label, request, until=settled)
    await ended(scene, "end", writer, commit=True)
