"""Stories about admin lookups: log directories, resources with settings, pages of partitions, elections."""

from __future__ import annotations

from typing import Any

from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.interop.parity.asks import produce
from tests.interop.parity.records import delete_records
from tests.interop.parity.scene import Scene

__all__ = ["described_resources", "elections", "listed_resources", "pages_of_partitions", "sizes_of_logs"]

TOPIC, NODE, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


async def sizes_of_logs(scene: Scene) -> None:
    """DescribeLogDirs: the requested partitions."""
    topic, version = await scene.topic("sized", 2), scene.version("DescribeLogDirs")
    cls = m.DescribeLogDirsRequest
    for number in range(2):
        await scene.quietly(produce(scene, topic, {0: batch(b"%d" % number)}), scene.version("Produce"))
    cases = {
        "both": [cls.DescribableLogDirTopic(topic, [0, 1])],
        "one, and one that is not there": [cls.DescribableLogDirTopic(topic, [1, 9, -1])],
        "one twice": [cls.DescribableLogDirTopic(topic, [1, 1])],
        "an unknown topic": [cls.DescribableLogDirTopic("nothing", [0])],
        "a bad name": [cls.DescribableLogDirTopic("a b", [0])],
        "no partitions": [cls.DescribableLogDirTopic(topic, [])],
        "none": [],
    }
    for label, wanted in cases.items():
        answer = await scene.quietly(cls(wanted), version)
        for each in answer.results:
            each.log_dir = "<directory>" if each.log_dir else each.log_dir
            for size in ("total_bytes", "usable_bytes"):
                setattr(each, size, "<disk>" if getattr(each, size) > 0 else getattr(each, size))
        scene.keep(label, answer, version)


async def listed_resources(scene: Scene) -> None:
    """ListConfigResources (KIP-1142), by type; only resources of this story are compared."""
    topic, version = await scene.topic("listed", 1), scene.version("ListConfigResources")
    cls = m.ListConfigResourcesRequest
    kinds = {"all": [], "topics": [TOPIC], "nodes": [NODE], "loggers": [LOGGER], "both": [TOPIC, NODE]}
    kinds |= {"client metrics": [CLIENT_METRICS], "groups": [GROUP], "no kind": [77], "a kind of none": [0]}
    kinds |= {"one that is and one that is not": [TOPIC, 77]}
    for label, wanted in kinds.items():
        if version < 1 and wanted:
            continue
        answer = await scene.quietly(cls(wanted), version)
        mine = [
            each
            for each in answer.config_resources
            if each.resource_type != TOPIC or each.resource_name == topic
        ]
        answer.config_resources = mine
        scene.keep(label, answer, version)


async def described_resources(scene: Scene) -> None:
    """DescribeConfigs of types without settings here, of several resources at once, and of a node."""
    topic, cls = await scene.topic("resources", 1, retention_ms="1000"), m.DescribeConfigsRequest
    one = cls.DescribeConfigsResource
    cases = {
        "the same topic twice": [one(TOPIC, topic, ["retention.ms"]), one(TOPIC, topic, ["flush.ms"])],
        "one that is and one that is not": [
            one(TOPIC, topic, ["retention.ms"]),
            one(TOPIC, "nothing", None),
        ],
        "a topic and a kind of none": [one(TOPIC, topic, ["retention.ms"]), one(77, "x", None)],
        "client metrics": [one(CLIENT_METRICS, scene.named("metrics"), None)],
        "client metrics without a name": [one(CLIENT_METRICS, "", None)],
        "a group without a name": [one(GROUP, "", None)],
        "loggers of another node": [one(LOGGER, "7", None)],
        "a topic without a name": [one(TOPIC, "", None)],
        "some of a node": [one(NODE, "1", ["node.id", "num.partitions", "no.such.thing"])],
        "nothing": [],
    }
    for label, wanted in cases.items():
        await scene.ask(label, cls(wanted))
    more: dict[str, Any] = {"include_synonyms": True}
    if scene.version("DescribeConfigs") >= 3:
        more["include_documentation"] = True
    keys = ["retention.ms", "min.insync.replicas", "cleanup.policy", "flush.ms", "compression.type"]
    await scene.ask("with synonyms", cls([one(TOPIC, topic, keys)], **more))


async def pages_of_partitions(scene: Scene) -> None:
    """DescribeTopicPartitions (KIP-966): cursors within, after and outside of the requested topics."""
    first, second = await scene.topic("pages-a", 3), await scene.topic("pages-b", 2)
    cls = m.DescribeTopicPartitionsRequest
    both = [cls.TopicRequest(second), cls.TopicRequest(first)]
    cases = {
        "both": cls(both),
        "four": cls(both, 4),
        "three": cls(both, 3),
        "the next of them": cls(both, 2, cls.Cursor(first, 2)),
        "from the second on": cls(both, 5, cls.Cursor(second, 0)),
        "from one that is not asked for": cls(both[:1], 5, cls.Cursor(first, 0)),
        "from one in between": cls(both, 5, cls.Cursor(first + "x", 1)),
        "from one behind all": cls(both, 5, cls.Cursor("zz", 0)),
        "a partition that is not there": cls(both, 5, cls.Cursor(first, 3)),
        "less than none": cls(both, -1),
        "twice the same": cls(both[:1] * 2, 5),
        "a page that ends with what is not there": cls([*both, cls.TopicRequest("nothing")], 4),
        "no name": cls([cls.TopicRequest("")]),
        "no name besides": cls([cls.TopicRequest(""), *both]),
    }
    for label, request in cases.items():
        await scene.ask(label, request)


async def elections(scene: Scene) -> None:
    """ElectLeaders of both types, several topics at once, and rejected DeleteRecords."""
    topic, elect = await scene.topic("elected", 2), m.ElectLeadersRequest
    version = scene.version("ElectLeaders")
    for kind in (0, 1, 2) if version >= 1 else (0,):
        more = {"election_type": kind} if version >= 1 else {}
        for label, wanted in {
            "several": [elect.TopicPartitions(topic, [0, 9]), elect.TopicPartitions("nothing", [0])],
            "nothing": [],
            "no partitions": [elect.TopicPartitions(topic, [])],
        }.items():
            await scene.ask(f"{label}, kind {kind}", elect(topic_partitions=wanted, **more))
    compacted = await scene.topic("compacted", 1, cleanup_policy="compact")
    await scene.ask("records of a compacted topic", delete_records(compacted, 0, 0))
    cls = m.DeleteRecordsRequest
    twice = cls.DeleteRecordsTopic(
        topic, [cls.DeleteRecordsPartition(0, 0), cls.DeleteRecordsPartition(0, -1)]
    )
    await scene.ask("records twice", cls([twice], 10_000))
    await scene.ask("records of no topics", cls([], 10_000))
    await scene.ask("records of no partitions", cls([cls.DeleteRecordsTopic(topic, [])], 10_000))
