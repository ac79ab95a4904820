"""Times of a read that Spark interrupts: no timeout includes the pauses, or the turns of other ranges."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncgroup.spark.source.executor.patience import Due, Patience, WaitingTime

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
    patience = Patience(30)
    assert patience.ends == float("inf")
    patience.begin(5)
    patience.begin(10)
    assert patience.ends == 35
    assert patience.check(34, is_gone=False) is Due.NOTHING
    assert patience.check(35, is_gone=False) is Due.TIMEOUT


def test_waiting_for_other_ranges_does_not_count() -> None:
    patience = Patience(30)
    patience.begin(0)
    patience.check(10, is_gone=False, is_queued=True)
    assert patience.check(45, is_gone=False, is_queued=True) is Due.NOTHING
    assert patience.ends == float("inf")
    patience.check(110, is_gone=False)
    patience.check(120, is_gone=False)
    assert patience.ends == 130, "ten of thirty seconds were over"


def test_progress_while_it_waits_for_other_ranges() -> None:
    patience = Patience(30)
    patience.begin(0)
    patience.check(10, is_gone=False, is_queued=True)
    patience.progressed(50)
    patience.check(60, is_gone=False)
    assert patience.ends == 90, "the ten seconds after the progress do not count either"


def test_the_leader_is_asked_again_after_a_while() -> None:
    patience = Patience(60)
    patience.begin(100)
    assert patience.next_check == 160
    patience.nothing_came(7, 7)
    assert (patience.next_check, patience.log_end) == (110, 7)
    assert patience.check(112, is_gone=False) is Due.END_CHECK
    assert patience.next_check == 122
    patience.set_leaders_end(12)
    assert patience.log_end is None, "nothing is lost"
    assert "up to offset 12" in patience.held_back
    patience.progressed(130)
    assert (patience.next_check, patience.held_back) == (190, "")
    patience.nothing_came(7, 7)
    assert patience.next_check == 140
    patience.end_check_failed()
    patience.nothing_came(7, 9)
    assert (patience.next_check, patience.log_end) == (190, None)
    assert "up to offset 9" in patience.held_back


def test_other_partitions_may_fill_a_response() -> None:
    patience = Patience(30)
    patience.begin(0)
    patience.crowded_out(10)
    assert patience.ends == 40
    patience.nothing_came(7, 7)
    patience.crowded_out(20)
    assert patience.ends == 40, "the log has ended"


def test_a_topic_is_gone_after_a_while() -> None:
    patience = Patience(30)
    patience.begin(0)
    assert patience.check(5, is_gone=True, is_certain=False) is Due.NOTHING, "perhaps of old metadata"
    assert patience.next_check == 30
    assert patience.check(6, is_gone=True) is Due.NOTHING
    assert patience.check(10, is_gone=True, is_certain=False) is Due.NOTHING
    assert patience.next_check == 16
    assert patience.check(11, is_gone=False) is Due.NOTHING
    assert patience.check(25, is_gone=True) is Due.NOTHING
    assert patience.next_check == 30, "not after the timeout"
    assert patience.check(30, is_gone=True) is Due.TOPIC_GONE
