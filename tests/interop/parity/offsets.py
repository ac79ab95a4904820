"""Stories about committed offsets: of members and non-members, valid and invalid, fetched and deleted."""

from __future__ import annotations

from asyncgroup.wire import messages as m
from tests.interop.parity.asks import (
    ASSIGNED,
    Committed,
    commit,
    commit_request,
    joined,
    leave,
    offset_fetch,
    sync,
)
from tests.interop.parity.groups import describe
from tests.interop.parity.scene import Scene

__all__ = ["commits_of_members", "commits_without_members", "deleted_offsets", "offsets_of_deleted_topics"]

NOBODY = "nobody"


async def commits_without_members(scene: Scene) -> None:
    """Commits of consumers with manual assignment."""
    topic, group = await scene.topic("simple", 3), await scene.group("simple")
    await scene.ask("nothing committed", offset_fetch(scene, group, {topic: [0, 1]}))
    await everything(scene, "of an unknown group", group)
    await scene.ask("commit", commit(scene, group, {(topic, 0): 5, (topic, 1): 0}))
    await scene.ask("fetch", offset_fetch(scene, group, {topic: [0, 1, 2]}))
    await scene.ask("fetch stable", offset_fetch(scene, group, {topic: [0]}, require_stable=True))
    await everything(scene, "after a commit", group)
    await describe(scene, "a group of offsets only", group)
    values = [Committed(0, 7, 3, "said"), Committed(1, -1, -1, None), Committed(2, 9, -1, "x" * 5000)]
    if scene.version("OffsetCommit") < 6:
        values = [
            Committed(one.partition_index, one.committed_offset, -1, one.committed_metadata) for one in values
        ]
    await scene.ask("metadata, none and too much", commit_request(scene, group, {topic: values}))
    await scene.ask("fetch what was said", offset_fetch(scene, group, {topic: [0, 1, 2]}))
    cases = {
        "no group": commit(scene, "", {(topic, 0): 1}),
        "no topics": commit(scene, group, {}),
        "no partitions": commit_request(scene, group, {topic: []}),
        "an unknown topic": commit(scene, group, {("nothing", 0): 1}),
        "an unknown topic besides": commit(scene, group, {(topic, 0): 8, ("nothing", 0): 1}),
        "an unknown partition": commit(scene, group, {(topic, 3): 1, (topic, -1): 1}),
        "an unknown partition besides": commit(scene, group, {(topic, 1): 8, (topic, 99): 1}),
        "a generation without a member": commit(scene, group, {(topic, 0): 1}, generation=3),
        "a member without a generation": commit(scene, group, {(topic, 0): 1}, member_id=NOBODY),
        "both": commit(scene, group, {(topic, 0): 1}, member_id=NOBODY, generation=1),
        "a generation in a group that is not there": commit(
            scene, scene.named("nowhere"), {(topic, 0): 1}, member_id=NOBODY, generation=1
        ),
        "twice the same partition": commit_request(
            scene, group, {topic: [Committed(0, 20), Committed(0, 21)]}
        ),
    }
    if scene.version("OffsetCommit") >= 7:
        cases["an instance"] = commit(scene, group, {(topic, 0): 1}, instance="one")
        cases["an instance of a member"] = commit(
            scene, group, {(topic, 0): 1}, instance="one", member_id=NOBODY, generation=1
        )
    for label, request in cases.items():
        await scene.ask(f"commit: {label}", request)
    await scene.ask("fetch at the end", offset_fetch(scene, group, {topic: [0, 1, 2, 3]}))
    for label, group_id, topics in (
        ("no group", "", {topic: [0]}),
        ("an unknown topic", group, {"nothing": [0]}),
        ("no partitions", group, {topic: []}),
        ("no topics", group, {}),
        ("twice the same partition", group, {topic: [0, 0]}),
    ):
        await scene.ask(f"fetch: {label}", offset_fetch(scene, group_id, topics))
    await scene.ask("delete no group", m.DeleteGroupsRequest([""]))


async def commits_of_members(scene: Scene) -> None:
    """Commits of members of the current generation, and of earlier ones."""
    topic, group = await scene.topic("members", 1), await scene.group("members")
    mine = await joined(scene, "join", group)
    me, now = mine.member_id, mine.generation_id
    place = {(topic, 0): 1}
    await scene.ask("before sync", commit(scene, group, place, member_id=me, generation=now))
    await scene.ask("sync", sync(scene, group, now, me, {me: ASSIGNED}))
    cases = {
        "of the member": commit(scene, group, {(topic, 0): 2}, member_id=me, generation=now),
        "of an old generation": commit(scene, group, place, member_id=me, generation=now - 1),
        "of a generation to come": commit(scene, group, place, member_id=me, generation=now + 1),
        "of a member without a generation": commit(scene, group, place, member_id=me, generation=-1),
        "of nobody": commit(scene, group, place, member_id=NOBODY, generation=now),
        "from outside": commit(scene, group, place),
    }
    for label, request in cases.items():
        await scene.ask(f"commit {label}", request)
    await scene.ask("fetch", offset_fetch(scene, group, {topic: [0]}))
    await scene.ask("leave", leave(scene, group, (me, None)))
    await scene.ask("commit afterwards", commit(scene, group, place, member_id=me, generation=now))
    await scene.ask("commit from outside afterwards", commit(scene, group, {(topic, 0): 3}))
    await scene.ask("fetch afterwards", offset_fetch(scene, group, {topic: [0]}))


async def offsets_of_deleted_topics(scene: Scene) -> None:
    """Offsets are deleted with their topic, and do not come back with a new topic of that name."""
    topic, other, group = (
        await scene.topic("doomed", 1),
        await scene.topic("kept", 1),
        await scene.group("doomed"),
    )
    await scene.ask("commit", commit(scene, group, {(topic, 0): 5, (other, 0): 6}))
    await scene.quietly(m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=20_000), 5)
    wanted = [m.MetadataRequest.MetadataRequestTopic(name=topic)]
    await scene.ask(
        "the topic is gone",
        m.MetadataRequest(wanted, allow_auto_topic_creation=False),
        version=12,
        until=lambda answer: answer.topics[0].error_code,
    )
    by_name = scene.version("OffsetFetch") < 10

    def is_gone(answer: m.OffsetFetchResponse) -> bool:
        topics = answer.groups[0].topics if answer.groups else answer.topics
        return all(p.committed_offset < 0 for t in topics for p in t.partitions if t.name == topic)

    if by_name:
        await scene.ask("its offset", offset_fetch(scene, group, {topic: [0]}), until=is_gone)
    await everything(scene, "what is left", group)
    await scene.ask("commit for what is gone", commit(scene, group, {(topic, 0): 5}))
    await scene.topic("doomed", 1)
    await scene.ask("its namesake", offset_fetch(scene, group, {topic: [0]}))


async def deleted_offsets(scene: Scene) -> None:
    """OffsetDelete (KIP-496): of an empty group, of subscribed topics, of unknown partitions."""
    if not scene.serves("OffsetDelete"):
        return
    topic, group = await scene.topic("deletion", 2), await scene.group("deletion")
    await scene.ask("commit", commit(scene, group, {(topic, 0): 5, (topic, 1): 6}))
    await scene.ask("delete one", offset_delete(group, {topic: [0]}))
    await scene.ask("what is left", offset_fetch(scene, group, {topic: [0, 1]}))
    cases = {
        "once more": offset_delete(group, {topic: [0]}),
        "an unknown partition": offset_delete(group, {topic: [7]}),
        "an unknown topic": offset_delete(group, {"nothing": [0]}),
        "nothing": offset_delete(group, {}),
        "of no group": offset_delete("", {topic: [0]}),
        "of a group that is not there": offset_delete(scene.named("nowhere"), {topic: [0]}),
    }
    for label, request in cases.items():
        await scene.ask(f"delete {label}", request)
    subscribed = m.ConsumerProtocolSubscription(topics=[topic])
    from asyncgroup.wire.codec import encode_versioned

    mine = await joined(scene, "join", group, protocols=(("range", encode_versioned(subscribed, 0)),))
    await scene.ask("while it joins", offset_delete(group, {topic: [1]}))
    await scene.ask(
        "sync", sync(scene, group, mine.generation_id, mine.member_id, {mine.member_id: ASSIGNED})
    )
    await scene.ask("what is subscribed to", offset_delete(group, {topic: [1]}))
    await scene.ask("leave", leave(scene, group, (mine.member_id, None)))
    await scene.ask("afterwards", offset_delete(group, {topic: [1]}))
    await everything(scene, "nothing", group)


def offset_delete(group: str, places: dict[str, list[int]]) -> m.OffsetDeleteRequest:
    """OffsetDelete of some partitions."""
    cls = m.OffsetDeleteRequest
    topics = [
        cls.OffsetDeleteRequestTopic(name, [cls.OffsetDeleteRequestPartition(index) for index in indexes])
        for name, indexes in places.items()
    ]
    return cls(group, topics)


async def everything(scene: Scene, label: str, group: str) -> None:
    """All offsets of a group."""
    if scene.version("OffsetFetch") >= 2:
        await scene.ask(f"everything {label}", offset_fetch(scene, group, None))
