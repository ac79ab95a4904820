"""The checker of the queue story finds lost records, wrong dead letters, disorder, and deliveries without a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncgroup import TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.offsets.commit_metadata import CommitMetadata, encode_metadata
from asyncgroup.offsets.window_encoding import encode_window
from tests.real.chaos.journal import Journal
from tests.real.chaos.queue_checker import QueueEvidence, QueueVerdict, Repeat, judge_queue
from tests.real.chaos.queue_journal import QueueLife, read_queue_life

TOPIC = "work"
POISON = 4
KEYS = {0: b"x", 1: b"x", 2: b"y", 3: b"x", 4: b"z", 5: b"z"}
KILL = 5.0


def commit(offset: int, *runs: tuple[int, int]) -> str:
    """Return a partition of a commit as the journal has it: all below `offset` are acknowledged, and `runs`."""
    window = encode_window(AckWindow(offset, runs), offset, 1000).text
    metadata = encode_metadata(TopicPartition(TOPIC, 0), offset, CommitMetadata(window=window, is_open=True))
    return f"0:{offset}:{metadata}"


FIRST = [
    "1.0 start 7",
    "1.1 begin 0 0 0 1",
    "1.1 begin 0 2 2 1",
    "1.2 acked 0 0",
    "1.2 begin 0 1 1 1",
    "1.3 left 0 1",
    "1.3 nacked 0 1",
    "1.4 left 0 2",
    "1.4 acked 0 2",
    "1.5 sent",
    f"1.6 committed {commit(1, (2, 3))}",
    "1.7 begin 0 1 1 2",
    "1.8 acked 0 1",
    "1.9 sent",
    f"2.0 committed {commit(3)}",
    "2.0 durable 0 1",
    "4.9 begin 0 3 3 1",
    "4.95 acked 0 3",
    "4.99 begin 0 4 4 1",
]
"""The journal of a process that was killed after it had acknowledged 3, and while 4 was acquired."""

SECOND = [
    "5.5 start 8",
    "6.0 begin 0 3 3 1",
    "6.1 acked 0 3",
    "6.1 begin 0 4 4 1",
    "6.2 left 0 4",
    "6.2 nacked 0 4",
    "6.3 begin 0 4 4 2",
    "6.4 nacked 0 4",
    "6.5 dead 0 4 4",
    "6.6 begin 0 5 5 1",
    "6.7 acked 0 5",
    "6.8 sent",
    f"6.9 committed {commit(6)}",
    "7.0 end GroupClosed group 'g' is closed",
    "7.1 closed",
]
"""The journal of its successor."""


def lives(tmp_path: Path, first: list[str] = FIRST, second: list[str] = SECOND) -> list[QueueLife]:
    for name, lines in (("a-1", first), ("a-2", second)):
        (tmp_path / f"{name}.log").write_text("".join(f"{line}\n" for line in lines))
    return [read_queue_life(path) for path in sorted(tmp_path.glob("*.log"))]


def judge(found: list[QueueLife], dead_letters: tuple[tuple[int, int], ...] = ((POISON, 2),)) -> QueueVerdict:
    evidence = QueueEvidence(
        topic=TOPIC,
        keys=KEYS,
        poison=frozenset({POISON}),
        max_deliveries=2,
        ack_group_time=0.1,
        dead_letters=dead_letters,
        killed={"a-1": KILL},
    )
    return judge_queue(found, evidence)


def changed(lines: list[str], old: str, *new: str) -> list[str]:
    """Return the journal with other lines in place of one."""
    place = lines.index(old)
    return [*lines[:place], *new, *lines[place + 1 :]]


def test_a_run_that_keeps_all_promises_has_no_problems(tmp_path: Path) -> None:
    verdict = judge(lives(tmp_path))
    assert verdict.problems == []
    assert (verdict.delivered, verdict.interrupted, verdict.exposed) == (10, 1, 1)
    assert verdict.repeats == {Repeat.KILLED: 1}
    assert verdict.longest_wait == pytest.approx(0.05)


# --- outcomes --------------------------------------------------------------------------------------------------------------------


def test_a_lost_record(tmp_path: Path) -> None:
    second = changed(changed(SECOND, "6.6 begin 0 5 5 1"), "6.7 acked 0 5")
    assert judge(lives(tmp_path, second=second)).problems == [
        "1 records were neither acknowledged nor dead letters: [5]"
    ]


def test_dead_letters_that_are_missing_too_many_or_wrong(tmp_path: Path) -> None:
    found = lives(tmp_path)
    (lost, missing) = judge(found, ()).problems
    assert lost == "1 records were neither acknowledged nor dead letters: [4]"
    assert missing == "1 poison records are not dead letters: [4]"
    assert judge(found, ((POISON, 2), (2, 2))).problems == ["1 dead letters are not poison: [2]"]
    assert judge(found, ((POISON, 1),)).problems == ["the dead letter of 4 counts 1 deliveries, not 2"]
    assert (
        judge(found, ((POISON, 2), (POISON, 2))).problems == []
    )  # its process was killed between copy and commit


def test_a_poison_record_that_was_acknowledged(tmp_path: Path) -> None:
    second = changed(SECOND, "6.4 nacked 0 4", "6.4 acked 0 4")
    assert judge(lives(tmp_path, second=second)).problems == ["poison records were acknowledged: [4]"]


def test_a_process_that_does_not_end(tmp_path: Path) -> None:
    problems = judge(lives(tmp_path, second=changed(SECOND, "7.1 closed"))).problems
    assert problems == ["a-2 was not killed and did not close"]
    second = changed(SECOND, "6.9 committed " + commit(6), "6.9 committed " + commit(6), "6.9 begin 0 9 5 1")
    assert any("has no end" in problem for problem in judge(lives(tmp_path, second=second)).problems)


# --- order -----------------------------------------------------------------------------------------------------------------------


def test_a_record_that_is_delivered_before_an_earlier_one_of_its_key_is_done(tmp_path: Path) -> None:
    """5 follows 4, which is poison: it has to wait for the dead letter."""
    second = changed(SECOND, "6.6 begin 0 5 5 1")
    second = changed(second, "6.3 begin 0 4 4 2", "6.25 begin 0 5 5 1", "6.26 acked 0 5", "6.3 begin 0 4 4 2")
    problems = judge(lives(tmp_path, second=changed(second, "6.7 acked 0 5"))).problems
    assert "5 of key b'z' was delivered at 6.250000, before 4 was completed" in problems
    assert "5 of key b'z' was completed at 6.260000, before 4" in problems
    assert any(problem.startswith("4 (0@4)") and "came after 5 (0@5)" in problem for problem in problems)


def test_two_deliveries_of_a_key_at_a_time(tmp_path: Path) -> None:
    first = changed(
        changed(FIRST, "1.2 begin 0 1 1 1"), "1.1 begin 0 2 2 1", "1.1 begin 0 2 2 1", "1.15 begin 0 1 1 1"
    )
    problems = judge(lives(tmp_path, first=first)).problems
    assert any("began before the end of 0 (0@0)" in problem for problem in problems)


def test_two_owners_at_a_time(tmp_path: Path) -> None:
    """Unless the member of the first owner is lost, its deliveries end before the next owner's begin."""
    first = [*FIRST, "5.9 begin 0 5 5 1", "6.65 acked 0 5"]
    for ends, expected in (([], True), (["6.68 end MemberLost expired"], False)):
        found = lives(tmp_path, first=first + ends)
        problems = judge(found).problems
        assert any("began before the end of 5 (0@5)" in problem for problem in problems) is expected


def test_numbers_and_offsets_of_a_key_that_differ(tmp_path: Path) -> None:
    second = [line.replace("0 5 5 1", "0 3 5 1").replace("acked 0 5", "acked 0 3") for line in SECOND]
    problems = judge(lives(tmp_path, second=second)).problems
    assert any(problem.startswith("5 of key b'z' is at (0, 3)") for problem in problems)


# --- attempts --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("1.7 begin 0 1 1 2", "1.7 begin 0 1 1 1", "without a kill in between"),
        ("1.1 begin 0 0 0 1", "1.1 begin 0 0 0 2", "is the first one, after 0 kills"),
        ("6.3 begin 0 4 4 2", "6.3 begin 0 4 4 3", "at most 2 are allowed"),
        ("6.1 begin 0 4 4 1", "6.1 begin 0 4 4 4", "1 kills in between"),
    ],
)
def test_attempts_that_are_not_counted(tmp_path: Path, old: str, new: str, text: str) -> None:
    first, second = (changed(lines, old, new) if old in lines else lines for lines in (FIRST, SECOND))
    assert any(text in problem for problem in judge(lives(tmp_path, first, second)).problems)


# --- what is delivered again ------------------------------------------------------------------------------------------------------


def test_a_record_that_was_committed(tmp_path: Path) -> None:
    """2 is in the window above the first commit, and below the second."""
    again = ["6.91 begin 0 2 2 1", "6.92 acked 0 2"]
    second = changed(SECOND, "7.1 closed", *again, "7.1 closed")
    problems = judge(lives(tmp_path, second=second)).problems
    assert any("was acknowledged in the commit of" in problem for problem in problems)
    first = changed(FIRST, "1.7 begin 0 1 1 2", "1.65 begin 0 2 2 1", "1.66 acked 0 2", "1.7 begin 0 1 1 2")
    problems = judge(lives(tmp_path, first=first)).problems
    assert any("was acknowledged in the commit of" in problem for problem in problems)


def test_a_commit_that_forgets(tmp_path: Path) -> None:
    first = changed(FIRST, f"2.0 committed {commit(3)}", f"2.0 committed {commit(2)}")
    assert any("has forgotten 2 to 3" in problem for problem in judge(lives(tmp_path, first=first)).problems)
    second = changed(SECOND, f"6.9 committed {commit(6)}", f"6.9 committed {commit(2)}")
    assert any(
        "is lower than that of" in problem for problem in judge(lives(tmp_path, second=second)).problems
    )


def test_a_durable_acknowledgement_that_was_not(tmp_path: Path) -> None:
    first = changed(FIRST, "4.95 acked 0 3", "4.95 acked 0 3", "4.97 durable 0 3")
    problems = judge(lives(tmp_path, first=first)).problems
    assert len(problems) == 1
    assert "came after the durable acknowledgement of 3 (0@3)" in problems[0]


def test_a_repeat_without_a_kill(tmp_path: Path) -> None:
    """Acknowledgements of a session that ended in order are in its last commit; those of one that goes on, too."""
    for end, reason in (("4.96 end Rebalanced", Repeat.ORDERLY), ("4.96 end MemberLost", Repeat.LOST)):
        first = changed(FIRST, "4.99 begin 0 4 4 1", f"{end} because", "4.99 begin 0 4 4 1")
        verdict = judge(lives(tmp_path, first=first))
        assert verdict.repeats == {reason: 1}
        assert len(verdict.problems) == (reason is Repeat.ORDERLY)
    second = changed(SECOND, "6.8 sent", "6.75 begin 0 5 5 1", "6.76 acked 0 5", "6.8 sent")
    verdict = judge(lives(tmp_path, second=second))
    assert verdict.repeats == {Repeat.KILLED: 1, Repeat.SAME_SESSION: 1}
    assert len(verdict.problems) == 1


def test_an_acknowledgement_that_should_have_been_committed(tmp_path: Path) -> None:
    """3 is acknowledged long before the kill; with `ack_group_time` a commit has to be sent, and the second one has it."""
    first = changed(
        changed(FIRST, "4.9 begin 0 3 3 1", "2.1 begin 0 3 3 1"), "4.95 acked 0 3", "2.2 acked 0 3"
    )
    (late,) = judge(lives(tmp_path, first=first)).problems
    assert "was acknowledged at 2.200000, and no commit was sent within 2 s" in late
    sent = changed(first, "2.2 acked 0 3", "2.2 acked 0 3", "2.3 sent")
    assert judge(lives(tmp_path, first=sent)).problems == []  # not answered
    under_way = changed(first, "2.1 begin 0 3 3 1", "2.1 begin 0 3 3 1", "2.15 sent")
    assert judge(lives(tmp_path, first=under_way)).problems == []
    answered = ["2.2 acked 0 3", *(f"2.{at} committed {commit(3)}" for at in (4, 5))]
    (missing,) = judge(lives(tmp_path, first=changed(sent, "2.3 sent", "2.3 sent", *answered[1:]))).problems
    assert "was in none of 2 commits after its acknowledgement" in missing


def test_many_problems_of_one_kind_are_counted(tmp_path: Path) -> None:
    problems = judge(lives(tmp_path), tuple((POISON, 3) for _ in range(5))).problems
    assert (len(problems), problems[-1]) == (4, "… 2 more like the last")


def test_a_journal_survives_a_cut_off_line(tmp_path: Path) -> None:
    path = tmp_path / "a-1.log"
    journal = Journal(path)
    journal.write("start", 7)
    journal.write("begin", 0, 3, 33, 2)
    journal.write("sent")
    journal.write("committed", commit(3), commit(3, (4, 5)).replace("0:", "1:", 1))
    journal.write("uncommitted", "refused: UNKNOWN_MEMBER_ID")
    journal.write("end", "Rebalanced", "group rebalances: a b")
    with path.open("a") as file:
        file.write("12.5 acked 0 ")
    life = read_queue_life(path)
    (only,) = life.deliveries
    assert (only.place, only.number, only.attempt, only.end) == ((0, 3), 33, 2, None)
    assert [(each.partition, each.offset, each.sent) for each in life.commits] == [
        (0, 3, life.sent[0]),
        (1, 3, life.sent[0]),
    ]
    assert [text for _, text in life.failed] == ["refused: UNKNOWN_MEMBER_ID"]
    assert [(end.cause, end.text) for end in life.ends] == [("Rebalanced", "group rebalances: a b")]
