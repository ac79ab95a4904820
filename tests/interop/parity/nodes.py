"""Stories on three nodes: requests to the wrong node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.interop.parity.asks import (
    commit,
    fetch,
    heartbeat,
    join,
    leave,
    list_offsets,
    offset_fetch,
    produce,
    sync,
)
from tests.interop.parity.records import delete_records, leader_epoch
from tests.interop.parity.scene import LIMIT, PAUSE, TYPED_PRODUCER, Scene
from tests.interop.parity.topics import metadata
from tests.interop.parity.transactions import Writer, add, end, txn_offsets

__all__ = ["moved_leaders", "wrong_coordinators", "wrong_leaders"]

VIAS = {"leader": 2, "follower": 1, "stranger": 3}
"""The nodes with and without a replica of partition 0."""


async def wrong_leaders(scene: Scene) -> None:
    """Requests for records to the leader, a follower, and a node without a replica."""
    scene.places |= VIAS
    topic = await placed(scene, "led")
    await metadata(scene, "as it is placed", [topic])
    await scene.ask("write", produce(scene, topic, {0: batch(b"a", b"b")}), via="leader")
    if scene.version("Fetch") >= 11:
        await scene.ask(
            "the follower has it",
            fetch(scene, topic, {0: 0}),
            via="follower",
            until=lambda answer: answer.responses[0].partitions[0].high_watermark == 2,
        )
    cases: dict[str, Any] = {
        "read": fetch(scene, topic, {0: 0}),
        "read what is here and there": fetch(scene, topic, {0: 0, 1: 0}),
        "read in another epoch": fetch(scene, topic, {0: 0}, epoch=9),
        "look up": list_offsets(scene, topic, [(0, -1), (1, -2)]),
        "find the end of an epoch": leader_epoch(topic, 0, 0),
        "describe producers": m.DescribeProducersRequest(
            [m.DescribeProducersRequest.TopicRequest(topic, [0, 1])]
        ),
    }
    if scene.version("Fetch") >= 11:
        cases["read from the rack of the follower"] = fetch(scene, topic, {0: 1}, rack_id="rack-1")
        cases["read from the rack of nobody"] = fetch(scene, topic, {0: 1}, rack_id="rack-7")
    # At the end, as followers learn of it later.
    cases["write"] = produce(scene, topic, {0: batch(b"c")})
    cases["delete records"] = delete_records(topic, 0, 1)
    for label, request in cases.items():
        for via in VIAS:
            await scene.ask(f"{label}: {via}", request, via=via)


async def moved_leaders(scene: Scene) -> None:
    """The leader moves to a follower, twice, and records are written in each epoch.

    Requests with an older epoch are fenced, requests with a later epoch get UNKNOWN_LEADER_EPOCH, and the end
    offset of each epoch is returned.
    """
    if not scene.serves("AlterPartitionReassignments") or not scene.serves("ElectLeaders"):
        return
    scene.places |= VIAS
    topic = await placed(scene, "moving")
    await scene.ask("a write in epoch 0", produce(scene, topic, {0: batch(b"a", b"b")}), via="leader")
    for epoch, (replicas, via) in enumerate((([1, 2], "follower"), ([2, 1], "leader")), 1):
        await hand_over(scene, topic, replicas, epoch)
        await scene.ask(
            f"a write in epoch {epoch}",
            produce(scene, topic, {0: batch(b"%d" % epoch)}),
            via=via,
            until=lambda answer: not answer.responses[0].partition_responses[0].error_code,
        )
    # the follower has to hear of the end of the log before it can be asked
    if scene.version("Fetch") >= 11:
        await scene.ask(
            "the follower has it",
            fetch(scene, topic, {0: 0}),
            via="follower",
            until=lambda answer: answer.responses[0].partitions[0].high_watermark == 4,
        )
    cases: dict[str, Any] = {"read without an epoch": fetch(scene, topic, {0: 2})}
    for epoch in (0, 1, 2, 3):
        cases[f"read in epoch {epoch}"] = fetch(scene, topic, {0: 2}, epoch=epoch)
        cases[f"look up in epoch {epoch}"] = list_offsets(scene, topic, [(0, -1)], epoch=epoch)
        cases[f"the end of epoch {epoch}"] = leader_epoch(topic, 0, epoch)
        cases[f"the end of epoch 1, in epoch {epoch}"] = leader_epoch(topic, 0, 1, current=epoch)
    if scene.version("Fetch") >= 12:
        for epoch, offset in ((0, 2), (0, 3), (1, 3), (1, 4), (2, 4), (2, 9), (3, 4)):
            request = fetch(scene, topic, {0: offset}, last_epoch=epoch)
            cases[f"read from {offset} after epoch {epoch}"] = request
    for label, request in cases.items():
        for via in VIAS:
            await scene.ask(f"{label}: {via}", request, via=via)
    await scene.ask("a write to the one before", produce(scene, topic, {0: batch(b"x")}), via="follower")
    await metadata(scene, "as it is led", [topic])


async def hand_over(scene: Scene, topic: str, replicas: list[int], epoch: int) -> None:
    """Make another replica the preferred one and elect it; wait until all nodes know it."""
    move, elect = m.AlterPartitionReassignmentsRequest, m.ElectLeadersRequest
    place = [move.ReassignableTopic(topic, [move.ReassignablePartition(0, replicas)])]
    await scene.ask(f"the replicas of epoch {epoch}", move(topics=place))
    asked = m.MetadataRequest(
        [m.MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )

    async def until(wanted: Callable[[Any], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            for via in VIAS:
                while True:
                    (found,) = (await scene.peek(await scene.send("", asked, via=via, version=12))).topics
                    if wanted(next(p for p in found.partitions if p.partition_index == 0)):
                        break
                    await asyncio.sleep(PAUSE)

    await until(lambda partition: partition.replica_nodes == replicas)
    request = elect(topic_partitions=[elect.TopicPartitions(topic, [0])])
    await scene.ask(f"the election of epoch {epoch}", request)
    await until(lambda partition: (partition.leader_id, partition.leader_epoch) == (replicas[0], epoch))


async def placed(scene: Scene, name: str) -> str:
    """Create a topic with the given replica assignment."""
    cls, full = m.CreateTopicsRequest, scene.named(name)
    replicas = [cls.CreatableReplicaAssignment(index, nodes) for index, nodes in enumerate(([2, 1], [3, 2]))]
    settings = [
        cls.CreatableTopicConfig("retention.ms", "-1"),
        cls.CreatableTopicConfig("segment.ms", str(1 << 60)),
    ]
    await scene.quietly(cls([cls.CreatableTopic(full, -1, -1, replicas, settings)], 20_000), 7)
    known = m.MetadataRequest(
        [m.MetadataRequest.MetadataRequestTopic(name=full)], allow_auto_topic_creation=False
    )
    async with asyncio.timeout(LIMIT):
        for via in ("leader", "follower", "stranger"):
            while True:
                sent = await scene.send("", known, via=via, version=12)
                (topic,) = (await scene.peek(sent)).topics
                if not topic.error_code and all(len(p.isr_nodes) == 2 for p in topic.partitions):
                    break
                await asyncio.sleep(PAUSE)
        scene.topic_ids[full] = topic.topic_id
        # A node's metadata is ahead of its replicas.
        for via, index in (("leader", 0), ("stranger", 1)):
            asked = m.ListOffsetsRequest.ListOffsetsTopic(
                full, [m.ListOffsetsRequest.ListOffsetsPartition(index, timestamp=-1)]
            )
            while True:
                sent = await scene.send("", m.ListOffsetsRequest(-1, topics=[asked]), via=via, version=4)
                if not (await scene.peek(sent)).topics[0].partitions[0].error_code:
                    break
                await asyncio.sleep(PAUSE)
    return full


async def wrong_coordinators(scene: Scene) -> None:
    """Requests for groups and transactional ids to a node that is not their coordinator."""
    topic = await placed_anywhere(scene, "coordinated")
    group, name = scene.named("group"), scene.named("transactions")
    for kind, key in ((0, group), (1, name)):
        request = m.FindCoordinatorRequest(key, kind)
        async with asyncio.timeout(LIMIT):
            while (found := await scene.quietly(request, 3)).error_code:
                await asyncio.sleep(PAUSE)
        scene.places[f"stranger {kind}"] = found.node_id % 3 + 1
    nobody = Writer(name, TYPED_PRODUCER, 0)
    groups: dict[str, Any] = {
        "join": join(scene, group),
        "sync": sync(scene, group, 1, "nobody"),
        "heartbeat": heartbeat(scene, group, 1, "nobody"),
        "leave": leave(scene, group, ("nobody", None)),
        "commit": commit(scene, group, {(topic, 0): 1}),
        "fetch": offset_fetch(scene, group, {topic: [0]}),
        "describe": m.DescribeGroupsRequest([group]),
        "delete": m.DeleteGroupsRequest([group]),
    }
    if scene.serves("OffsetDelete"):
        place = m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
            topic, [m.OffsetDeleteRequest.OffsetDeleteRequestPartition(0)]
        )
        groups["delete offsets"] = m.OffsetDeleteRequest(group, [place])
    transactions: dict[str, Any] = {
        "start": m.InitProducerIdRequest(name, 60_000),
        "add": add(scene, nobody, {topic: [0]}),
        "add offsets": m.AddOffsetsToTxnRequest(*nobody, group),
        "end": end(nobody, True),
        "describe transaction": m.DescribeTransactionsRequest([name]),
    }
    for kind, requests in enumerate((groups, transactions)):
        for label, request in requests.items():
            await scene.ask(label, request, via=f"stranger {kind}")
    offsets = txn_offsets(scene, nobody, group, {(topic, 0): 1})
    await scene.ask("offsets in a transaction", offsets, via="stranger 0")


async def placed_anywhere(scene: Scene, name: str) -> str:
    """Like `placed`, for stories without requests to leaders."""
    scene.places |= VIAS
    return await placed(scene, name)
