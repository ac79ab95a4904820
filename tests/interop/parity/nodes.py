"""Stories on three nodes: what is told to those who ask the wrong one."""

from __future__ import annotations

import asyncio
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

__all__ = ["wrong_coordinators", "wrong_leaders"]

VIAS = {"leader": 2, "follower": 1, "stranger": 3}
"""Where the replicas of partition 0 are, and are not."""


async def wrong_leaders(scene: Scene) -> None:
    """Records are asked of the leader, of a follower, and of a node that has none of them."""
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
    # at the end, since followers hear of it later
    cases["write"] = produce(scene, topic, {0: batch(b"c")})
    cases["delete records"] = delete_records(topic, 0, 1)
    for label, request in cases.items():
        for via in VIAS:
            await scene.ask(f"{label}: {via}", request, via=via)


async def placed(scene: Scene, name: str) -> str:
    """A topic whose partitions are where the story wants them."""
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
        # the metadata of a node is ahead of its replicas
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
    """Groups and transactional ids are asked of a node that does not coordinate them."""
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
    """As `placed`, for stories that ask no leaders."""
    scene.places |= VIAS
    return await placed(scene, name)
