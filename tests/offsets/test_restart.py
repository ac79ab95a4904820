"""Marks after the log was truncated or its topic recreated."""

from __future__ import annotations

import uuid

from asyncgroup.offsets.partition_offsets import PartitionMarks
from asyncgroup.wire.messages import NO_UUID

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def test_marks_move_back_to_the_divergent_offset_without_a_commit() -> None:
    marks = PartitionMarks(10, "text", 3, OLD)
    marks.mark_offset(20, "more", 3)
    marks.restart(6, NO_UUID, lambda: 6)
    assert (marks.value, marks.dirty, marks.topic_id) == ((6, "", -1), False, OLD)
    marks.restart(0, NEW, lambda: 0)
    assert (marks.next_offset, marks.topic_id) == (0, NEW)


def test_marks_before_the_divergent_offset_stay() -> None:
    marks = PartitionMarks(3, "text")
    marks.mark_offset(5, "done")
    marks.restart(6, NO_UUID, lambda: 6)
    assert (marks.next_offset, marks.metadata, marks.dirty) == (5, "done", True)


def test_a_mark_of_a_lost_record_is_ignored() -> None:
    """A handler may finish its work on such a record much later."""
    position = 6
    marks = PartitionMarks(10)
    marks.restart(6, NO_UUID, lambda: position)
    marks.mark_offset(11)
    assert (marks.next_offset, marks.dirty) == (6, False)
    position = 8
    marks.mark_offset(8)
    assert (marks.next_offset, marks.dirty) == (8, True)
    marks.mark_offset(9)
    assert marks.next_offset == 8


def test_marks_are_bound_to_the_first_known_topic_id() -> None:
    """Found by a random test: marks without an id were committed by name, also to a recreated topic."""
    marks = PartitionMarks(3)
    marks.mark_offset(5)
    marks.bind_topic(OLD, lambda: 5)
    marks.bind_topic(OLD, lambda: 4)
    assert (marks.next_offset, marks.dirty, marks.topic_id) == (5, True, OLD)


def test_marks_follow_a_seek_in_a_recreated_topic() -> None:
    """Found by a random test: the marks still belonged to the deleted topic, and every commit dropped them."""
    marks = PartitionMarks(30, "text", 2, OLD)
    marks.bind_topic(NEW, lambda: 12)
    assert (marks.value, marks.dirty, marks.topic_id) == ((12, "", -1), False, NEW)
    marks.mark_offset(13)
    assert marks.next_offset == 12, "the reader has not seen that record"
