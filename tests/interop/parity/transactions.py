"""Stories about transactions: committed and aborted, fenced, with offsets, and requests out of order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from tests.broker.transactional import transactional
from tests.interop.parity.asks import fetch, list_offsets, offset_fetch, produce
from tests.interop.parity.scene import NOT_YET, TYPED_PRODUCER, Scene

__all__ = [
    "committed_and_aborted",
    "fenced_producers",
    "offsets_in_transactions",
    "out_of_order",
    "started_producers",
]

BUSY: Final = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT)


class Writer(NamedTuple):
    """A producer id and epoch as the coordinator has returned them."""

    name: str
    id: int
    epoch: int


def settled(answer: Any) -> bool:
    """Whether a real broker has written the markers of the previous transaction, which happens in the background."""
    codes = [answer.error_code] if hasattr(answer, "error_code") else []
    if isinstance(answer, m.AddPartitionsToTxnResponse):
        topics = [t for one in answer.results_by_transaction for t in one.topic_results]
        topics += answer.results_by_topic_v3_and_below
        codes += [p.partition_error_code for t in topics for p in t.results_by_partition]
    if isinstance(answer, m.TxnOffsetCommitResponse):
        codes += [p.error_code for t in answer.topics for p in t.partitions]
    if isinstance(answer, m.ProduceResponse):
        codes += [p.error_code for t in answer.responses for p in t.partition_responses]
    return not any(code in BUSY or code in NOT_YET for code in codes)


async def started(
    scene: Scene, label: str, name: str | None, *, known: Writer | None = None, timeout: int = 60_000
) -> Writer:
    """InitProducerId."""
    more: dict[str, Any] = {}
    if known is not None and scene.version("InitProducerId") >= 3:
        more = {"producer_id": known.id, "producer_epoch": known.epoch}
    answer = await scene.ask(label, m.InitProducerIdRequest(name, timeout, **more), until=settled)
    return Writer(name or "", answer.producer_id, answer.producer_epoch)


def add(
    scene: Scene, writer: Writer, places: dict[str, list[int]], *, verify: bool = False
) -> m.AddPartitionsToTxnRequest:
    """AddPartitionsToTxn, in the versions of clients (up to 3) and of brokers."""
    cls = m.AddPartitionsToTxnRequest
    topics = [cls.AddPartitionsToTxnTopic(*place) for place in places.items()]
    if scene.version("AddPartitionsToTxn") >= 4:
        return cls([cls.AddPartitionsToTxnTransaction(*writer, verify, topics)])
    return cls([], *writer, topics)


def end(writer: Writer, commit: bool) -> m.EndTxnRequest:
    """EndTxn."""
    return m.EndTxnRequest(*writer, commit)


def txn_offsets(
    scene: Scene, writer: Writer, group: str, offsets: dict[tuple[str, int], int], **member: Any
) -> Any:
    """TxnOffsetCommit."""
    cls = m.TxnOffsetCommitRequest
    topics = [
        cls.TxnOffsetCommitRequestTopic(name, [cls.TxnOffsetCommitRequestPartition(index, offset)])
        for (name, index), offset in offsets.items()
    ]
    more = member if scene.version("TxnOffsetCommit") >= 3 else {}
    return cls(writer.name, group, writer.id, writer.epoch, topics=topics, **more)


async def started_producers(scene: Scene) -> None:
    """InitProducerId with valid and invalid values."""
    name = await scene.transactional_id("starts")
    plain = await started(scene, "an idempotent producer", None)
    await started(scene, "an idempotent producer that has an id", None, known=plain)
    for label, timeout in (("no timeout", 0), ("a negative timeout", -1), ("too long a timeout", 10**9)):
        await started(scene, label, name, timeout=timeout)
    await started(scene, "no name", "")
    first = await started(scene, "a transactional producer", name)
    second = await started(scene, "its next life", name)
    if scene.version("InitProducerId") >= 3:
        await started(scene, "a life before", name, known=first)
        third = await started(scene, "it goes on", name, known=second)
        await started(scene, "the same once more", name, known=second)
        await started(scene, "the next", name, known=third)
        for label, known in (
            ("an unknown id", Writer(name, TYPED_PRODUCER, 0)),
            ("an epoch to come", Writer(name, third.id, 77)),
            ("an id without epoch", Writer(name, third.id, -1)),
            ("an epoch without id", Writer(name, -1, 1)),
        ):
            await started(scene, label, name, known=known)


async def committed_and_aborted(scene: Scene) -> None:
    """Transactions one after the other, and fetches during them."""
    topic, name = await scene.topic("txn", 2), await scene.transactional_id("txn")
    writer = await started(scene, "start", name)
    for number, commit in enumerate((True, False, True)):
        kind = "committed" if commit else "aborted"
        await scene.ask(f"add {number}", add(scene, writer, {topic: [0]}), until=settled)
        data = transactional(
            b"%d" % number, producer_id=writer.id, epoch=writer.epoch, sequence=_sequence(scene, number)
        )
        await scene.ask(
            f"write {number}", produce(scene, topic, {0: data}, transactional_id=name), until=settled
        )
        await look(scene, f"while {number} is open", topic)
        before, writer = writer, await ended(scene, f"end {number}, {kind}", writer, commit=commit)
        await scene.ask(f"end {number} once more", end(before, commit), until=settled)
        await scene.ask(
            f"the end of {number} is read",
            list_offsets(scene, topic, [(0, -1)], isolation=1),
            until=lambda answer, n=number: answer.topics[0].partitions[0].offset == 2 * n + 2,  # type: ignore[misc]
        )
        await look(scene, f"after {number}", topic)
    await look(scene, "from the middle", topic, 3)
    await scene.ask("an empty transaction", end(writer, True), until=settled)


def _sequence(scene: Scene, number: int) -> int:
    """An epoch starts with sequence number 0; KIP-890 bumps it with every transaction."""
    return 0 if scene.version("EndTxn") >= 5 else number


async def ended(scene: Scene, label: str, writer: Writer, *, commit: bool) -> Writer:
    """Send EndTxn; return the producer id and epoch afterwards."""
    answer = await scene.ask(label, end(writer, commit), until=settled)
    if scene.version("EndTxn") < 5:
        return writer
    return Writer(writer.name, answer.producer_id, answer.producer_epoch)


async def look(scene: Scene, label: str, topic: str, offset: int = 0) -> None:
    """Fetch with both isolation levels."""
    for isolation in (0, 1):
        request = fetch(scene, topic, {0: offset}, isolation_level=isolation)
        await scene.ask(f"{label}, isolation {isolation}", request)


async def fenced_producers(scene: Scene) -> None:
    """Responses to a producer after another one with its transactional id has initialized."""
    topic, name = await scene.topic("fenced", 1), await scene.transactional_id("fenced")
    old = await started(scene, "the first", name)
    await scene.ask("it adds", add(scene, old, {topic: [0]}))
    data = transactional(b"lost", producer_id=old.id, epoch=old.epoch)
    await scene.ask("it writes", produce(scene, topic, {0: data}, transactional_id=name), until=settled)
    new = await started(scene, "the second", name)
    cases: dict[str, Callable[[], Any]] = {
        "it adds again": lambda: add(scene, old, {topic: [0]}),
        "it asks whether it may": lambda: add(scene, old, {topic: [0]}, verify=True),
        "it adds offsets": lambda: m.AddOffsetsToTxnRequest(*old, scene.named("group")),
        "it commits": lambda: end(old, True),
        "it aborts": lambda: end(old, False),
    }
    for label, request in cases.items():
        await scene.ask(label, request())
    late = transactional(b"late", producer_id=old.id, epoch=old.epoch, sequence=1)
    await scene.ask("it writes again", produce(scene, topic, {0: late}, transactional_id=name))
    await scene.ask("the second adds", add(scene, new, {topic: [0]}), until=settled)
    data = transactional(b"kept", producer_id=new.id, epoch=new.epoch)
    await scene.ask(
        "the second writes", produce(scene, topic, {0: data}, transactional_id=name), until=settled
    )
    await ended(scene, "the second commits", new, commit=True)
    await scene.ask(
        "its end is read",
        list_offsets(scene, topic, [(0, -1)], isolation=1),
        until=lambda answer: answer.topics[0].partitions[0].offset == 4,
    )
    await look(scene, "all of it", topic)


async def out_of_order(scene: Scene) -> None:
    """Requests of unknown producers, and without an open transaction."""
    topic, name = await scene.topic("order", 2), await scene.transactional_id("order")
    nobody = Writer(name, TYPED_PRODUCER, 0)
    await scene.ask("an unknown producer adds", add(scene, nobody, {topic: [0]}))
    await scene.ask("an unknown producer adds offsets", m.AddOffsetsToTxnRequest(*nobody, "group"))
    await scene.ask("an unknown producer ends", end(nobody, True))
    await scene.ask("no name", add(scene, Writer("", 1, 0), {topic: [0]}))
    await scene.ask("no name ends", end(Writer("", 1, 0), True))
    await scene.ask("no name adds offsets", m.AddOffsetsToTxnRequest("", 1, 0, "group"))
    writer = await started(scene, "start", name)
    other = Writer(name, TYPED_PRODUCER, writer.epoch)
    await scene.ask("another id adds", add(scene, other, {topic: [0]}))
    await scene.ask("another id ends", end(other, True))
    await scene.ask("a later epoch adds", add(scene, Writer(name, writer.id, writer.epoch + 1), {topic: [0]}))
    await scene.ask("a later epoch ends", end(Writer(name, writer.id, writer.epoch + 1), True))
    await scene.ask("commit of nothing", end(writer, True))
    data = transactional(b"x", producer_id=writer.id, epoch=writer.epoch)
    await scene.ask("a write to what was not added", produce(scene, topic, {0: data}, transactional_id=name))
    await scene.ask(
        "a write of another name", produce(scene, topic, {0: data}, transactional_id=scene.named("other"))
    )
    await scene.ask("a partition that is not there", add(scene, writer, {topic: [0, 9]}))
    await scene.ask("a topic that is not there", add(scene, writer, {"nothing": [0], topic: [0]}))
    await scene.ask("nothing is added", add(scene, writer, {}))
    if scene.version("AddPartitionsToTxn") >= 4:
        await scene.ask("may it write", add(scene, writer, {topic: [1]}, verify=True))
    if scene.version("EndTxn") < 5:
        await scene.ask("abort of nothing", end(writer, False), until=settled)


async def offsets_in_transactions(scene: Scene) -> None:
    """Offsets that take effect when the transaction is committed."""
    topic, group, name = (
        await scene.topic("txo", 2),
        await scene.group("txo"),
        await scene.transactional_id("txo"),
    )
    writer = await started(scene, "start", name)
    for number, commit in enumerate((True, False)):
        await scene.ask(f"add {number}", m.AddOffsetsToTxnRequest(*writer, group), until=settled)
        request = txn_offsets(scene, writer, group, {(topic, 0): 5 + number, ("nothing", 0): 1})
        await scene.ask(f"offsets {number}", request, until=settled)
        await scene.ask(f"while {number} is open", offset_fetch(scene, group, {topic: [0, 1]}))
        await scene.ask(
            f"stable while {number} is open", offset_fetch(scene, group, {topic: [0, 1]}, require_stable=True)
        )
        writer = await ended(scene, f"end {number}", writer, commit=commit)
        stable = offset_fetch(scene, group, {topic: [0, 1]}, require_stable=True)
        await scene.ask(f"after {number}", stable, until=_stable)
    cases = {
        "of no group": txn_offsets(scene, writer, "", {(topic, 0): 1}),
        "of a member that is not there": txn_offsets(
            scene, writer, group, {(topic, 0): 1}, member_id="x", generation_id=1
        ),
        "of a generation without member": txn_offsets(scene, writer, group, {(topic, 0): 1}, generation_id=3),
        "of nothing": txn_offsets(scene, writer, group, {}),
        "of an unknown topic": txn_offsets(scene, writer, group, {("nothing", 0): 1}),
    }
    await scene.ask("add once more", m.AddOffsetsToTxnRequest(*writer, group), until=settled)
    for label, wanted in cases.items():
        await scene.ask(f"offsets {label}", wanted, until=settled)
    await ended(scene, "end", writer, commit=False)


def _stable(answer: m.OffsetFetchResponse) -> bool:
    topics = answer.groups[0].topics if answer.groups else answer.topics
    return all(
        p.error_code not in BUSY and p.committed_offset != -2 for t in topics for p in t.partitions
    ) and (any(p.committed_offset >= 0 for t in topics for p in t.partitions))
