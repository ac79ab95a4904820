"""Times of a read that Spark interrupts: no timeout includes the pauses, or the turns of other ranges."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncgroup.spark.source.executor.range_times import Patience
from asyncgroup.spark.worker_process import WaitingTime

STEPS = st.lists(st.tuples(st.sampled_from(["pause", "resume", "look"]), st.integers(0, 1000)), max_size=30)


@given(STEPS)
def test_time_passes_only_between_pauses(steps: list[tuple[str, int]]) -> None:
    clock, waited, is_paused = 0, 0, False
    time = WaitingTime(lambda: clock)
    for step, seconds in steps:
        if step == "pause" and not is_paused:
            time.pause()
            is_paused = True
        elif step == "resume":
            time.resume()
            is_paused = False
        assert time() == waited
        clock += seconds
        waited += 0 if is_paused else seconds
        assert time() == waited


def test_patience_begins_once() -> None:
    patience = Patience()
    assert patience.ends(30) == float("inf")
    patience.begin(5)
    patience.begin(10)
    assert patience.ends(30) == 35


def test_waiting_for_other_ranges_does_not_count() -> None:
    patience = Patience()
    patience.begin(0)
    patience.queue(10)
    patience.queue(15)
    assert patience.ends(30) == float("inf")
    patience.take_turn(110)
    patience.take_turn(120)
    assert patience.ends(30) == 130, "ten of thirty seconds were over"


def test_progress_while_it_waits_for_other_ranges() -> None:
    patience = Patience()
    patience.begin(0)
    patience.queue(10)
    patience.restart(50)
    patience.take_turn(60)
    assert patience.ends(30) == 90, "the ten seconds after the progress do not count either"


def test_the_leader_is_asked_again_after_a_while() -> None:
    patience = Patience()
    patience.begin(100)
    assert patience.end_check(10) == 110
    patience.end_asked_at = 112
    assert patience.end_check(10) == 122
    patience.restart(130)
    assert patience.end_check(10) == 140
