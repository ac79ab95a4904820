"""Marks of one partition: forwards by marks, backwards by resets, dirty until just that was committed."""

from __future__ import annotations

from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncgroup.offsets.partition_offsets import CommittedOffset, MemberIdentity, PartitionOffsets

OFFSETS = st.integers(0, 12)
TEXTS = st.sampled_from(["", "a", "b"])


class Marks(RuleBasedStateMachine):
    """`broker` is what the coordinator has; a commit is under way between two of the rules."""

    @initialize(offset=st.integers(-1, 12), text=TEXTS)
    def begin(self, offset: int, text: str) -> None:
        self.marks = PartitionOffsets(offset, text)
        self.broker = (offset, text)
        self.under_way: list[tuple[int, str]] = []

    @property
    def value(self) -> tuple[int, str]:
        return self.marks.next_offset, self.marks.metadata

    @rule(offset=OFFSETS, text=TEXTS)
    def mark(self, offset: int, text: str) -> None:
        before = self.value
        self.marks.mark(offset, text)
        assert self.value == ((offset, text) if offset > before[0] else before), "only forwards"

    @rule(offset=OFFSETS, text=TEXTS)
    def reset(self, offset: int, text: str) -> None:
        before = self.value
        self.marks.reset(offset, text)
        assert self.value == ((offset, text) if offset <= before[0] else before), "only backwards"

    @precondition(lambda self: self.marks.dirty and not self.under_way)
    @rule()
    def send(self) -> None:
        self.under_way.append(self.value)

    @precondition(lambda self: self.under_way)
    @rule()
    def succeed(self) -> None:
        self.broker = self.under_way.pop()
        self.marks.committed(*self.broker)

    @precondition(lambda self: self.under_way)
    @rule()
    def fail(self) -> None:
        self.under_way.pop()

    @invariant()
    def clean_means_committed(self) -> None:
        if not self.marks.dirty:
            assert self.value == self.broker

    def teardown(self) -> None:
        if self.marks.dirty:
            self.marks.committed(*self.value)
        assert not self.marks.dirty


TestMarks = Marks.TestCase


@given(st.lists(OFFSETS))
def test_marks_in_any_order_end_at_the_highest(offsets: list[int]) -> None:
    marks = PartitionOffsets()
    for offset in offsets:
        marks.mark(offset)
    assert marks.next_offset == max(offsets, default=-1)
    assert marks.dirty == bool(offsets)


def test_a_mark_during_a_commit_stays_dirty() -> None:
    marks = PartitionOffsets(5)
    marks.mark(7)
    marks.mark(9)
    marks.committed(7, "")
    assert marks.dirty
    marks.committed(9, "")
    assert not marks.dirty


def test_another_text_at_the_same_offset_is_no_news_for_a_mark_but_for_a_reset() -> None:
    marks = PartitionOffsets(5, "old")
    marks.mark(5, "new")
    assert (marks.metadata, marks.dirty) == ("old", False)
    marks.reset(5, "new")
    assert (marks.metadata, marks.dirty) == ("new", True)
    marks.committed(5, "old")
    assert marks.dirty


def test_rebase_counts_from_where_reading_goes_on_but_only_behind_the_logs_end() -> None:
    marks = PartitionOffsets(50, "text")
    marks.rebase(0, 60)
    assert (marks.next_offset, marks.metadata, marks.dirty) == (50, "text", False)
    marks.rebase(0, 49)
    assert (marks.next_offset, marks.metadata, marks.dirty) == (0, "", False)
    marks.mark(1)
    assert marks.dirty


def test_values() -> None:
    assert CommittedOffset(7) == (7, "", -1)
    assert MemberIdentity() == ("", -1, None), "a consumer outside any group protocol"
    marks = PartitionOffsets(3)
    assert repr(marks) == "<PartitionOffsets 3>"
    marks.mark(4)
    assert repr(marks) == "<PartitionOffsets 4 dirty>"
