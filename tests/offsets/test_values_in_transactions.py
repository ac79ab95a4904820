"""What a transaction commits for a window: as if more offsets were acknowledged, without a change of anything."""

from __future__ import annotations

import copy
from uuid import UUID

from hypothesis import example, given, settings, strategies as st

from asyncgroup.ack_window import AckWindow
from asyncgroup.model import TopicPartition
from asyncgroup.offsets.commit_metadata import decode_metadata
from asyncgroup.offsets.partition_offsets import CommitHold, PartitionMarks
from asyncgroup.offsets.window_encoding import decode_window
from asyncgroup.offsets.window_marks import WindowMarks
from tests.profiles import examples

TP = TopicPartition("orders", 3)
TOPIC_ID = UUID("6f1f3c58-3b74-4d5e-9a37-0c1f2f8f9a10")
BASE = 1_000
OFFSETS = st.integers(BASE - 5, BASE + 60)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ack", "fail", "epoch", "hold", "complete", "release", "open", "close", "value"]),
        OFFSETS,
        st.integers(0, 9),
    ),
    max_size=40,
)


def marks_after(steps: list[tuple[str, int, int]], limit: int = 4096) -> PartitionMarks:
    """Return marks with a window, to which this has happened."""
    marks = PartitionMarks(BASE - 3, topic_id=TOPIC_ID)
    window = marks.window = WindowMarks(TP, AckWindow(BASE), text="mine", start=(BASE - 3, 1), limit=limit)
    epoch = 1
    for what, offset, number in steps:
        match what:
            case "ack":
                window.window.ack(offset)
            case "fail":
                window.window.set_attempts(offset, number)
            case "epoch":
                epoch += number % 2
                window.note_epoch(offset, epoch)
            case "hold":
                marks.hold_value(offset, epoch)
            case "complete":
                marks.complete_value(offset, offset + number)
            case "release":
                marks.release_value(offset)
            case "open":
                window.open()
            case "close":
                window.close()
            case "value":
                _ = marks.value
    return marks


@settings(max_examples=examples(300))
@given(STEPS, st.lists(OFFSETS, max_size=5))
# records that a former owner has acknowledged are read, in an epoch that was not known
@example([("epoch", BASE, 1), ("value", BASE, 0), ("epoch", BASE - 3, 0)], [])
@example([("ack", BASE + 1, 0), ("epoch", BASE + 2, 1), ("value", BASE, 0), ("epoch", BASE, 0)], [])
def test_it_is_what_would_be_committed_after_the_acknowledgements(
    steps: list[tuple[str, int, int]], offsets: list[int]
) -> None:
    marks = marks_after(steps)
    assert marks.window is not None
    value = marks.value_with(offsets)
    for offset in offsets:
        marks.window.window.ack(offset)
    assert value == marks.value


@settings(max_examples=examples(300))
@given(STEPS, st.lists(OFFSETS, max_size=5), STEPS)
def test_it_changes_nothing(
    steps: list[tuple[str, int, int]], offsets: list[int], later: list[tuple[str, int, int]]
) -> None:
    """If the transaction is aborted, later commits are the same as without it."""
    marks = marks_after(steps)
    assert marks.window is not None
    twin = copy.deepcopy(marks)
    version, size, is_dirty = marks.progress, marks.window.size, marks.dirty
    marks.value_with(offsets)
    assert (marks.progress, marks.window.size, marks.dirty) == (version, size, is_dirty)
    assert marks.value == twin.value
    for each in (marks, twin):
        assert each.window is not None
        for what, offset, number in later:
            if what == "ack":
                each.window.window.ack(offset)
            elif what == "complete":
                each.complete_value(offset, offset + number)
    assert marks.value == twin.value


@settings(max_examples=examples(200))
@given(
    st.sets(st.integers(BASE, BASE + 2000), max_size=300),
    st.integers(BASE, BASE + 2500),
    st.integers(60, 300),
)
def test_it_is_none_without_room_for_the_acknowledgements(acked: set[int], offset: int, limit: int) -> None:
    marks = PartitionMarks(BASE, topic_id=TOPIC_ID)
    window = marks.window = WindowMarks(TP, AckWindow(BASE), limit=limit)
    for each in acked:
        window.window.ack(each)
    value = marks.value_with([offset])
    window.window.ack(offset)
    after = marks.value
    decoded = decode_window(decode_metadata(TP, after.offset, after.metadata).window, after.offset)
    assert value == (after if offset in decoded else None)


@given(
    st.lists(
        st.tuples(st.sampled_from(["begin", "complete", "release"]), st.integers(0, 30), st.integers(0, 9))
    ),
    st.integers(0, 40),
)
def test_a_hold_is_looked_up_without_a_change(steps: list[tuple[str, int, int]], offset: int) -> None:
    hold = CommitHold()
    for what, first, number in steps:
        match what:
            case "begin":
                hold.begin(first, number, 0)
            case "complete":
                hold.complete(first, first + number)
            case "release":
                hold.release(first)
    before = copy.deepcopy(hold)
    found = hold.limit_if(offset)
    assert vars(hold) == vars(before)
    assert found == hold.limit(offset)


@given(st.integers(0, 40))
def test_the_value_after_a_mark_is_looked_up_without_a_change(offset: int) -> None:
    """A mark inside a value in chunks is held back after the abort of a transaction that would have completed the value."""
    marks = PartitionMarks(0)
    marks.hold_value(5, 0)
    marks.complete_value(5, 20)
    marks.value_after(offset, 0)
    marks.mark_offset(10)
    assert marks.value.offset == 5
