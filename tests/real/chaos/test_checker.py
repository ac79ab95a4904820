"""The checker of the chaos story finds lost, disordered and wrongly duplicated records."""

from __future__ import annotations

from tests.real.chaos.checker import Evidence, Reason, Span, judge
from tests.real.chaos.journal import Delivery, Journal, Life, SessionLog, read_life

LOST = "a commit was refused: commit of t-0 at 5 by group 'g': UNKNOWN_MEMBER_ID (25)"


def life(name: str, *sessions: SessionLog, closed: float | None = None) -> Life:
    return Life(name, sessions=list(sessions), closed=closed)


def session(
    member: str, offsets: list[int], begin: float, end: float | None = None, cause: str = "", text: str = ""
) -> SessionLog:
    deliveries = [Delivery(0, offset, offset, begin + index / 10) for index, offset in enumerate(offsets)]
    return SessionLog(member, 1, begin, end, cause, text, deliveries=deliveries)


def evidence(count: int) -> Evidence:
    return Evidence(acknowledged={(0, offset): offset for offset in range(count)}, reach=5.0)


def test_a_run_without_faults_has_no_problems() -> None:
    verdict = judge([life("a", session("m", [0, 1, 2], 0, 9, "GroupClosed"))], evidence(3))
    assert (verdict.delivered, verdict.problems, dict(verdict.reasons)) == (3, [], {})


def test_a_lost_record_is_a_problem() -> None:
    verdict = judge([life("a", session("m", [0, 2], 0))], evidence(3))
    assert verdict.problems == ["1 acknowledged records were lost: [(0, 1)]"]


def test_disorder_and_wrong_values_are_problems() -> None:
    wrong = SessionLog("m", 1, 0.0, deliveries=[Delivery(0, 1, 1, 0.1), Delivery(0, 0, 7, 0.2)])
    verdict = judge([life("a", wrong)], evidence(2))
    assert len(verdict.problems) == 2
    assert verdict.problems[0] == "a: partition 0 went from 1 to 0 at 0.200"
    assert "value other than 0" in verdict.problems[1]


def test_duplicates_after_an_orderly_end_are_problems() -> None:
    for cause in ("Rebalanced", "GroupClosed"):
        first, second = session("m", [0, 1], 0, 1, cause), session("n", [1, 2], 2, 3, "GroupClosed")
        verdict = judge([life("a", first), life("b", second)], evidence(3))
        assert verdict.reasons == {Reason.ORDERLY: 1}
        assert len(verdict.problems) == 1


def test_a_kill_or_a_long_freeze_excuses_its_own_member_only() -> None:
    killed = evidence(3)
    killed.killed.add("a")
    lives = [life("a", session("m", [0, 1], 0)), life("b", session("n", [1, 2], 20, 21, "GroupClosed"))]
    assert judge(lives, killed).reasons == {Reason.KILLED: 1}
    frozen = evidence(3)
    frozen.frozen["a"].append(Span(0.5, 12))
    lives[0].sessions[0].end, lives[0].sessions[0].cause = 12.5, "Rebalanced"
    assert judge(lives, frozen).reasons == {Reason.FROZEN: 1}
    frozen.frozen["b"] = frozen.frozen.pop("a")
    assert judge(lives, frozen).reasons == {Reason.ORDERLY: 1}
    # "b" continued delivering buffered records that "a" had had
    lives[1].sessions[0].deliveries[0] = Delivery(0, 1, 1, 30.0)
    frozen.frozen["b"] = [Span(20.5, 29.0)]
    assert judge(lives, frozen).reasons == {Reason.FROZEN: 1}
    lives[0].sessions[0].end = None
    assert judge(lives, evidence(3)).reasons == {Reason.SAME_SESSION: 1}


def test_a_refusal_counts_as_a_former_coordinators_if_the_group_still_has_the_member() -> None:
    lives = [
        life("a", session("m", [0, 1], 0, 5, "MemberLost", LOST)),
        life("b", session("n", [1, 2], 6, 9, "GroupClosed")),
    ]
    gone = evidence(3)
    gone.described += [(4.0, frozenset({"m", "n"})), (6.5, frozenset({"n"}))]
    verdict = judge(lives, gone)
    assert (verdict.reasons, verdict.problems) == ({Reason.EXPELLED: 1}, [])
    there = evidence(3)
    there.described.append((6.5, frozenset({"m", "n"})))
    verdict = judge(lives, there)
    assert verdict.reasons == {Reason.FORMER_COORDINATOR: 1}
    assert len(verdict.problems) == 1


def test_a_journal_survives_a_cut_off_line(tmp_path) -> None:
    path = tmp_path / "records-1.log"
    journal = Journal(path)
    journal.write("start", 7)
    journal.write("session", "m-1", 3, "0:5 1:7")
    journal.write("committed", "0:6")
    journal.write_all([("record", 0, 5, 50), ("record", 0, 6, 60)])
    journal.write("end", "Rebalanced", "group rebalances: a b")
    journal.write("closing")
    journal.write("closed", 0, 2)
    with path.open("a") as file:
        file.write("12.5 reco")
    found = read_life(path)
    assert (found.name, found.pid, found.tasks_left) == ("records-1", 7, 2)
    (only,) = found.sessions
    assert (only.starts, only.committed) == ({0: 5, 1: 7}, {0: 6})
    assert (only.member_id, only.generation_id, only.cause, only.text) == (
        "m-1",
        3,
        "Rebalanced",
        "group rebalances: a b",
    )
    assert [each[:3] for each in only.deliveries] == [(0, 5, 50), (0, 6, 60)]
    assert judge([found], Evidence()).problems == ["records-1 left 0 sockets and 2 tasks"]
