"""WindowMarks: offset, epoch and metadata of a window; values in chunks; a log that changes; a limit that shrinks."""

from __future__ import annotations

import itertools
import logging
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncgroup.ack_window import AckWindow
from asyncgroup.model import CommittedOffset, TopicPartition
from asyncgroup.offsets.commit_metadata import CommitMetadata, decode_metadata
from asyncgroup.offsets.partition_offsets import PartitionMarks
from asyncgroup.offsets.window_encoding import decode_window
from asyncgroup.offsets.window_marks import WindowMarks
from asyncgroup.wire.messages import NO_UUID

TP = TopicPartition("orders", 3)
TOPIC_ID = UUID("6f1f3c58-3b74-4d5e-9a37-0c1f2f8f9a10")
BASE = 1_000


def content(value: CommittedOffset) -> CommitMetadata:
    return decode_metadata(TP, value.offset, value.metadata)


def decoded(value: CommittedOffset) -> tuple[int, list[tuple[int, int]]]:
    window = decode_window(content(value).window, value.offset)
    return window.base, window.runs


def marks_of(window: WindowMarks, start: int = BASE) -> PartitionMarks:
    """Return the marks of a claim with this window."""
    marks = PartitionMarks(start, topic_id=TOPIC_ID)
    marks.window = window
    return marks


def test_base_window_and_epoch_are_committed() -> None:
    marks = WindowMarks(TP, AckWindow(BASE), text="mine")
    marks.note_epoch(BASE, 4)
    marks.note_epoch(BASE + 5, 6)
    for offset in (*range(BASE, BASE + 5), BASE + 7):
        marks.window.ack(offset)
    value = marks.value(None, TOPIC_ID)
    assert (value.offset, value.leader_epoch) == (BASE + 5, 4)
    assert content(value)[:2] == ("mine", TOPIC_ID)
    assert content(value)[3:] == (False, 6)
    assert decoded(value) == (BASE + 5, [(BASE + 7, BASE + 8)])
    assert marks.is_current(value, None, TOPIC_ID)
    assert marks.size == len(value.metadata)
    marks.window.ack(BASE + 5)
    assert not marks.is_current(value, None, TOPIC_ID)
    assert marks.value(None, TOPIC_ID).leader_epoch == 6


def test_a_value_is_encoded_again_when_flag_limit_topic_or_hold_change() -> None:
    marks = WindowMarks(TP, AckWindow(BASE, [(BASE + 2, BASE + 9)]))
    first = marks.value(None, TOPIC_ID)
    assert marks.value(None, TOPIC_ID) is first
    marks.open()
    opened = marks.value(None, TOPIC_ID)
    assert (content(first).is_open, content(opened).is_open) == (False, True)
    assert not marks.is_current(first, None, TOPIC_ID)
    marks.close()
    assert marks.value(None, TOPIC_ID) == first
    assert content(marks.value(None, NO_UUID)).topic_id == NO_UUID
    assert marks.value((BASE - 3, 2), TOPIC_ID).offset == BASE - 3
    assert marks.value(None, TOPIC_ID) == first, "not the value that was held back"
    marks.limit = 10
    assert marks.value(None, TOPIC_ID).metadata == ""


def test_the_flag_alone_is_committed() -> None:
    marks = WindowMarks(TP, AckWindow(BASE))
    assert marks.value(None, NO_UUID).metadata == ""
    marks.open()
    assert content(marks.value(None, NO_UUID)) == CommitMetadata(is_open=True)


# --- leader epochs -----------------------------------------------------------------------------------------------------


def test_the_epoch_before_the_first_record_is_that_of_the_start() -> None:
    marks = WindowMarks(TP, AckWindow(BASE), start=(BASE, 4))
    assert marks.value(None, NO_UUID).leader_epoch == 4
    marks.note_epoch(BASE, 7)
    marks.window.ack(BASE)
    assert marks.value(None, NO_UUID).leader_epoch == 7


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30),
    st.lists(st.integers(1, 40), max_size=5),
)
def test_ranges_may_be_noted_ahead_and_again(ranges: list[tuple[int, int]], changes: list[int]) -> None:
    """Epochs are the log's, in any order of calls: a range may be noted before the records below it are delivered."""
    epochs = [sum(change <= offset for change in changes) for offset in range(41)]
    marks, known = WindowMarks(TP, AckWindow(0)), {}
    for start, end in ranges:
        for offset in range(start, end):  # a reader notes each change
            marks.note_epoch(offset, epochs[offset])
            known[offset] = epochs[offset]
    for offset in sorted(known):
        marks.window.restart(offset + 1)
        assert marks.value(None, NO_UUID).leader_epoch == epochs[offset]


# --- values in chunks --------------------------------------------------------------------------------------------------


def test_a_value_in_chunks_holds_back_the_commit_with_the_window_above_it() -> None:
    marks = marks_of(WindowMarks(TP, AckWindow(BASE)))
    assert marks.window is not None
    marks.hold_value(BASE + 4, 1)
    for offset in range(BASE, BASE + 9):
        marks.window.window.ack(offset)
    value = marks.value
    assert (value.offset, value.leader_epoch) == (BASE + 4, 1)
    assert decoded(value) == (BASE + 9, [])
    marks.touch()
    marks.committed(value)
    assert not marks.dirty
    marks.release_value(BASE + 4)
    assert marks.dirty
    assert marks.value.offset == BASE + 9


def test_a_response_after_the_release_leaves_the_window_to_be_committed() -> None:
    marks = marks_of(WindowMarks(TP, AckWindow(BASE)))
    assert marks.window is not None
    marks.hold_value(BASE, 1)
    marks.window.window.ack(BASE)
    marks.touch()
    sent = marks.value
    marks.release_value(BASE)
    marks.committed(sent)
    assert marks.dirty
    marks.committed(marks.value)
    assert not marks.dirty


def test_a_restored_window_does_not_commit_past_a_value_that_held_it_back() -> None:
    """The claim begins at the first chunk, and the base is beyond it: until that chunk is read again, nothing else holds.

    The value holds the commit before the records after its chunk are delivered.
    """
    window = AckWindow(BASE, [(BASE, BASE + 5)])
    marks = marks_of(WindowMarks(TP, window, start=(BASE, 3)))
    assert marks.window is not None
    assert (marks.base, marks.value.offset, marks.value.leader_epoch) == (BASE + 5, BASE, 3)
    assert decoded(marks.value) == (BASE + 5, [])
    marks.skip_range(BASE + 5, BASE + 8, 3)  # ahead of the chunks
    assert (marks.base, marks.value.offset) == (BASE + 8, BASE)
    marks.hold_value(BASE, 3)
    assert marks.value.offset == BASE
    marks.window.note_epoch(BASE + 1, 3)
    assert marks.value.offset == BASE
    marks.window.note_epoch(BASE + 9, 3)
    assert marks.value.offset == BASE
    marks.complete_value(BASE, BASE + 9)
    window.ack_range(BASE + 8, BASE + 10)
    assert marks.value.offset == BASE + 10


def test_a_restored_window_is_committed_up_to_what_was_read() -> None:
    """Found by the simulation: the commit stayed below the restored base though all records before that had been read."""
    marks = marks_of(
        WindowMarks(TP, AckWindow(BASE, [(BASE, BASE + 5), (BASE + 6, BASE + 8)]), start=(BASE, 3))
    )
    assert marks.window is not None
    assert marks.window.note_epoch(BASE + 1, 3), "there is something to commit"
    assert (marks.value.offset, decoded(marks.value)) == (BASE + 2, (BASE + 5, [(BASE + 6, BASE + 8)]))
    assert marks.window.note_epoch(BASE + 4, 4)
    assert (marks.value.offset, marks.value.leader_epoch) == (BASE + 5, 4)
    assert not marks.window.note_epoch(BASE + 7, 4), "the base is committed already"
    assert marks.value.offset == BASE + 5


# --- the log changes ---------------------------------------------------------------------------------------------------


def restarting(window: AckWindow, **options: object) -> tuple[WindowMarks, list[int]]:
    restarted: list[int] = []
    marks = WindowMarks(TP, window, **options)  # type: ignore[arg-type]
    marks.on_restart = restarted.append
    return marks, restarted


def test_a_truncated_and_a_recreated_log() -> None:
    marks, restarted = restarting(AckWindow(BASE, [(BASE + 2, BASE + 9)]))
    marks.restart(BASE + 5, is_recreated=False)
    assert (marks.window.base, marks.window.runs) == (BASE, [(BASE + 2, BASE + 5)])
    marks.restart(BASE - 2, is_recreated=False)
    assert (marks.window.base, marks.window.runs) == (BASE - 2, [])
    marks.restart(0, is_recreated=True)
    assert (marks.window.base, marks.window.runs) == (0, [])
    assert restarted == [BASE + 5, BASE - 2, 0]


def test_records_that_were_read_and_then_deleted_stay_in_hand() -> None:
    marks, restarted = restarting(AckWindow(BASE, [(BASE + 2, BASE + 9)]))
    marks.rebase(BASE + 20, BASE + 100)
    assert (marks.window.base, marks.window.runs) == (BASE, [(BASE + 2, BASE + 9)])
    assert restarted == [BASE + 20], "nothing was read from there on"


def test_offsets_beyond_the_end_of_the_log_are_forgotten() -> None:
    """Other records will have them."""
    marks, restarted = restarting(AckWindow(BASE, [(BASE + 2, BASE + 9)]))
    marks.rebase(BASE - 10, BASE + 5)  # "earliest"
    assert (marks.window.base, marks.window.runs) == (BASE, [(BASE + 2, BASE + 5)])
    marks.rebase(BASE + 5, BASE + 5)  # "latest"
    assert (marks.window.base, marks.window.runs) == (BASE, [(BASE + 2, BASE + 5)])
    marks.rebase(3, 7)
    assert (marks.window.base, marks.window.runs) == (3, [])
    assert restarted == [BASE - 10, BASE + 5, 0]


def test_a_later_epoch_below_the_restored_end_means_other_records() -> None:
    """The log was truncated above the committed offset while nothing was read: validation of that offset shows nothing."""
    runs = [(BASE + 10, BASE + 20), (BASE + 25, BASE + 30)]
    marks, restarted = restarting(AckWindow(BASE, runs), start=(BASE, 3), end_epoch=5)
    marks.note_epoch(BASE, 4)
    marks.note_epoch(BASE + 8, 5)
    assert (marks.window.runs, restarted) == (runs, [])
    marks.note_epoch(BASE + 15, 6)
    assert (marks.window.runs, restarted) == ([(BASE + 10, BASE + 15)], [BASE + 15])
    marks.note_epoch(BASE + 40, 7)
    assert restarted == [BASE + 15]


def test_a_later_epoch_beyond_the_restored_end_or_of_an_unknown_one_means_nothing() -> None:
    for end_epoch, offset in ((5, BASE + 20), (-1, BASE)):
        marks, restarted = restarting(AckWindow(BASE, [(BASE + 10, BASE + 20)]), end_epoch=end_epoch)
        marks.note_epoch(offset, 9)
        assert restarted == []
        assert len(marks.window.runs) == 1


def test_the_epoch_of_the_end_is_handed_on_until_it_is_read_again() -> None:
    marks = WindowMarks(TP, AckWindow(BASE, [(BASE + 10, BASE + 20)]), start=(BASE, 3), end_epoch=5)
    assert content(marks.value(None, NO_UUID)).end_epoch == 5
    marks.note_epoch(BASE, 3)
    marks.window.ack(BASE)
    assert content(marks.value(None, NO_UUID)).end_epoch == 5
    marks.note_epoch(BASE + 20, 8)
    marks.window.ack(BASE + 20)
    assert content(marks.value(None, NO_UUID)).end_epoch == 8
    marks.window.ack_range(BASE, BASE + 21)
    assert content(marks.value(None, NO_UUID)).end_epoch == -1


def test_a_skipped_range_of_a_later_epoch_is_done() -> None:
    marks, restarted = restarting(AckWindow(BASE, [(BASE + 10, BASE + 20)]), end_epoch=5)
    assert marks.skip_range(BASE + 5, BASE + 12, 6)
    assert (marks.window.runs, restarted) == ([(BASE + 5, BASE + 12)], [BASE + 5])
    assert not marks.skip_range(BASE + 5, BASE + 12, 6)
    assert not marks.skip_range(BASE, BASE, -1)


# --- what the broker accepts -------------------------------------------------------------------------------------------


@given(st.integers(0, 700), st.text(max_size=40), st.booleans())
def test_the_metadata_never_exceeds_the_limit(limit: int, text: str, is_open: bool) -> None:
    window = AckWindow(BASE, [(BASE + 2 * i, BASE + 2 * i + 1) for i in range(1, 4_000)])
    marks = WindowMarks(TP, window, limit=limit, text=text)
    marks.is_open = is_open
    value = marks.value(None, TOPIC_ID)
    assert len(value.metadata.encode()) == marks.size <= limit
    found = content(value)
    if limit > 200 + 4 * len(text):
        assert (found.text, found.topic_id, found.is_open) == (text, TOPIC_ID, is_open)
        assert found.window


def test_the_limit_is_halved_until_nothing_is_left(caplog: pytest.LogCaptureFixture) -> None:
    window = AckWindow(BASE, [(BASE + 2 * i, BASE + 2 * i + 1) for i in range(1, 2_000)])
    marks = WindowMarks(TP, window, text="mine")
    sizes = [len(marks.value(None, TOPIC_ID).metadata)]
    with caplog.at_level(logging.WARNING, "asyncgroup.offsets"):
        while marks.shrink():
            sizes.append(len(marks.value(None, TOPIC_ID).metadata))
    assert sizes[-1] == 0
    assert all(after <= before // 2 for before, after in itertools.pairwise(sizes))
    assert not marks.shrink()
    (record,) = caplog.records
    assert f"orders-3: the broker refuses a commit's metadata of {sizes[0]} bytes" in record.getMessage()


def test_a_small_window_in_a_request_that_is_too_large_stays_whole_at_first() -> None:
    marks = WindowMarks(TP, AckWindow(BASE, [(BASE + 2, BASE + 9)]))
    first = marks.value(None, TOPIC_ID)
    assert marks.shrink(is_request_too_large=True)
    assert marks.value(None, TOPIC_ID) == first
    assert marks.shrink(is_request_too_large=True)
    assert marks.value(None, TOPIC_ID).metadata == ""
    assert not marks.shrink(is_request_too_large=True)


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_response_to_a_commit_from_before_a_restart_is_no_committed_offset(is_recreated: bool) -> None:
    """The log has other records from there on: what is deleted up to the committed offset must not be these."""
    marks = PartitionMarks(0)
    window = marks.window = WindowMarks(TP, AckWindow(0))
    window.window.ack_range(0, 50)
    marks.touch()
    value = marks.value
    marks.restart(20, UUID(int=2) if is_recreated else NO_UUID, lambda: 20)
    marks.committed(value)
    assert window.committed <= 20
    window.window.ack_range(window.window.base, 30)
    marks.committed(marks.value)
    assert window.committed == 30
