"""Marks at ranges without records to deliver: transaction markers and aborted records."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncgroup.offsets.partition_offsets import CommittedOffset, PartitionMarks


def test_a_mark_that_reaches_the_range_moves_to_its_end():
    marks = PartitionMarks(0)
    marks.skip_range(5, 8, leader_epoch=3)
    assert (marks.next_offset, marks.dirty) == (0, False)
    marks.mark_offset(4, "four", 2)
    assert marks.value == CommittedOffset(4, "four", 2)
    marks.mark_offset(5, "five", 2)
    assert marks.value == CommittedOffset(8, "five", 3)
    marks.mark_offset(9)
    assert marks.next_offset == 9


def test_the_range_may_follow_the_mark():
    marks = PartitionMarks(0)
    marks.mark_offset(5, "five", 2)
    marks.committed(CommittedOffset(5, "five", 2))
    marks.skip_range(5, 8, leader_epoch=3)
    assert (marks.value, marks.dirty) == (CommittedOffset(8, "five", 3), True)
    marks.committed(marks.value)
    marks.skip_range(5, 8)  # the same range again
    assert not marks.dirty
    marks.skip_range(8, 10)
    assert (marks.next_offset, marks.dirty) == (10, True)


def test_a_committed_offset_at_a_marker_moves_past_it():
    marks = PartitionMarks(5)
    marks.skip_range(5, 6)
    assert (marks.next_offset, marks.dirty) == (6, True)


def test_the_range_is_forgotten_after_a_seek():
    marks = PartitionMarks(0)
    marks.skip_range(5, 8)
    marks.skip_range(3, 3)  # a seek to 3
    marks.mark_offset(5)
    assert marks.next_offset == 5
    marks.skip_range(7, 9)
    marks.rebase(2, 2)
    marks.mark_offset(7)
    assert marks.next_offset == 7


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(0, 25), max_size=8))
def test_no_mark_goes_beyond_what_was_processed(first, start, length, made):
    """The next offset is the highest mark, or the end of a range that this mark lies in."""
    marks = PartitionMarks(first)
    marks.skip_range(start, start + length)
    for mark in made:
        marks.mark_offset(mark)
    highest = max([first, *made])
    assert marks.next_offset == (start + length if start <= highest < start + length else highest)
