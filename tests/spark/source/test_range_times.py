"""Times of a read that Spark interrupts: no timeout includes the pauses, or the turns of other ranges."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncgroup.spark.source.executor.poll_timer import Due, PollTimer, WaitingTime

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


def test_poll_timer_begins_once() -> None:
    poll_timer = PollTimer(30)
    assert poll_timer.ends == float("inf")
    poll_timer.begin(5)
    poll_timer.begin(10)
    assert poll_timer.ends == 35
    assert poll_timer.check(34, is_gone=False) is Due.NOTHING
    assert poll_timer.check(35, is_gone=False) is Due.TIMEOUT


def test_waiting_for_other_ranges_does_not_count() -> None:
    poll_timer = PollTimer(30)
    poll_timer.begin(0)
    poll_timer.check(10, is_gone=False, is_queued=True)
    assert poll_timer.check(45, is_gone=False, is_queued=True) is Due.NOTHING
    assert poll_timer.ends == float("inf")
    poll_timer.check(110, is_gone=False)
    poll_timer.check(120, is_gone=False)
    assert poll_timer.ends == 130, "ten of thirty seconds had passed"


def test_progress_while_it_waits_for_other_ranges() -> None:
    poll_timer = PollTimer(30)
    poll_timer.begin(0)
    poll_timer.check(10, is_gone=False, is_queued=True)
    poll_timer.progressed(50)
    poll_timer.check(60, is_gone=False)
    assert poll_timer.ends == 90, "the ten seconds after the progress do not count either"


def test_the_leader_is_asked_again_after_a_while() -> None:
    poll_timer = PollTimer(60)
    poll_timer.begin(100)
    assert poll_timer.next_check == 160
    poll_timer.nothing_came(7, 7)
    assert (poll_timer.next_check, poll_timer.log_end) == (110, 7)
    assert poll_timer.check(112, is_gone=False) is Due.END_CHECK
    assert poll_timer.next_check == 122
    poll_timer.set_leaders_end(12)
    assert poll_timer.log_end is None, "nothing is lost"
    assert "up to offset 12" in poll_timer.held_back
    poll_timer.progressed(130)
    assert (poll_timer.next_check, poll_timer.held_back) == (190, "")
    poll_timer.nothing_came(7, 7)
    assert poll_timer.next_check == 140
    poll_timer.end_check_failed()
    poll_timer.nothing_came(7, 9)
    assert (poll_timer.next_check, poll_timer.log_end) == (190, None)
    assert "up to offset 9" in poll_timer.held_back


def test_other_partitions_may_fill_a_response() -> None:
    poll_timer = PollTimer(30)
    poll_timer.begin(0)
    poll_timer.crowded_out(10)
    assert poll_timer.ends == 40
    poll_timer.nothing_came(7, 7)
    poll_timer.crowded_out(20)
    assert poll_timer.ends == 40, "the log has ended"


def test_a_topic_is_gone_after_a_while() -> None:
    poll_timer = PollTimer(30)
    poll_timer.begin(0)
    assert poll_timer.check(5, is_gone=True, is_certain=False) is Due.NOTHING, "perhaps of old metadata"
    assert poll_timer.next_check == 30
    assert poll_timer.check(6, is_gone=True) is Due.NOTHING
    assert poll_timer.check(10, is_gone=True, is_certain=False) is Due.NOTHING
    assert poll_timer.next_check == 16
    assert poll_timer.check(11, is_gone=False) is Due.NOTHING
    assert poll_timer.check(25, is_gone=True) is Due.NOTHING
    assert poll_timer.next_check == 30, "not after the timeout"
    assert poll_timer.check(30, is_gone=True) is Due.TOPIC_GONE
