"""Stateful property test of the group coordinator's store.

Commits, transactions, tombstones, compaction, stopped followers and moves happen in any order. The state in
memory always equals the state that the next coordinator reads from the log, and both equal a simple model.
"""

from __future__ import annotations

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asyncgroup.broker.groups.shared.requests import GroupSnapshot, OffsetAndMetadata
from asyncgroup.broker.groups.store.offset_store import OffsetStore
from asyncgroup.broker.groups.store.replayed import ReplayedPartition
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.records import ControlType
from tests.broker.harness import FakeTimers, OneLog
from tests.profiles import examples

GROUPS = ("g", "h")
PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0))
groups = st.sampled_from(GROUPS)
some_partitions = st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3, unique=True)
producers = st.sampled_from([1, 2])


class Store(RuleBasedStateMachine):
    """The store and its model: `committed` and `pending` hold (number of the write, offset)."""

    def __init__(self) -> None:
        super().__init__()
        self.log = OneLog()
        self.timers = FakeTimers()
        self.store = self.new_store()
        self.requested = self.answered = 0
        self.refused: list[ErrorCode] = []
        self.committed: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        self.pending: dict[int, dict[tuple[str, TopicPartition], tuple[int, int]]] = {}

    def new_store(self) -> OffsetStore:
        store = OffsetStore(self.log, self.timers, lambda _group: 0, lambda: 1000)
        store.load(0)
        return store

    def done(self, error: ErrorCode) -> None:
        self.answered += 1
        if error:
            self.refused.append(error)

    def count_request(self) -> int:
        """Count a write that will be answered; return its number."""
        self.requested += 1
        return self.requested

    @property
    def held(self) -> bool:
        return self.log.log.follower_end_offset is not None

    @rule(group=groups, partitions=some_partitions)
    def commit(self, group, partitions):
        number = self.count_request()
        self.store.write_offsets(group, {tp: OffsetAndMetadata(number) for tp in partitions}, self.done)
        self.committed |= {(group, tp): (number, number) for tp in partitions}

    @rule(group=groups, partitions=some_partitions, producer=producers)
    def commit_inside(self, group, partitions, producer):
        number = self.count_request()
        offsets = {tp: OffsetAndMetadata(number) for tp in partitions}
        self.store.write_offsets(group, offsets, self.done, (producer, 0))
        self.pending.setdefault(producer, {}).update({(group, tp): (number, number) for tp in partitions})

    @rule(producer=producers, commit=st.booleans())
    def end(self, producer, commit):
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        self.log.log.append_marker(kind, producer, 0, 0)
        self.store.end_transaction(producer, 0, commit=commit)
        for key, value in self.pending.pop(producer, {}).items():
            if commit and value > self.committed.get(key, (-1, -1)):
                self.committed[key] = value

    @rule(group=groups, partitions=some_partitions)
    def remove_offsets(self, group, partitions):
        self.count_request()
        self.store.remove_offsets(group, partitions, self.done)
        self._forget({(group, tp) for tp in partitions})

    @rule(group=groups)
    def remove_group(self, group):
        self.count_request()
        self.store.remove_group(group, self.done)
        self._forget({(group, tp) for tp in PARTITIONS})

    @rule(topic=st.sampled_from(["t", "u", "v"]))
    def remove_topic(self, topic):
        self.store.remove_topic(topic)
        self._forget({(group, tp) for group in GROUPS for tp in PARTITIONS if tp.topic == topic})

    def _forget(self, keys) -> None:
        for offsets in (self.committed, *self.pending.values()):
            for key in keys & set(offsets):
                del offsets[key]

    @rule(group=groups)
    def write_group(self, group):
        empty = GroupSnapshot(
            group_id=group,
            generation_id=self.count_request(),
            protocol_type="consumer",
            protocol_name=None,
            leader=None,
            members=(),
        )
        self.store.write_group(empty, self.done)

    @rule()
    def compact(self):
        self.log.log.compact(1000, 1 << 40)

    @rule()
    def compact_tombstones_away(self):
        self.log.log.compact(1000, 0)
        self.log.log.compact(2000, 0)

    @rule()
    def hold(self):
        """Stop the followers: later writes are not answered, but the next coordinator would find them."""
        if not self.held:
            self.log.log.follower_end_offset = self.log.log.end_offset

    @rule()
    def release(self):
        self.log.log.follower_end_offset = None
        self.store.on_high_watermark_updated(0)

    @rule()
    def move(self):
        waiting = self.requested - self.answered
        self.store.unload(0)
        assert self.refused == [ErrorCode.NOT_COORDINATOR] * waiting
        self.refused.clear()
        assert self.store.offsets("g") == {}
        self.store = self.new_store()

    @invariant()
    def store_log_and_model_agree(self):
        assert self.refused == []
        assert self.held or self.requested == self.answered
        successor = ReplayedPartition(0)
        for data in self.log.read(0):
            successor.replay(data)
        for group in GROUPS:
            offsets = {tp: offset for (name, tp), (_, offset) in self.committed.items() if name == group}
            pending = {tp for kept in self.pending.values() for name, tp in kept if name == group}
            for state in (successor,) if self.held else (self.store, successor):
                assert {tp: found.offset for tp, found in state.offsets(group).items()} == offsets
                assert set(state.unstable_partitions(group)) == pending


Store.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
TestStore = Store.TestCase
