"""PartitionMarks: marks move forwards, resets backwards, and a mark is dirty until exactly it was committed."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncgroup.errors import ConfigError
from asyncgroup.model import Record
from asyncgroup.offsets.partition_offsets import CommittedOffset, MemberIdentity, PartitionMarks

OFFSETS = st.integers(0, 12)
TEXTS = st.sampled_from(["", "a", "b"])
EPOCHS = st.integers(-1, 2)


class Marks(RuleBasedStateMachine):
    """`broker` is the coordinator's offset; a commit is in flight between `send` and one of the results."""

    @initialize(offset=st.integers(-1, 12), text=TEXTS)
    def begin(self, offset: int, text: str) -> None:
        self.marks = PartitionMarks(offset, text)
        self.broker = CommittedOffset(offset, text)
        self.under_way: list[CommittedOffset] = []

    @property
    def value(self) -> CommittedOffset:
        return self.marks.value

    @rule(offset=OFFSETS, text=TEXTS, epoch=EPOCHS)
    def mark(self, offset: int, text: str, epoch: int) -> None:
        before = self.value
        self.marks.mark_offset(offset, text, epoch)
        assert self.value == ((offset, text, epoch) if offset > before.offset else before), "only forwards"

    @rule(offset=OFFSETS, text=TEXTS, epoch=EPOCHS)
    def reset(self, offset: int, text: str, epoch: int) -> None:
        before = self.value
        self.marks.reset_offset(offset, text, epoch)
        assert self.value == ((offset, text, epoch) if offset <= before.offset else before), "only backwards"

    @precondition(lambda self: self.marks.dirty and not self.under_way)
    @rule()
    def send(self) -> None:
        self.under_way.append(self.value)

    @precondition(lambda self: self.under_way)
    @rule()
    def succeed(self) -> None:
        self.broker = self.under_way.pop()
        self.marks.committed(self.broker)

    @precondition(lambda self: self.under_way)
    @rule()
    def fail(self) -> None:
        self.under_way.pop()

    @precondition(lambda self: self.under_way)
    @rule()
    def refuse_for_good(self) -> None:
        before, value = self.marks.dirty, self.under_way.pop()
        self.marks.reject(value)
        assert self.marks.dirty == before, "explicit commits retry it"
        assert self.marks.rejected <= (value == self.value), "a newer mark is not rejected"

    @invariant()
    def clean_means_committed(self) -> None:
        if not self.marks.dirty:
            assert self.value == self.broker

    def teardown(self) -> None:
        if self.marks.dirty:
            self.marks.committed(self.value)
        assert not self.marks.dirty


TestMarks = Marks.TestCase


@given(st.lists(OFFSETS))
def test_marks_in_any_order_end_at_the_highest(offsets: list[int]) -> None:
    marks = PartitionMarks()
    for offset in offsets:
        marks.mark_offset(offset)
    assert marks.next_offset == max(offsets, default=-1)
    assert marks.dirty == bool(offsets)


def test_a_mark_during_a_commit_stays_dirty() -> None:
    marks = PartitionMarks(5)
    marks.mark_offset(7)
    marks.mark_offset(9)
    marks.committed(CommittedOffset(7))
    assert marks.dirty
    marks.committed(CommittedOffset(9, "", 3))
    assert marks.dirty, "another epoch"
    marks.committed(CommittedOffset(9))
    assert not marks.dirty


def test_new_metadata_at_the_same_offset_is_ignored_by_mark_but_not_by_reset() -> None:
    marks = PartitionMarks(5, "old")
    marks.mark_offset(5, "new")
    assert (marks.metadata, marks.dirty) == ("old", False)
    marks.reset_offset(5, "new")
    assert (marks.metadata, marks.dirty) == ("new", True)
    marks.committed(CommittedOffset(5, "old"))
    assert marks.dirty


def test_rebase_moves_marks_only_from_beyond_the_logs_end() -> None:
    marks = PartitionMarks(50, "text")
    marks.rebase(0, 60)
    assert (marks.next_offset, marks.metadata, marks.dirty) == (50, "text", False)
    marks.rebase(0, 49)
    assert (marks.next_offset, marks.metadata, marks.dirty) == (0, "", False)
    marks.mark_offset(1)
    assert marks.dirty


def test_a_mark_never_has_the_epoch_of_an_older_mark() -> None:
    marks = PartitionMarks(5, "", 3)
    marks.mark_record(Record("t", 0, 6, leader_epoch=4), "text")
    assert marks.value == (7, "text", 4)
    marks.mark_offset(9)
    assert marks.value == (9, "", -1)
    marks.mark_offset(10, leader_epoch=4)
    marks.reset_offset(9)
    assert marks.value == (9, "", -1)
    marks.mark_offset(8, leader_epoch=7)
    assert marks.value == (9, "", -1), "no news"


@pytest.mark.parametrize("name", ["mark_offset", "reset_offset"])
def test_values_that_cannot_be_encoded_are_refused(name: str) -> None:
    marks = PartitionMarks(5)
    for offset in (-1, 2**63, "7", 1.5, None):
        with pytest.raises(ConfigError, match="offset="):
            getattr(marks, name)(offset)
    for epoch in (-2, 2**31, "7", True, None):
        with pytest.raises(ConfigError, match="leader_epoch="):
            getattr(marks, name)(9 if name == "mark_offset" else 4, "", epoch)
    with pytest.raises(ConfigError, match="metadata="):
        getattr(marks, name)(9, "x" * 40_000)
    assert marks.value == (5, "", -1)
    assert not marks.dirty


def test_the_next_mark_is_not_rejected() -> None:
    marks = PartitionMarks(5)
    marks.mark_offset(6)
    marks.reject(marks.value)
    assert marks.rejected
    assert repr(marks) == "<PartitionMarks 6 rejected>"
    marks.mark_offset(7)
    assert (marks.rejected, marks.dirty) == (False, True)
    marks.reject(marks.value)
    marks.committed(marks.value)
    assert (marks.rejected, marks.dirty) == (False, False)
    marks.reject(marks.value)
    assert not marks.rejected, "it is committed"


def test_values() -> None:
    assert CommittedOffset(7) == (7, "", -1)
    assert MemberIdentity() == ("", -1, None), "a consumer that is not a group member"
    marks = PartitionMarks(3)
    assert repr(marks) == "<PartitionMarks 3>"
    marks.mark_offset(4)
    assert repr(marks) == "<PartitionMarks 4 dirty>"
