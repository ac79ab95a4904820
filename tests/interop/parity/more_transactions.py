"""More stories about transactions: repeated ends, mixed versions, offsets of group members, batched requests."""

from __future__ import annotations

from typing import Any

from asyncgroup.wire import messages as m
from tests.broker.batches import sequenced
from tests.broker.transactional import transactional
from tests.interop.parity.asks import ASSIGNED, join, joined, offset_fetch, produce, sync
from tests.interop.parity.scene import TYPED_PRODUCER, Scene
from tests.interop.parity.transactions import Writer, add, end, ended, settled, started, txn_offsets

__all__ = ["batched_transactions", "offsets_of_members", "producers_with_mixed_versions", "repeated_ends"]


async def repeated_ends(scene: Scene) -> None:
    """EndTxn without a transaction, repeated, and with the opposite outcome; each followed by a description."""
    topic, name = await scene.topic("ends", 1), await scene.transactional_id("ends")
    writer = await started(scene, "start", name)
    if scene.version("EndTxn") >= 5:
        writer = await ended(scene, "abort of nothing", writer, commit=False)
        await described(scene, "after nothing", name, "CompleteAbort")
    before = writer
    for number, commit in enumerate((True, False)):
        kind = "commit" if commit else "abort"
        await scene.ask(f"add for the {kind}", add(scene, writer, {topic: [0]}), until=settled)
        sequence = 0 if scene.version("EndTxn") >= 5 else number
        data = transactional(b"%d" % number, producer_id=writer.id, epoch=writer.epoch, sequence=sequence)
        await scene.ask(
            f"write for the {kind}", produce(scene, topic, {0: data}, transactional_id=name), until=settled
        )
        await described(scene, f"before the {kind}", name)
        before, writer = writer, await ended(scene, f"the {kind}", writer, commit=commit)
        state = "CompleteCommit" if commit else "CompleteAbort"
        await described(scene, f"after the {kind}", name, state)
        await scene.ask(f"the {kind} once more", end(before, commit), until=settled)
        await scene.ask(f"the opposite of the {kind}", end(before, not commit), until=settled)
        await described(scene, f"after all, the {kind}", name, state)
    if scene.version("EndTxn") >= 5:
        await ended(scene, "a commit of nothing", writer, commit=True)
        await described(scene, "after a commit of nothing", name, "CompleteAbort")
    later = Writer(name, writer.id, writer.epoch + 1)
    await scene.ask("an epoch to come", end(later, True), until=settled)
    late = transactional(b"late", producer_id=before.id, epoch=before.epoch, sequence=5)
    await scene.ask("a late write", produce(scene, topic, {0: late}, transactional_id=name))


async def described(scene: Scene, label: str, name: str, state: str = "") -> None:
    """DescribeTransactions, after Kafka has written the markers in the background."""
    await scene.ask(
        f"described {label}",
        m.DescribeTransactionsRequest([name]),
        until=lambda answer: state in ("", answer.transaction_states[0].transaction_state),
    )


async def producers_with_mixed_versions(scene: Scene) -> None:
    """A producer that uses older versions, then those of KIP-890, then older ones again."""
    if scene.pick != "highest":
        return
    topic, name = await scene.topic("ages", 2), await scene.transactional_id("ages")
    scene.pick = "lowest"
    writer = await started(scene, "start", name)
    scene.pick = "highest"

    async def write(label: str, who: Writer, sequence: int, *, partition: int = 0, version: int) -> None:
        data = transactional(label.encode(), producer_id=who.id, epoch=who.epoch, sequence=sequence)
        request = produce(scene, topic, {partition: data}, transactional_id=name, version=version)
        await scene.ask(label, request, version=version, until=settled)

    async def finish(label: str, who: Writer, commit: bool, version: int) -> Writer:
        answer = await scene.ask(label, end(who, commit), version=version, until=settled)
        kept = version < 5 or answer.error_code
        return who if kept else Writer(name, answer.producer_id, answer.producer_epoch)

    cls = m.AddPartitionsToTxnRequest
    place = [cls.AddPartitionsToTxnTopic(topic, [0])]
    await scene.ask("old: add", cls([], *writer, place), version=3, until=settled)
    await write("old: a write", writer, 0, version=11)
    for version in (3, 10, 11):
        data = transactional(b"x", producer_id=writer.id, epoch=writer.epoch)
        unadded = produce(scene, topic, {1: data}, transactional_id=name, version=version)
        await scene.ask(f"old: what was not added, v{version}", unadded, version=version)
    await finish("old: commit", writer, True, 4)
    await described(scene, "after the old commit", name, "CompleteCommit")
    await finish("old: commit again", writer, True, 4)
    await finish("old: abort instead", writer, False, 4)
    await write("new: a write in the epoch of the old ones", writer, 1, version=12)
    young = await finish("new: commit", writer, True, 5)
    await described(scene, "after the new commit", name, "CompleteCommit")
    await write("new: a write", young, 0, version=12)
    await write("new: to another partition", young, 0, partition=1, version=12)
    await finish("old again: commit", young, True, 4)
    await described(scene, "after the last commit", name, "CompleteCommit")
    await write("old again: in the same epoch", young, 1, version=12)
    await finish("old again: abort", young, False, 4)
    await described(scene, "at the end", name, "CompleteAbort")
    plain = produce(scene, topic, {1: sequenced(1, producer_id=young.id, epoch=young.epoch)})
    await scene.ask("a plain write", plain)
    await scene.ask("a write of an epoch before", _late(scene, topic, writer))


def _late(scene: Scene, topic: str, writer: Writer) -> m.ProduceRequest:
    data = transactional(b"late", producer_id=writer.id, epoch=writer.epoch, sequence=9)
    return produce(scene, topic, {0: data}, transactional_id=writer.name)


async def offsets_of_members(scene: Scene) -> None:
    """TxnOffsetCommit of a group member, with its generation and others, static and dynamic (KIP-447)."""
    if scene.version("TxnOffsetCommit") < 3:
        return
    topic, group = await scene.topic("members", 1), await scene.group("members")
    writer = await started(scene, "start", await scene.transactional_id("members"))
    static: dict[str, Any] = {"instance": "one"} if scene.version("JoinGroup") >= 5 else {}
    mine = await joined(scene, "join", group, **static)
    me, now = mine.member_id, mine.generation_id
    if scene.version("TxnOffsetCommit") < 5:
        await scene.ask("add", m.AddOffsetsToTxnRequest(*writer, group), until=settled)
    instance: dict[str, Any] = {"group_instance_id": "one"} if static else {}
    member = {"member_id": me, "generation_id": now, **instance}
    place = {(topic, 0): 5}
    await scene.ask("before its sync", txn_offsets(scene, writer, group, place, **member), until=settled)
    await scene.ask("sync", sync(scene, group, now, me, {me: ASSIGNED}, **static))
    cases: dict[str, dict[str, Any]] = {
        "of the member": member,
        "of an old generation": member | {"generation_id": now - 1},
        "of a generation to come": member | {"generation_id": now + 1},
        "of no generation": member | {"generation_id": -1},
        "of nobody": member | {"member_id": "nobody"},
        "of somebody outside": {},
        "of another instance": member | {"group_instance_id": "two"},
        "of nobody in no instance": {"member_id": "nobody", "generation_id": now},
    }
    for label, fields in cases.items():
        await scene.ask(label, txn_offsets(scene, writer, group, place, **fields), until=settled)
    if static:
        back = await scene.ask("it comes back", join(scene, group, instance="one"))
        await scene.ask(
            "of the one before", txn_offsets(scene, writer, group, place, **member), until=settled
        )
        place = {(topic, 0): 6}
        now_it_is = member | {"member_id": back.member_id, "generation_id": back.generation_id}
        await scene.ask(
            "of the new one", txn_offsets(scene, writer, group, place, **now_it_is), until=settled
        )
    other = Writer(writer.name, writer.id, writer.epoch + 1)
    await scene.ask("of an epoch to come", txn_offsets(scene, other, group, place))
    stranger = Writer(writer.name, TYPED_PRODUCER, 0)
    await scene.ask("of a stranger", txn_offsets(scene, stranger, group, place))
    await scene.ask("deletion meanwhile", m.DeleteGroupsRequest([group]))
    await scene.ask("read meanwhile", offset_fetch(scene, group, {topic: [0]}))
    await ended(scene, "commit", writer, commit=True)
    await scene.ask(
        "read afterwards",
        offset_fetch(scene, group, {topic: [0]}, require_stable=True),
        until=lambda answer: "committed_offset=-1" not in repr(answer) and settled_offsets(answer),
    )


def settled_offsets(answer: m.OffsetFetchResponse) -> bool:
    """Whether no offset is pending."""
    topics = answer.groups[0].topics if answer.groups else answer.topics
    return not any(p.error_code for t in topics for p in t.partitions)


async def batched_transactions(scene: Scene) -> None:
    """AddPartitionsToTxn of brokers: several transactions in one request, some only verified, some unknown."""
    if scene.version("AddPartitionsToTxn") < 4:
        return
    topic = await scene.topic("batched", 2)
    names = [await scene.transactional_id(name) for name in ("one", "two")]
    one, two = [await started(scene, f"start {name.partition('-')[0]}", name) for name in names]
    cls = m.AddPartitionsToTxnRequest
    places = [cls.AddPartitionsToTxnTopic(topic, [0, 1])]

    def batch(*wanted: tuple[Writer, bool]) -> m.AddPartitionsToTxnRequest:
        return cls([cls.AddPartitionsToTxnTransaction(*who, verify, places) for who, verify in wanted])

    nobody = Writer(scene.named("nobody"), TYPED_PRODUCER, 0)
    fenced = Writer(one.name, one.id, one.epoch + 3)
    await scene.ask("verified before", batch((one, True), (two, True)))
    await scene.ask("one added, one verified, one unknown", batch((one, False), (two, True), (nobody, False)))
    await scene.ask("verified afterwards", batch((one, True), (two, True), (nobody, True)))
    await scene.ask("another epoch", batch((fenced, True), (two, False)))
    # Not with an empty list: a real broker never answers that.
    await scene.ask("added again", batch((one, False), (two, False)))
    for who in (one, two):
        await ended(scene, f"end of {who.name.partition('-')[0]}", who, commit=False)
    await described(scene, "one", one.name, "CompleteAbort")
    await described(scene, "two", two.name, "CompleteAbort")
