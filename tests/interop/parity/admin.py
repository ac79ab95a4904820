"""Stories about administration: altered settings, elections, reassignments, producers, transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncgroup.wire import messages as m
from tests.broker.batches import batch, sequenced
from tests.broker.transactional import transactional
from tests.interop.parity.asks import produce
from tests.interop.parity.scene import Scene
from tests.interop.parity.transactions import add, end, settled, started

__all__ = ["altered_settings", "described_producers", "described_transactions", "moved_partitions"]

TOPIC, NODE = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
DEFAULTS = {
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
}
CHECKED: dict[str, dict[str, str]] = {
    "only validated": {"retention.ms": "-1"},
    "set": {"retention.ms": "5000", "segment.bytes": "2000000"},
    "appended again": {"cleanup.policy": "delete,compact"},
    "subtracted": {"cleanup.policy": "compact"},
    "deleted": {"segment.bytes": DEFAULTS["segment.bytes"]},
    "a good key with a bad one": {},
    "nothing": {},
}
"""Steps after which the settings are described, and what is different in them since the last time."""


async def altered_settings(scene: Scene) -> None:
    """IncrementalAlterConfigs and AlterConfigs, valid and invalid, and the resulting settings."""
    if not scene.serves("IncrementalAlterConfigs"):
        return
    topic = await scene.topic("altered", 1, cleanup_policy="delete")
    steps: dict[str, tuple[str, list[tuple[str, int, str | None]], bool]] = {
        "only validated": (topic, [("retention.ms", SET, "7")], True),
        "set": (topic, [("retention.ms", SET, "5000"), ("segment.bytes", SET, "2000000")], False),
        "appended": (topic, [("cleanup.policy", APPEND, "compact")], False),
        "appended again": (topic, [("cleanup.policy", APPEND, "compact")], False),
        "subtracted": (topic, [("cleanup.policy", SUBTRACT, "delete")], False),
        "deleted": (topic, [("segment.bytes", DELETE, None)], False),
        "appended to what is no list": (topic, [("retention.ms", APPEND, "5")], False),
        "twice the same key": (topic, [("retention.ms", SET, "5"), ("retention.ms", DELETE, None)], False),
        "an unknown key": (topic, [("no.such.thing", SET, "5")], False),
        "an unknown key deleted": (topic, [("no.such.thing", DELETE, None)], False),
        "a bad value": (topic, [("retention.ms", SET, "soon")], False),
        "a value out of bounds": (topic, [("min.insync.replicas", SET, "0")], False),
        "no value": (topic, [("retention.ms", SET, None)], False),
        "a good key with a bad one": (
            topic,
            [("retention.ms", SET, "9"), ("segment.bytes", SET, "x")],
            False,
        ),
        "nothing": (topic, [], False),
        "an unknown topic": ("nothing", [("retention.ms", SET, "5")], False),
        "a bad topic": ("a b", [("retention.ms", SET, "5")], False),
        "no topic": ("", [("retention.ms", SET, "5")], False),
    }
    expected = dict(DEFAULTS)
    for label, (name, changes, validate) in steps.items():
        await scene.ask(label, incremental({name: changes}, validate))
        if label in CHECKED:
            expected |= CHECKED[label]
            await settings(scene, f"after {label}", topic, expected)
    reset = [("leader.replication.throttled.rate", DELETE, None)]
    for node in ("1", "", "7", "x"):
        await scene.ask(f"node {node!r} reset", incremental({node: reset}, kind=NODE))
    await scene.ask("the same topic twice", _twice(topic))
    await scene.ask("a kind that is none", incremental({"x": [("a", SET, "5")]}, kind=99))
    cls = m.AlterConfigsRequest
    if scene.serves("AlterConfigs"):
        whole = cls.AlterConfigsResource(TOPIC, topic, [cls.AlterableConfig("max.message.bytes", "1000")])
        await scene.ask("all of them", cls([whole]))
        await settings(scene, "after all of them", topic, DEFAULTS | {"max.message.bytes": "1000"})
        await scene.ask("all of nothing", cls([cls.AlterConfigsResource(TOPIC, "nothing", [])]))


def incremental(
    changes: Mapping[str, list[tuple[str, int, str | None]]], validate: bool = False, *, kind: int = TOPIC
) -> m.IncrementalAlterConfigsRequest:
    """Return an IncrementalAlterConfigs request; changes are (key, operation, value), by name."""
    cls = m.IncrementalAlterConfigsRequest
    resources = [
        cls.AlterConfigsResource(kind, name, [cls.AlterableConfig(*change) for change in each])
        for name, each in changes.items()
    ]
    return cls(resources, validate)


def _twice(topic: str) -> m.IncrementalAlterConfigsRequest:
    request = incremental({topic: [("retention.ms", SET, "5")]})
    return m.IncrementalAlterConfigsRequest(request.resources * 2)


async def settings(scene: Scene, label: str, topic: str, expected: Mapping[str, str]) -> None:
    """Describe some settings of the topic once a real broker's metadata has these values."""
    cls = m.DescribeConfigsRequest
    request = cls([cls.DescribeConfigsResource(TOPIC, topic, list(DEFAULTS))])

    def caught_up(answer: m.DescribeConfigsResponse) -> bool:
        return {each.name: each.value for each in answer.results[0].configs} == expected

    await scene.ask(label, request, until=caught_up)


async def described_producers(scene: Scene) -> None:
    """DescribeProducers (KIP-664)."""
    if not scene.serves("DescribeProducers"):
        return
    topic = await scene.topic("producers", 2)
    version, cls = scene.version("Produce"), m.DescribeProducersRequest
    for data in (sequenced(0, 3), sequenced(3), batch(b"nobody"), sequenced(0, producer_id=9, epoch=4)):
        await scene.quietly(produce(scene, topic, {0: data}), version)
    for label, name, partitions in (
        ("two producers", topic, [0]),
        ("none", topic, [1]),
        ("an unknown partition", topic, [0, 9]),
        ("an unknown topic", "nothing", [0]),
        ("a bad topic", "a b", [0]),
        ("no partitions", topic, []),
    ):
        await scene.ask(label, cls([cls.TopicRequest(name, partitions)]))


async def described_transactions(scene: Scene) -> None:
    """DescribeTransactions and ListTransactions (KIP-664), while one is open and afterwards."""
    if not scene.serves("DescribeTransactions"):
        return
    topic, name = await scene.topic("described", 1), await scene.transactional_id("described")
    writer = await started(scene, "start", name)
    await transactions(scene, "before", name)
    await scene.ask("add", add(scene, writer, {topic: [0]}), until=settled)
    data = transactional(b"x", producer_id=writer.id, epoch=writer.epoch)
    await scene.ask("write", produce(scene, topic, {0: data}, transactional_id=name), until=settled)
    await transactions(scene, "while it is open", name)
    await scene.ask("end", end(writer, True), until=settled)
    await transactions(scene, "afterwards", name, "CompleteCommit")
    for label, names in (("nobody", ["nobody"]), ("no name", [""]), ("none", []), ("twice", [name, name])):
        await scene.ask(f"describe {label}", m.DescribeTransactionsRequest(names))


async def transactions(scene: Scene, label: str, name: str, state: str = "") -> None:
    """Describe a transaction, and list the transactions of its producer."""
    request = m.DescribeTransactionsRequest([name])
    described = await scene.ask(
        f"describe {label}",
        request,
        until=lambda answer: state in ("", answer.transaction_states[0].transaction_state),
    )
    producer = described.transaction_states[0].producer_id
    cls, version = m.ListTransactionsRequest, scene.version("ListTransactions")
    filters: dict[str, dict[str, Any]] = {
        "": {},
        "by state": {"state_filters": ["Ongoing"]},
        "by a state that is none": {"state_filters": ["Sleeping"]},
    }
    if version >= 1:
        filters["by age"] = {"duration_filter": 100_000_000}
    if version >= 2:
        filters |= {"by name": {"transactional_id_pattern": f".*{name}"}}
    for kind, values in filters.items():
        request = cls(producer_id_filters=[producer], **{"state_filters": [], **values})  # type: ignore[assignment]
        await scene.ask(f"list {label} {kind}", request)


async def moved_partitions(scene: Scene) -> None:
    """Elections and reassignments without effect on one node, and impossible ones."""
    if not scene.serves("ElectLeaders") or not scene.serves("AlterPartitionReassignments"):
        return
    topic, elect = await scene.topic("moved", 2), m.ElectLeadersRequest

    def election(kind: int, name: str, *partitions: int) -> m.ElectLeadersRequest:
        more = {"election_type": kind} if scene.version("ElectLeaders") >= 1 else {}
        return elect(topic_partitions=[elect.TopicPartitions(name, list(partitions))], **more)

    await scene.ask("preferred", election(0, topic, 0, 1))
    await scene.ask("unclean", election(1, topic, 0))
    await scene.ask("of an unknown partition", election(0, topic, 9))
    await scene.ask("of an unknown topic", election(0, "nothing", 0))
    cls = m.AlterPartitionReassignmentsRequest

    def reassign(name: str, replicas: dict[int, list[int] | None]) -> m.AlterPartitionReassignmentsRequest:
        wanted = [cls.ReassignablePartition(index, nodes) for index, nodes in replicas.items()]
        return cls(topics=[cls.ReassignableTopic(name, wanted)])

    await scene.ask("to where it is", reassign(topic, {0: [1]}))
    await scene.ask("to an unknown node", reassign(topic, {0: [7]}))
    await scene.ask("to nobody", reassign(topic, {0: []}))
    await scene.ask("twice to one node", reassign(topic, {0: [1, 1]}))
    await scene.ask("cancelled, though none goes on", reassign(topic, {0: None}))
    await scene.ask("an unknown partition", reassign(topic, {9: [1]}))
    await scene.ask("an unknown topic", reassign("nothing", {0: [1]}))
    current = m.ListPartitionReassignmentsRequest
    await scene.ask("all that go on", current(topics=None))
    asked = current.ListPartitionReassignmentsTopics
    await scene.ask("those of the topic", current(topics=[asked(topic, [0, 1, 9]), asked("nothing", [0])]))
