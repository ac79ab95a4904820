"""Stories about edge cases: recreated topics, implicitly added partitions, stray markers, truncated batches."""

from __future__ import annotations

from typing import Any

from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.wire import messages as m
from tests.broker.batches import batch, sequenced
from tests.broker.transactional import transactional, write_markers
from tests.interop.parity.asks import commit, fetch, list_offsets, offset_fetch, produce
from tests.interop.parity.records import leader_epoch
from tests.interop.parity.scene import TYPED_PRODUCER, Scene
from tests.interop.parity.topics import metadata
from tests.interop.parity.transactions import add, end, look, settled, started, txn_offsets

__all__ = [
    "markers_without_transactions",
    "partitions_added_by_writing",
    "recreated_topics",
    "sequence_numbers_at_their_limit",
    "truncated_batches",
]


async def recreated_topics(scene: Scene) -> None:
    """A topic is deleted and created again: responses to clients that know the old one, by name and by id."""
    topic, group = await scene.topic("phoenix", 1), await scene.group("phoenix")
    await scene.quietly(produce(scene, topic, {0: batch(b"old", b"older")}), scene.version("Produce"))
    old, number = scene.topic_ids[topic], 0
    if scene.version("Fetch") >= 7:
        number = (await scene.ask("a fetch session", fetch(scene, topic, {0: 0}, session_epoch=0))).session_id
    await scene.quietly(m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=20_000), 5)
    gone = m.MetadataRequest(
        [m.MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    await scene.ask("it is gone", gone, version=12, until=lambda answer: answer.topics[0].error_code)
    await scene.until_left(topic, 1)
    if number:
        request = fetch(scene, topic, {}, session_id=number, session_epoch=1)
        await scene.ask("the session hears of it", request, until=_told)
    for label, asked in _of_the_old_one(scene, topic, group).items():
        await scene.ask(f"{label} when it is gone", asked)
    await scene.topic("phoenix", 1)
    new, scene.topic_ids[topic] = scene.topic_ids[topic], old
    for label, asked in _of_the_old_one(scene, topic, group).items():
        await scene.ask(f"{label} when another one is there", asked)
    if number:
        # In older versions the session continues with the new topic of that name, whose records it has not read.
        request = fetch(scene, topic, {}, session_id=number, session_epoch=2)
        await scene.ask("the session afterwards", request)
    scene.topic_ids[topic] = new
    for label, asked in _of_the_old_one(scene, topic, group).items():
        await scene.ask(f"{label} of the new one", asked)
    await metadata(scene, "the new one", [topic])


def _told(answer: m.FetchResponse) -> bool:
    return any(p.error_code for t in answer.responses for p in t.partitions)


def _of_the_old_one(scene: Scene, topic: str, group: str) -> dict[str, Any]:
    """Requests with the topic's name or id, depending on the version."""
    asked = {
        "read": fetch(scene, topic, {0: 1}),
        "write": produce(scene, topic, {0: batch(b"new")}),
        "look up": list_offsets(scene, topic, [(0, -1)]),
        "find the end of an epoch": leader_epoch(topic, 0, 0),
        "commit": commit(scene, group, {(topic, 0): 1}),
        "fetch the offset": offset_fetch(scene, group, {topic: [0]}),
    }
    if scene.version("Metadata") >= 12:
        wanted = m.MetadataRequest.MetadataRequestTopic(scene.topic_ids[topic], None)
        asked["describe"] = m.MetadataRequest([wanted])
    return asked


async def partitions_added_by_writing(scene: Scene) -> None:
    """KIP-890 producers add partitions by writing to them, and groups by committing; older producers may not."""
    topic, group = await scene.topic("implicit", 2), await scene.group("implicit")
    name = await scene.transactional_id("implicit")
    writer = await started(scene, "start", name)
    for partition in (0, 1):
        data = transactional(b"%d" % partition, producer_id=writer.id, epoch=writer.epoch)
        request = produce(scene, topic, {partition: data}, transactional_id=name)
        await scene.ask(f"write to {partition}", request, until=settled)
    await scene.ask("offsets", txn_offsets(scene, writer, group, {(topic, 0): 3}), until=settled)
    await look(scene, "while it is open", topic)
    await scene.ask("commit", end(writer, True), until=settled)
    if scene.version("EndTxn") >= 5:
        await scene.ask(
            "the end is read",
            list_offsets(scene, topic, [(0, -1), (1, -1)], isolation=1),
            until=lambda answer: all(p.offset == 2 for p in answer.topics[0].partitions),
        )
        stable = offset_fetch(scene, group, {topic: [0]}, require_stable=True)
        await scene.ask(
            "the offset", stable, until=lambda answer: not answer.groups[0].topics[0].partitions[0].error_code
        )
    late = transactional(b"late", producer_id=writer.id, epoch=writer.epoch, sequence=1)
    await scene.ask("a write of the epoch before", produce(scene, topic, {0: late}, transactional_id=name))
    await look(scene, "afterwards", topic)


async def markers_without_transactions(scene: Scene) -> None:
    """WriteTxnMarkers from an admin client, for producers without a transaction."""
    topic = await scene.topic("markers", 1)
    for label, commits in (("abort", False), ("commit", True)):
        await scene.ask(
            label, write_markers(ProducerIdAndEpoch(TYPED_PRODUCER, 0), 0, commit=commits, topic=topic)
        )
    await scene.ask(
        "an older epoch", write_markers(ProducerIdAndEpoch(TYPED_PRODUCER, 4), 0, commit=False, topic=topic)
    )
    await scene.ask(
        "a fenced one", write_markers(ProducerIdAndEpoch(TYPED_PRODUCER, 3), 0, commit=False, topic=topic)
    )
    await scene.ask(
        "an unknown partition", write_markers(ProducerIdAndEpoch(7, 0), 0, 9, commit=True, topic=topic)
    )
    await scene.ask(
        "an unknown topic", write_markers(ProducerIdAndEpoch(7, 0), 0, commit=True, topic="nothing")
    )
    await look(scene, "afterwards", topic)


async def truncated_batches(scene: Scene) -> None:
    """Byte limits that end inside of batches; clients ignore incomplete batches."""
    topic = await scene.topic("limits", 2)
    version = scene.version("Produce")
    for number in range(6):
        await scene.quietly(
            produce(scene, topic, {0: batch(b"%d" % number * 50), 1: batch(b"x" * 30)}), version
        )
    for limit in (0, 1, 100, 130, 240, 260, 300, 10_000):
        await scene.ask(f"{limit} bytes a partition", fetch(scene, topic, {0: 0, 1: 0}, limit=limit))
        await scene.ask(f"{limit} bytes in all", fetch(scene, topic, {0: 0, 1: 0}, max_bytes=limit))
    for least in (1, 500, 10_000):
        request = fetch(scene, topic, {0: 0, 1: 0}, min_bytes=least, max_wait_ms=20)
        await scene.ask(f"{least} bytes at least", request)


async def sequence_numbers_at_their_limit(scene: Scene) -> None:
    """Sequence numbers that wrap around, partly duplicate batches, and a transaction that does not start at 0."""
    topic = await scene.topic("sequences", 2)
    last = 2**31 - 1
    steps = {
        "up to the last but one": sequenced(last - 3, 3, producer_id=50),
        "over the end": sequenced(last, 3, producer_id=50),
        "over the end again": sequenced(last, 3, producer_id=50),
        "part of it": sequenced(0, 1, producer_id=50),
        "more than it": sequenced(last, 4, producer_id=50),
        "behind it": sequenced(2, 1, producer_id=50),
        "a new epoch from 0": sequenced(0, 1, producer_id=50, epoch=1),
        "behind it, in the epoch before": sequenced(3, 1, producer_id=50),
        "the largest epoch": sequenced(0, 1, producer_id=50, epoch=2**15 - 1),
    }
    for label, data in steps.items():
        await scene.ask(label, produce(scene, topic, {0: data}))
    name = await scene.transactional_id("sequences")
    writer = await started(scene, "start", name)
    await scene.ask("add", add(scene, writer, {topic: [1]}), until=settled)
    second = transactional(b"x", producer_id=writer.id, epoch=writer.epoch, sequence=1)
    await scene.ask(
        "begin with the second", produce(scene, topic, {1: second}, transactional_id=name), until=settled
    )
    plain = sequenced(0, 1, producer_id=writer.id, epoch=writer.epoch)
    await scene.ask("a plain write of the same producer", produce(scene, topic, {1: plain}))
    await scene.ask("abort", end(writer, False), until=settled)
    await scene.ask("all of it", fetch(scene, topic, {0: 0}))
