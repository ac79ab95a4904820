"""Marks when the log holds other records than those that were marked."""

from __future__ import annotations

import uuid

from asyncgroup.offsets.partition_offsets import PartitionOffsets
from asyncgroup.wire.messages import NO_UUID

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def test_marks_go_back_to_where_the_logs_part_and_commit_nothing_by_that() -> None:
    marks = PartitionOffsets(10, "text", 3, OLD)
    marks.mark(20, "more", 3)
    marks.restart(6, NO_UUID, lambda: 6)
    assert (marks.value, marks.dirty, marks.topic_id) == ((6, "", -1), False, OLD)
    marks.restart(0, NEW, lambda: 0)
    assert (marks.next_offset, marks.topic_id) == (0, NEW)


def test_marks_before_that_place_stay() -> None:
    marks = PartitionOffsets(3, "text")
    marks.mark(5, "done")
    marks.restart(6, NO_UUID, lambda: 6)
    assert (marks.next_offset, marks.metadata, marks.dirty) == (5, "done", True)


def test_a_mark_of_a_record_that_is_gone_is_dropped() -> None:
    """A handler may finish its work on it long after."""
    position = 6
    marks = PartitionOffsets(10)
    marks.restart(6, NO_UUID, lambda: position)
    marks.mark(11)
    assert (marks.next_offset, marks.dirty) == (6, False)
    position = 8
    marks.mark(8)
    assert (marks.next_offset, marks.dirty) == (8, True)
    marks.mark(9)
    assert marks.next_offset == 8


def test_marks_learn_late_which_topic_they_are_for() -> None:
    """Found by a storm: marks without an id were committed by name, also to the namesake that came later."""
    marks = PartitionOffsets(3)
    marks.mark(5)
    marks.bind_topic(OLD, lambda: 5)
    marks.bind_topic(OLD, lambda: 4)
    assert (marks.next_offset, marks.dirty, marks.topic_id) == (5, True, OLD)


def test_a_reader_that_seeks_in_a_namesake_takes_its_marks_along() -> None:
    """Found by a storm: they were made for a topic that was gone, and dropped at every commit from then on."""
    marks = PartitionOffsets(30, "text", 2, OLD)
    marks.bind_topic(NEW, lambda: 12)
    assert (marks.value, marks.dirty, marks.topic_id) == ((12, "", -1), False, NEW)
    marks.mark(13)
    assert marks.next_offset == 12, "of a record that the reader has not seen"
