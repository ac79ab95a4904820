"""Values in chunks hold back the commit until they are marked as a whole, or dropped."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.offsets.partition_offsets import CommittedOffset, PartitionMarks
from tests.profiles import examples

RANDOM = st.integers(0, 2**31).map(random.Random)


@pytest.fixture
def marks() -> PartitionMarks:
    """Marks from offset 0 on."""
    return PartitionMarks(0)


def test_an_incomplete_value_holds_back_the_commit(marks):
    marks.mark_offset(3, "three", 1)
    marks.hold_value(5, 1)
    assert marks.value == CommittedOffset(3, "three", 1)
    marks.mark_offset(8, "eight", 2)
    assert (marks.value, marks.next_offset) == (CommittedOffset(5, "eight", 1), 8)
    marks.committed(marks.value)
    assert not marks.dirty
    marks.complete_value(5, 9)
    assert (marks.value.offset, marks.dirty) == (5, False)  # it is not marked
    marks.mark_offset(10, "", 2)
    assert (marks.value, marks.dirty) == (CommittedOffset(10, "", 2), True)


def test_a_value_that_is_given_up_releases_the_commit(marks):
    marks.hold_value(5, 1)
    marks.hold_value(6, 1)
    marks.mark_offset(8)
    marks.committed(marks.value)
    marks.release_value(6)
    assert not marks.dirty
    marks.release_value(5)
    assert (marks.value.offset, marks.dirty) == (8, True)


def test_a_refused_commit_is_sent_again_when_it_changes(marks):
    marks.hold_value(5, 1)
    marks.mark_offset(8)
    marks.reject(marks.value)
    assert marks.rejected
    marks.release_value(5)
    assert (marks.rejected, marks.dirty) == (False, True)


def test_a_mark_beyond_the_position_is_not_moved_back():
    marks = PartitionMarks(100)
    marks.hold_value(50, 1)
    assert marks.value.offset == 100


def test_a_value_that_begins_again_after_a_seek_still_holds(marks):
    marks.hold_value(5, 1)
    marks.mark_offset(8)
    marks.hold_value(5, 1)
    assert marks.value.offset == 5


def test_a_truncated_log_releases_the_values_in_it(marks):
    marks.hold_value(5, 1)
    marks.hold_value(7, 1)
    marks.mark_offset(9)
    marks.restart(6, marks.topic_id, lambda: 6)
    assert marks.value.offset == 5
    marks.release_value(5)
    assert marks.value.offset == 6


def test_reading_again_begins_at_the_offset_to_commit(marks):
    marks.hold_value(5, 1)
    marks.mark_offset(8)
    assert marks.hold_back(2, lambda: 9) == 5


def test_many_values_that_are_not_marked_cost_the_same_each():
    """A handler may mark a large batch at its end: the time must not grow with the square of their number."""
    marks, count = PartitionMarks(0), 30_000
    for number in range(count):
        marks.hold_value(2 * number, 1)
        marks.complete_value(2 * number, 2 * number + 1)
    for number in range(count):
        marks.mark_offset(2 * number + 2, "", 1)
        assert marks.value.offset == 2 * number + 2
    assert repr(marks._hold) == "<CommitHold at []>"


@settings(max_examples=examples(300), deadline=None)
@given(RANDOM)
def test_a_commit_never_splits_a_value_that_is_not_marked(rng):
    """Random values that overlap; the reader marks some of the records, in order. Whatever is committed, a member that begins
    there gets every value that is not marked."""
    marks, offset = PartitionMarks(0), 0
    open_values: dict[int, int] = {}  # first offset: chunks left
    complete: dict[int, int] = {}  # first offset: last offset
    handed_out, committed = [], 0
    for offset in range(60):
        kind = rng.random()
        if kind < 0.2:
            open_values[offset] = rng.randint(1, 4)
            marks.hold_value(offset, 0)
        elif kind < 0.7 and open_values:
            first = rng.choice(list(open_values))
            open_values[first] -= 1
            if not open_values[first]:
                del open_values[first]
                complete[first] = offset
                marks.complete_value(first, offset)
                handed_out.append(offset)
        elif kind < 0.75 and open_values:
            first = rng.choice(list(open_values))
            del open_values[first]
            marks.release_value(first)
        else:
            handed_out.append(offset)
        if handed_out and rng.random() < 0.4:
            marks.mark_offset(rng.choice(handed_out) + 1)
        unmarked = {first: last for first, last in complete.items() if last >= marks.next_offset}
        if rng.random() < 0.5:
            value = marks.value
            assert not any(first < value.offset for first in open_values)
            assert not any(first < value.offset for first in unmarked if unmarked[first] >= value.offset)
            assert value.offset >= committed  # never moves back
            expected = min([marks.next_offset, *open_values, *unmarked])
            assert value.offset == expected
            assert marks.dirty or value.offset == committed
            marks.committed(value)
            committed = value.offset
