"""Stories for brokers with narrow limits (`KAFKA_LIMITS`, `OUR_LIMITS`).

Full and expired groups, the initial rebalance delay, offset retention, transaction timeouts, auto topic
creation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from asyncgroup.wire import messages as m
from tests.broker.transactional import transactional
from tests.interop.parity.asks import (
    ASSIGNED,
    commit,
    commit_request,
    fetch,
    heartbeat,
    join,
    joined,
    leave,
    list_offsets,
    offset_fetch,
    produce,
    sync,
)
from tests.interop.parity.groups import describe
from tests.interop.parity.offsets import Committed, offset_delete
from tests.interop.parity.rebalances import asked
from tests.interop.parity.scene import Scene
from tests.interop.parity.transactions import Writer, add, end, look, settled, started

__all__ = [
    "KAFKA_LIMITS",
    "OUR_LIMITS",
    "auto_created_topics",
    "expired_groups",
    "full_groups",
    "transaction_timeouts",
]

KAFKA_LIMITS: Final[Mapping[str, str | int | bool]] = {
    "auto.create.topics.enable": True,
    "group.consumer.assignment.interval.ms": 0,  # else a generation depends on how fast requests follow
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.max.size": 2,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 2000,
    "group.max.size": 2,
    "offsets.retention.check.interval.ms": 100,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
}
"""The broker properties of the Apache Kafka that these stories run on."""

OUR_LIMITS: Final[Mapping[str, Any]] = {
    "auto_create_topics": True,
    "group_consumer_assignment_interval": 0.0,
    "group_consumer_heartbeat_interval": 0.5,
    "group_consumer_max_size": 2,
    "group_consumer_session_timeout": 1.0,
    "initial_rebalance_delay": 2.0,
    "group_max_size": 2,
    "offsets_retention_check_interval": 0.1,
}
"""The same for the embedded cluster; it needs no setting to abort transactions in time."""


async def full_groups(scene: Scene) -> None:
    """Two members join within the initial rebalance delay; a third one exceeds the maximum size."""
    group, topic = await scene.group("full"), await scene.topic("full", 1)
    # A group without members and offsets could expire before the member id is used.
    await scene.ask("an offset keeps the group", commit(scene, group, {(topic, 0): 1}))
    ids = {who: await asked(scene, who, group) for who in ("first", "second")}
    first = await scene.send("first joins", join(scene, group, ids["first"]), via="first")
    await scene.ask(
        "first is waited with",
        m.DescribeGroupsRequest([group]),
        until=lambda answer: answer.groups[0].members,
    )
    second = await scene.send("second joins", join(scene, group, ids["second"]), via="second")
    one, two = await scene.receive(first), await scene.receive(second)
    await _no_room(scene, "while they sync", group)
    plan = {one.member_id: b"1", two.member_id: b"2"}
    await scene.ask("first syncs", sync(scene, group, 1, one.member_id, plan))
    await scene.ask("second syncs", sync(scene, group, 1, two.member_id))
    await _no_room(scene, "when they are stable", group)
    await scene.ask("a member joins again", join(scene, group, two.member_id))
    await scene.ask("second leaves", leave(scene, group, (two.member_id, None)))
    third = await asked(scene, "third", group)
    waiting = await scene.send("third joins", join(scene, group, third), via="third")
    await scene.ask(
        "first hears of it",
        m.DescribeGroupsRequest([group]),
        until=lambda answer: len(answer.groups[0].members) == 2,
    )
    await scene.ask("first joins again", join(scene, group, one.member_id))
    await scene.receive(waiting)
    await describe(scene, "full again", group)


async def _no_room(scene: Scene, label: str, group: str) -> None:
    """A new member, an unknown one, a static one."""
    await scene.ask(f"a newcomer {label}", join(scene, group))
    await scene.ask(f"a stranger {label}", join(scene, group, "stranger"))
    if scene.version("JoinGroup") >= 5:
        await scene.ask(f"an instance {label}", join(scene, group, instance="one"))
    await describe(scene, label, group)


async def expired_groups(scene: Scene) -> None:
    """A group without members and offsets expires, and so do offsets with a short retention."""
    topic, group, simple = (
        await scene.topic("forgotten", 2),
        await scene.group("empty"),
        await scene.group("simple"),
    )
    await scene.ask("an offset keeps the group", commit(scene, group, {(topic, 0): 1}))
    mine = await joined(scene, "join", group)
    me = mine.member_id
    await scene.ask("sync", sync(scene, group, 1, me, {me: ASSIGNED}))
    await scene.ask("leave", leave(scene, group, (me, None)))
    await scene.ask("its offset is deleted", offset_delete(group, {topic: [0]}))
    await forgotten(scene, "the group", group)
    await scene.ask("heartbeat", heartbeat(scene, group, 1, me))
    await scene.ask("its deletion", m.DeleteGroupsRequest([group]))
    if not 2 <= scene.version("OffsetCommit") <= 4:
        return
    keep = [Committed(1, 5)]
    await scene.ask("for good", commit_request(scene, simple, {topic: keep}))
    brief = commit_request(scene, simple, {topic: [Committed(0, 5)]}, retention_time_ms=1)
    await scene.ask("for a moment", brief)
    await scene.ask(
        "what is left",
        offset_fetch(scene, simple, {topic: [0, 1]}),
        until=lambda answer: any(p.committed_offset < 0 for t in answer.topics for p in t.partitions),
    )
    await describe(scene, "with an offset", simple)
    brief = commit_request(scene, simple, {topic: [Committed(1, 6)]}, retention_time_ms=1)
    await scene.ask("that as well", brief)
    await forgotten(scene, "all of it", simple)


async def forgotten(scene: Scene, label: str, group: str) -> None:
    """Wait until the group is removed."""
    gone = m.DescribeGroupsRequest([group])
    await scene.ask(
        f"{label} is forgotten", gone, until=lambda answer: answer.groups[0].group_state == "Dead"
    )


async def transaction_timeouts(scene: Scene) -> None:
    """After `transaction.timeout.ms` the coordinator aborts the transaction and fences the producer."""
    topic, name = await scene.topic("late", 1), await scene.transactional_id("late")
    writer = await started(scene, "start", name, timeout=400)
    await scene.ask("add", add(scene, writer, {topic: [0]}), until=settled)
    data = transactional(b"late", producer_id=writer.id, epoch=writer.epoch)
    await scene.ask("write", produce(scene, topic, {0: data}, transactional_id=name), until=settled)
    await scene.ask(
        "it is aborted",
        m.DescribeTransactionsRequest([name]),
        until=lambda answer: answer.transaction_states[0].transaction_state == "CompleteAbort",
    )
    await scene.ask(
        "the abort is read",
        list_offsets(scene, topic, [(0, -1)], isolation=1),
        until=lambda answer: answer.topics[0].partitions[0].offset == 2,
    )
    await look(scene, "afterwards", topic)
    more = transactional(b"more", producer_id=writer.id, epoch=writer.epoch, sequence=1)
    await scene.ask("it adds", add(scene, writer, {topic: [0]}))
    await scene.ask("it writes", produce(scene, topic, {0: more}, transactional_id=name))
    await scene.ask("it commits", end(writer, True))
    await scene.ask("it aborts", end(writer, False))
    again = await started(scene, "it starts again", name, known=writer, timeout=60_000)
    await scene.ask("adds", add(scene, again, {topic: [0]}), until=settled)
    data = transactional(b"new", producer_id=again.id, epoch=again.epoch)
    await scene.ask("writes", produce(scene, topic, {0: data}, transactional_id=name), until=settled)
    await scene.ask("commits", end(again, True), until=settled)
    await scene.ask("its last life ends", end(Writer(name, writer.id, writer.epoch), True), until=settled)


async def auto_created_topics(scene: Scene) -> None:
    """Metadata creates topics if the client allows it; no other request does."""
    version, cls = scene.version("Metadata"), m.MetadataRequest
    wanted = [scene.named("demanded"), "a b", "", scene.named("and.this"), scene.named("and_this")]

    def metadata(*names: str, create: bool = True) -> m.MetadataRequest:
        more = {"allow_auto_topic_creation": create} if version >= 4 else {}
        return cls([cls.MetadataRequestTopic(name=name) for name in names], **more)

    if version >= 4:
        await scene.ask("not made", metadata(wanted[0], create=False))
        await scene.ask("still not made", metadata(wanted[0], create=False))
    await scene.ask("made", metadata(*wanted[:3]))
    try:
        await scene.until_led(wanted[0], 4)
        await scene.ask("there it is", metadata(wanted[0]))
        await scene.ask("its records", fetch(scene, wanted[0], {3: 0}))
        await scene.ask("a name with a dot", metadata(wanted[3]))
        await scene.until_led(wanted[3], 4)
        await scene.ask("a name that is too much like it", metadata(wanted[4]))
        await scene.ask("and again", metadata(wanted[4]))
    finally:
        scene.topic_ids.pop(wanted[4], None)
    nowhere = scene.named("nowhere")
    other = transactional(b"x", producer_id=1, epoch=0)
    await scene.ask("a write makes none", produce(scene, nowhere, {0: other}, transactional_id="x"))
    await scene.ask("nor does a look", list_offsets(scene, nowhere, [(0, -1)]))
    if version >= 4:
        await scene.ask("so it is not there", metadata(nowhere, create=False))
