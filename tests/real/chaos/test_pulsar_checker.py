"""The checker of the queue story on Pulsar finds lost messages, wrong dead letters, disorder, and deliveries without a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.chaos.pulsar_checker import PulsarVerdict, judge_pulsar_queue
from tests.real.chaos.pulsar_journal import PulsarLife, read_pulsar_life
from tests.real.chaos.pulsar_run import UNNOTICED, Disturbance, PulsarEvidence

POISON = 4
KEYS = {0: b"x", 1: b"x", 2: b"y", 3: b"x", 4: b"z", 5: b"z"}

FIRST = [
    "1.0 start 7",
    "1.1 begin 0 1 9:0:0:0",
    "1.1 begin 2 1 9:0:1",
    "1.2 acked 0",
    "1.2 begin 1 1 9:0:0:1",
    "1.3 left 1",
    "1.3 nacked 1",
    "1.4 left 2",
    "1.4 acked 2",
    "1.7 begin 1 2 9:0:0:1",
    "1.8 acked 1",
    "2.0 durable 1",
    "9.90 begin 3 1 9:1:0",
    "9.95 acked 3",
    "9.99 begin 4 1 9:0:2",
]
"""The journal of a process that was killed after it had acknowledged 3, and while it handled 4."""

SECOND = [
    "10.5 start 8",
    "11.0 begin 3 1 9:1:0",
    "11.1 acked 3",
    "11.1 begin 4 1 9:0:2",
    "11.2 left 4",
    "11.2 nacked 4",
    "11.3 begin 4 2 9:0:2",
    "11.4 nacked 4",
    "11.5 dead 4",
    "11.6 begin 5 1 9:1:2",
    "11.7 acked 5",
    "12.1 closed",
]
"""The journal of its successor."""

KILL = Disturbance("kill", "a-1", 10.0, 10.0)


def lives(tmp_path: Path, first: list[str] = FIRST, second: list[str] = SECOND) -> list[PulsarLife]:
    for name, lines in (("a-1", first), ("a-2", second)):
        (tmp_path / f"{name}.log").write_text("".join(f"{line}\n" for line in lines))
    return [read_pulsar_life(path) for path in sorted(tmp_path.glob("*.log"))]


def judge(
    found: list[PulsarLife],
    dead_letters: tuple[tuple[int, int], ...] = ((POISON, 2),),
    disturbances: tuple[Disturbance, ...] = (KILL,),
    keys: dict[int, bytes] = KEYS,
) -> PulsarVerdict:
    evidence = PulsarEvidence(
        keys=keys,
        poison=frozenset({POISON}),
        max_deliveries=2,
        dead_letters=dead_letters,
        disturbances=disturbances,
    )
    return judge_pulsar_queue(found, evidence)


def changed(lines: list[str], old: str, *new: str) -> list[str]:
    """Return the journal with other lines in place of one."""
    place = lines.index(old)
    return [*lines[:place], *new, *lines[place + 1 :]]


def test_a_run_that_keeps_all_promises_has_no_problems(tmp_path: Path) -> None:
    verdict = judge(lives(tmp_path))
    assert verdict.problems == []
    assert (verdict.delivered, verdict.moved, verdict.copied_twice) == (10, 2, {})
    assert verdict.repeats == {"kill": 1}


def test_without_the_kill_nothing_explains_what_came_again(tmp_path: Path) -> None:
    problems = "\n".join(judge(lives(tmp_path), disturbances=()).problems)
    assert "a-1 was not killed and did not close" in problems
    assert "follows the completed 3" in problems
    assert "nothing has disturbed a-1" in problems


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("11.7 acked 5", ["11.7 nacked 5"], "1 messages were neither acknowledged nor dead letters: [5]"),
        ("12.1 closed", [], "a-2 was not killed and did not close"),
        ("11.7 acked 5", [], "5 (9:1:2), attempt 1 in a-2 from 11.600 to - has no end"),
        ("11.6 begin 5 1 9:1:2", ["11.45 begin 5 1 9:1:2"], "before 4 was completed"),
        ("11.3 begin 4 2 9:0:2", ["11.15 begin 4 2 9:0:2"], "began before the end of"),
        ("11.3 begin 4 2 9:0:2", ["11.3 begin 4 1 9:0:2"], "and nothing has disturbed its process"),
        ("11.3 begin 4 2 9:0:2", ["11.3 begin 4 3 9:0:2"], "at most 2 are allowed"),
        ("11.0 begin 3 1 9:1:0", ["11.0 begin 3 2 9:1:0"], "is the first one of its process"),
        ("11.6 begin 5 1 9:1:2", ["11.6 begin 5 1 9:0:1"], "5 of key b'z' is at [9, 0, 1], 4 at [9, 0, 2]"),
        ("11.0 begin 3 1 9:1:0", ["11.0 begin 3 1 9:7:0"], "3 was stored 2 times"),
        (
            "12.1 closed",
            ["11.8 begin 5 1 9:1:2", "11.9 acked 5", "12.1 closed"],
            "follows the completed 5",
        ),
        (
            "12.1 closed",
            ["11.8 begin 1 1 9:0:0:1", "11.9 acked 1", "12.1 closed"],
            "after the durable acknowledgement of 1",
        ),
    ],
)
def test_a_promise_that_is_not_kept(tmp_path: Path, old: str, new: list[str], problem: str) -> None:
    found = judge(lives(tmp_path, second=changed(SECOND, old, *new))).problems
    assert problem in "\n".join(found)


def test_without_an_order_the_broker_counts_what_has_failed_elsewhere(tmp_path: Path) -> None:
    """Another process has failed with 4, and none with 5."""
    for number, place, problem in [(4, "9:0:2", ""), (5, "9:1:2", "is the first one of its process")]:
        first = ["10.0 start", "10.1 begin 4 1 9:0:2", "10.2 nacked 4", "10.3 closed"]
        second = ["11.0 start", f"11.1 begin {number} 2 {place}", f"11.2 acked {number}", "11.3 closed"]
        found = []
        for name, lines in (("a-1", first), ("b-1", second)):
            path = tmp_path / f"{name}.log"
            path.write_text("".join(f"{line}\n" for line in lines), "ascii")
            found.append(read_pulsar_life(path))
        evidence = PulsarEvidence(
            keys={4: b"k", 5: b"k"},
            poison=frozenset(),
            max_deliveries=2,
            dead_letters=(),
            disturbances=(),
            order="nothing",
        )
        problems = "\n".join(judge_pulsar_queue(found, evidence).problems)
        assert ("is the first one of its process" in problems) == bool(problem)
        assert "nothing has disturbed" not in problems


def test_dead_letters_that_are_missing_too_many_or_wrong(tmp_path: Path) -> None:
    found = lives(tmp_path)
    assert "1 poison messages are not dead letters: [4]" in judge(found, ()).problems
    assert judge(found, ((4, 2), (5, 2))).problems[0] == "1 dead letters are not poison: [5]"
    assert judge(found, ((4, 1),)).problems == ["the dead letter of 4 counts 1 deliveries, not 2"]
    assert judge(found, ((4, 2), (4, 2))).problems == [
        "4 has 2 dead letters; 1 were reported, and kills may hide 0"
    ]


def test_a_kill_between_copy_and_report_explains_a_second_copy(tmp_path: Path) -> None:
    copying = [*FIRST, "9.991 nacked 4", "9.992 begin 4 2 9:0:2", "9.993 nacked 4"]
    found = lives(tmp_path, first=copying)
    verdict = judge(found, ((4, 2), (4, 2)))
    assert (verdict.problems, verdict.copied_twice) == ([], {"kill": 1})


@pytest.mark.parametrize(("is_hard", "explains"), [(True, True), (False, False)])
def test_only_the_kill_of_a_broker_loses_a_durable_acknowledgement(
    tmp_path: Path, is_hard: bool, explains: bool
) -> None:
    again = ["12.2 begin 5 1 9:1:2", "12.3 acked 5", "12.4 closed"]
    second = changed(SECOND, "12.1 closed", "11.71 durable 5", *again)
    outage = Disturbance("outage", "", 12.0, 12.1, is_hard)
    found = judge(lives(tmp_path, second=second), disturbances=(KILL, outage)).problems
    assert (found == []) is explains


def test_a_reset_concerns_its_process_alone(tmp_path: Path) -> None:
    second = changed(SECOND, "12.1 closed", "11.8 begin 5 1 9:1:2", "11.9 acked 5", "12.1 closed")
    found = lives(tmp_path, second=second)
    assert judge(found, disturbances=(KILL, Disturbance("reset", "a", 11.75, 11.75))).problems == []
    assert judge(found, disturbances=(KILL, Disturbance("reset", "b", 11.75, 11.75))).problems


@pytest.mark.parametrize(("begin", "is_explained"), [(11.74, True), (11.0, False)])
def test_a_process_that_was_just_cut_off_may_deliver_what_another_one_has_completed(
    tmp_path: Path, begin: float, is_explained: bool
) -> None:
    late = ["11.75 start 9", "11.76 begin 5 1 9:1:2", "11.77 acked 5", "12.1 closed"]
    (tmp_path / "b-1.log").write_text("".join(f"{line}\n" for line in late))
    found = lives(tmp_path)
    reset = Disturbance("reset", "b", begin - UNNOTICED / 2, begin - UNNOTICED / 2)
    assert (judge(found, disturbances=(KILL, reset)).problems == []) is is_explained


def test_a_process_that_has_seen_its_loss_is_not_late(tmp_path: Path) -> None:
    for seen, is_late in [("11.73 detached 0", True), ("11.5 detached 1", True), ("11.55 detached 0", False)]:
        late = [seen, "11.75 begin 5 1 9:1:0", "11.77 acked 5", "12.1 closed"]
        (tmp_path / "b-1.log").write_text("".join(f"{line}\n" for line in late))
        found = lives(tmp_path, second=changed(SECOND, "11.6 begin 5 1 9:1:2", "11.6 begin 5 1 9:1:0"))
        problems = judge(found, disturbances=(KILL, Disturbance("reset", "b", 11.5, 11.5))).problems
        assert (problems == []) is is_late, problems


@pytest.mark.parametrize("is_durable", [True, False])
@pytest.mark.parametrize(("later", "is_saved"), [(16.5, True), (12.5, False), (27.5, False)])
def test_what_a_killed_broker_had_written_does_not_come_again(
    tmp_path: Path, later: float, is_saved: bool, is_durable: bool
) -> None:
    """The acknowledgement of 5 is written with the next one of its partition, once a second has passed."""
    durable = ["11.71 durable 5"] if is_durable else []
    second = [
        *changed(SECOND, "11.6 begin 5 1 9:1:2", "11.6 begin 5 1 9:1:0")[:-1],
        *durable,
        f"{later} begin 6 1 9:2:0",
        f"{later} acked 6",
        "31.0 begin 5 1 9:1:0",
        "31.1 acked 5",
        "32.0 closed",
    ]
    outage = Disturbance("outage", "", 29.0, 30.5, True)
    found = lives(tmp_path, second=second)
    problems = judge(found, disturbances=(KILL, outage), keys={**KEYS, 6: b"z"}).problems
    assert (problems != []) is is_saved, problems


@pytest.mark.parametrize(("by", "is_explained"), [("b", True), ("c", False)])
def test_a_message_fails_beyond_the_limit_only_after_a_disturbance(
    tmp_path: Path, by: str, is_explained: bool
) -> None:
    lines = [
        *("11.0 begin 5 1 9:1:0", "11.1 nacked 5", "11.2 begin 5 2 9:1:0", "11.3 nacked 5"),
        *("11.5 begin 5 1 9:1:0", "11.6 nacked 5", "11.7 begin 5 2 9:1:0", "11.8 acked 5", "12.1 closed"),
    ]
    (tmp_path / "b-1.log").write_text("".join(f"{line}\n" for line in lines))
    evidence = PulsarEvidence(
        keys={5: b"z"},
        poison=frozenset(),
        max_deliveries=2,
        dead_letters=(),
        disturbances=(Disturbance("reset", by, 11.4, 11.4),),
    )
    verdict = judge_pulsar_queue([read_pulsar_life(tmp_path / "b-1.log")], evidence)
    assert verdict.beyond_limit == ({"reset": 1} if is_explained else {})
    assert any("restarts the count" in each for each in verdict.problems) is not is_explained


@pytest.mark.parametrize(("first", "is_explained"), [("acked 3", True), ("left 3", False)])
def test_a_completed_message_that_comes_again_delays_no_other_of_its_key(
    tmp_path: Path, first: str, is_explained: bool
) -> None:
    """The acknowledgement arrives after a reconnect, when the message is another process's already."""
    journals = {
        "a-1": [
            "11.0 begin 3 1 9:1:0",
            f"11.1 {first}",
            "11.3 detached 0",
            "11.6 begin 7 1 9:2:0",
            "11.7 acked 7",
        ],
        "b-1": ["11.5 begin 3 1 9:1:0", "11.8 acked 3"],
    }
    found = []
    for name, lines in journals.items():
        path = tmp_path / f"{name}.log"
        path.write_text("".join(f"{line}\n" for line in [*lines, "12.0 closed"]))
        found.append(read_pulsar_life(path))
    problems = judge(found, (), (Disturbance("reset", "a", 11.3, 11.3),), {3: b"x", 7: b"x"}).problems
    assert any("began before the end of" in each for each in problems) is not is_explained
