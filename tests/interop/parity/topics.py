"""Stories about topics: created, described, extended, deleted, and the errors of these requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncgroup.wire import messages as m
from tests.interop.parity.asks import NO_SUCH_ID
from tests.interop.parity.scene import Scene

__all__ = [
    "changed_settings",
    "created_topics",
    "deleted_topics",
    "described_cluster",
    "described_topics",
    "more_partitions",
    "texts_of_refusals",
]

Creatable = m.CreateTopicsRequest.CreatableTopic


async def created_topics(scene: Scene) -> None:
    """CreateTopics, valid and invalid."""
    there = await scene.topic("there", 2)
    await scene.group("any")  # so that there is a topic for offsets
    first = scene.named("first")

    def topic(
        name: str, partitions: int = 1, factor: int = 1, *replicas: Sequence[int], **configs: str | None
    ) -> Creatable:
        cls = m.CreateTopicsRequest
        assignments = [
            cls.CreatableReplicaAssignment(index, list(nodes)) for index, nodes in enumerate(replicas)
        ]
        settings = [cls.CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
        return Creatable(
            scene.named(name) if name == "first" else name, partitions, factor, assignments, settings
        )

    cases = {
        "only validated": ([topic("first", 3)], True),
        "made": ([topic("first", 3)], False),
        "made twice": ([topic("first", 3)], False),
        "validated though it is there": ([topic("first", 3)], True),
        "one good, one there": ([Creatable(scene.named("second"), 1, 1), Creatable(there, 1, 1)], False),
        "the same name twice": ([topic("twice"), topic("twice")], False),
        "with a dot": ([Creatable(scene.named("dotted.name"), 1, 1)], False),
        "too much like it": ([Creatable(scene.named("dotted_name"), 1, 1)], False),
        "no name": ([topic("")], False),
        "a dot": ([topic(".")], False),
        "two dots": ([topic("..")], False),
        "a blank": ([topic("a b")], False),
        "too long a name": ([topic("x" * 250)], False),
        "the offsets' name": ([topic("__consumer_offsets")], False),
        "no partitions": ([topic("none", 0)], False),
        "no partitions and no replicas": ([topic("none", 0, 0)], False),
        "no partitions and too many replicas": ([topic("none", 0, 9)], False),
        "no partitions and a bad setting": ([topic("none", 0, retention_ms="x")], False),
        "assigned with numbers, though it is there": ([Creatable(there, 2, 1, _assigned(1))], False),
        "fewer than none": ([topic("none", -2)], False),
        "no replicas": ([topic("none", 1, 0)], False),
        "more replicas than nodes": ([topic("none", 1, 2)], False),
        "fewer replicas than none": ([topic("none", 1, -2)], False),
        "too many partitions": ([topic("none", 100_000)], True),
        "defaults": ([topic("defaults", -1, -1)], True),
        "assigned": ([topic("assigned", -1, -1, [1], [1])], True),
        "assigned with numbers": ([topic("assigned", 2, 1, [1], [1])], True),
        "assigned to nobody": ([topic("assigned", -1, -1, [])], True),
        "assigned to an unknown node": ([topic("assigned", -1, -1, [7])], True),
        "assigned twice to one node": ([topic("assigned", -1, -1, [1, 1])], True),
        "an unknown setting": ([topic("odd", 1, 1, no_such_thing="1")], True),
        "a number that is none": ([topic("odd", 1, 1, retention_ms="x")], True),
        "a number too small": ([topic("odd", 1, 1, retention_ms="-2")], True),
        "a policy that is none": ([topic("odd", 1, 1, cleanup_policy="burn")], True),
        "a setting without value": ([topic("odd", 1, 1, retention_ms=None)], True),
        "a time type that is none": ([topic("odd", 1, 1, message_timestamp_type="x")], True),
        "nothing": ([], False),
    }
    for label, (topics, validate) in cases.items():
        await scene.ask(label, m.CreateTopicsRequest(topics, 20_000, validate))
    await scene.until_led(first, 3)
    await metadata(scene, "as it is", [first])


async def texts_of_refusals(scene: Scene) -> None:
    """The error messages that programs and people search for: existing topics and invalid configs, word for word."""
    there, cls = await scene.topic("texts", 1), m.CreateTopicsRequest
    altered = m.IncrementalAlterConfigsRequest
    values: dict[str, str | None] = {
        "retention.ms": "soon",
        "min.insync.replicas": "0",
        "segment.bytes": "99999999999",
        "cleanup.policy": "delete, burn",
        "compression.type": "brotli",
        "compression.gzip.level": "10",
        "compression.lz4.level": "18",
        "compression.zstd.level": "-200000",
        "preallocate": "maybe",
        "min.cleanable.dirty.ratio": "2",
        "delete.retention.ms": "",
        "max.compaction.lag.ms": "x",
        "no.such.thing": "1",
        "flush.ms": None,
    }

    async def create(label: str, topic: Creatable) -> None:
        answer = await scene.quietly(cls([topic], 20_000, True), scene.version("CreateTopics"))
        (each,) = answer.topics
        scene.keep(label, {"text": (each.error_message or "").replace(there, "there")})

    async def alter(kind: int, resource: str, name: str, value: str | None) -> None:
        resources = [altered.AlterConfigsResource(kind, resource, [altered.AlterableConfig(name, 0, value)])]
        answer = await scene.quietly(altered(resources, True), scene.version("IncrementalAlterConfigs"))
        scene.keep(f"{kind} {name}={value}", {"text": answer.responses[0].error_message or ""})

    await create("an existing topic", Creatable(there, 1, 1))
    await create(
        "an existing topic, and a bad config", Creatable(there, 0, 9, [], [_config("flush.ms", "x")])
    )
    await create("a bad config, and no partitions", Creatable("texts", 0, 0, [], [_config("flush.ms", "x")]))
    for name, value in values.items():
        await create(f"a topic with {name}", Creatable("texts", 1, 1, [], [_config(name, value)]))
        await alter(2, there, name, value)
    for name, value in (
        ("log.retention.ms", "x"),
        ("message.max.bytes", "-1"),
        ("compression.type", "brotli"),
        ("num.io.threads", "0"),
        ("num.partitions", "3"),
        ("log.message.timestamp.type", "x"),
        ("compression.zstd.level", "23"),
    ):
        await alter(4, "1", name, value)
    for name, value in (
        ("consumer.session.timeout.ms", "x"),
        ("consumer.session.timeout.ms", "0"),
        ("consumer.session.timeout.ms", "99999999"),
        ("share.record.lock.duration.ms", "9"),
        ("share.isolation.level", "none"),
        ("streams.num.standby.replicas", "7"),
        ("consumer.assignment.interval.ms", "99999"),
        ("share.renew.acknowledge.enable", "x"),
        ("foo", "1"),
    ):
        await alter(32, "texts", name, value)


def _assigned(*nodes: int) -> list[m.CreateTopicsRequest.CreatableReplicaAssignment]:
    return [m.CreateTopicsRequest.CreatableReplicaAssignment(0, list(nodes))]


def _config(name: str, value: str | None) -> m.CreateTopicsRequest.CreatableTopicConfig:
    return m.CreateTopicsRequest.CreatableTopicConfig(name, value)


async def described_topics(scene: Scene) -> None:
    """Metadata and DescribeTopicPartitions, by name and by id, of known and unknown topics."""
    topic, version = await scene.topic("described", 3), scene.version("Metadata")
    await metadata(scene, "one", [topic])
    await metadata(scene, "one of two", [topic, "nothing"])
    await metadata(scene, "bad names", ["", "a b", "x" * 250])
    await metadata(scene, "twice", [topic, topic])
    cls = m.MetadataRequest
    if version >= 1:
        await scene.ask("none", cls([]))
    if version >= 8:
        wanted = cls.MetadataRequestTopic(name=topic)
        rights: dict[str, Any] = {"include_topic_authorized_operations": True}
        if version <= 10:
            rights["include_cluster_authorized_operations"] = True
        await scene.ask("what is allowed", cls([wanted], allow_auto_topic_creation=False, **rights))
    if version >= 12:
        for label, topic_id in (("by id", scene.topic_ids[topic]), ("by an unknown id", NO_SUCH_ID)):
            await scene.ask(label, cls([cls.MetadataRequestTopic(topic_id, None)]))
        both = cls.MetadataRequestTopic(scene.topic_ids[topic], topic)
        await scene.ask("by both", cls([both]))
        await scene.ask("by neither", cls([cls.MetadataRequestTopic(m.NO_UUID, None)]))
    new = m.DescribeTopicPartitionsRequest
    cases = {
        "partitions": new([new.TopicRequest(topic)]),
        "partitions of what is not there": new([new.TopicRequest("nothing"), new.TopicRequest(topic)]),
        "partitions of a bad name": new([new.TopicRequest("a b")]),
        "two partitions": new([new.TopicRequest(topic)], 2),
        "the rest": new([new.TopicRequest(topic)], 2, new.Cursor(topic, 2)),
        "beyond the end": new([new.TopicRequest(topic)], 2, new.Cursor(topic, 7)),
        "a cursor below": new([new.TopicRequest(topic)], 2, new.Cursor(topic, -1)),
        "no room": new([new.TopicRequest(topic)], 0),
    }
    if scene.serves("DescribeTopicPartitions"):
        for label, request in cases.items():
            await scene.ask(label, request)


async def described_cluster(scene: Scene) -> None:
    """DescribeCluster: nodes, controllers, authorized operations."""
    version, cls = scene.version("DescribeCluster"), m.DescribeClusterRequest
    await scene.ask("cluster", cls())
    await scene.ask("what is allowed", cls(include_cluster_authorized_operations=True))
    if version >= 1:
        await scene.ask("controllers", cls(endpoint_type=2))
        await scene.ask("endpoints of no type", cls(endpoint_type=9))
    if version >= 2:
        await scene.ask("fenced ones", cls(include_fenced_brokers=True))


async def more_partitions(scene: Scene) -> None:
    """CreatePartitions, valid and invalid."""
    topic, cls = await scene.topic("grown", 2), m.CreatePartitionsRequest

    def wanted(
        name: str, count: int, *replicas: list[int]
    ) -> m.CreatePartitionsRequest.CreatePartitionsTopic:
        assignments = [cls.CreatePartitionsAssignment(nodes) for nodes in replicas] or None
        return cls.CreatePartitionsTopic(name, count, assignments)

    cases = {
        "only validated": ([wanted(topic, 4)], True),
        "fewer": ([wanted(topic, 1)], False),
        "as many": ([wanted(topic, 2)], False),
        "none": ([wanted(topic, 0)], False),
        "fewer than none": ([wanted(topic, -1)], False),
        "too many": ([wanted(topic, 30_000)], True),
        "an unknown topic": ([wanted("nothing", 3)], False),
        "a bad name": ([wanted("a b", 3)], False),
        "twice": ([wanted(topic, 3), wanted(topic, 4)], False),
        "an assignment too many": ([wanted(topic, 3, [1], [1])], False),
        "an assignment too few": ([wanted(topic, 4, [1])], False),
        "an unknown node": ([wanted(topic, 3, [7])], False),
        "nobody": ([wanted(topic, 3, [])], False),
        "the same node twice": ([wanted(topic, 3, [1, 1])], False),
        "nothing": ([], False),
        "assigned": ([wanted(topic, 3, [1])], False),
        "one more": ([wanted(topic, 4)], False),
    }
    for label, (topics, validate) in cases.items():
        await scene.ask(label, cls(topics, 20_000, validate))
    await scene.until_led(topic, 4)
    await metadata(scene, "grown", [topic])


async def deleted_topics(scene: Scene) -> None:
    """DeleteTopics by name and by id."""
    version, cls = scene.version("DeleteTopics"), m.DeleteTopicsRequest
    names = [await scene.topic(name, 1) for name in ("one", "two", "three")]

    def by_name(*wanted: str) -> m.DeleteTopicsRequest:
        if version >= 6:
            return cls([cls.DeleteTopicState(name) for name in wanted], timeout_ms=20_000)
        return cls(topic_names=list(wanted), timeout_ms=20_000)

    await scene.ask("an unknown one", by_name("nothing"))
    await scene.ask("a bad name", by_name("a b"))
    await scene.ask("no name", by_name(""))
    await scene.ask("none", by_name())
    await scene.ask("one", by_name(names[0]))
    await scene.ask("once more", by_name(names[0]))
    await scene.ask("the same twice", by_name(names[1], names[1]))
    await scene.ask("one of two", by_name(names[1], "nothing"))
    if version >= 6:
        topic_id = scene.topic_ids[names[2]]
        cases = {
            "an unknown id": [cls.DeleteTopicState(None, NO_SUCH_ID)],
            "neither name nor id": [cls.DeleteTopicState(None)],
            "name and id": [cls.DeleteTopicState(names[2], topic_id)],
            "the id twice": [cls.DeleteTopicState(None, topic_id), cls.DeleteTopicState(None, topic_id)],
            "once by name, once by id": [
                cls.DeleteTopicState(names[2]),
                cls.DeleteTopicState(None, topic_id),
            ],
            "by id": [cls.DeleteTopicState(None, topic_id)],
            "by id once more": [cls.DeleteTopicState(None, topic_id)],
        }
        for label, wanted in cases.items():
            await scene.ask(label, cls(wanted, timeout_ms=20_000))


async def changed_settings(scene: Scene) -> None:
    """DescribeConfigs of topics, a node and unknown resources; changes by AlterConfigs and IncrementalAlterConfigs."""
    topic, cls = (
        await scene.topic("settings", 1, retention_ms="1000", cleanup_policy="compact,delete"),
        m.DescribeConfigsRequest,
    )
    some = ["retention.ms", "cleanup.policy", "max.message.bytes", "min.insync.replicas", "segment.bytes"]

    async def describe(label: str, kind: int, name: str, keys: list[str] | None, **more: bool) -> None:
        await scene.ask(label, cls([cls.DescribeConfigsResource(kind, name, keys)], **more))

    await describe("some", 2, topic, some)
    await describe("synonyms", 2, topic, some[:1], include_synonyms=True)
    await describe("an unknown key", 2, topic, ["no.such.thing"])
    await describe("no keys", 2, topic, [])
    await describe("an unknown topic", 2, "nothing", some)
    await describe("a bad name", 2, "a b", some)
    await describe("an unknown node", 4, "77", None)
    await describe("a node without a number", 4, "x", None)
    await describe("a kind that is none", 99, "x", None)


async def metadata(scene: Scene, label: str, names: list[str]) -> None:
    """Metadata without auto topic creation."""
    cls, creates = m.MetadataRequest, {}
    if scene.version("Metadata") >= 4:
        creates["allow_auto_topic_creation"] = False
    topics = [cls.MetadataRequestTopic(name=name) for name in names]
    await scene.ask(f"metadata: {label}", cls(topics, **creates))
