"""DeadLetterBreaker beside a list of all ends, and its bounds of memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.workqueue.dead_letters import SLOTS, DeadLetterBreaker, DeadLetterRateError
from asyncgroup.workqueue.policies import Breaker


class Clock:
    """A clock that is moved by hand."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


ENDS = st.lists(st.tuples(st.floats(0, 30) | st.just(0.0), st.booleans()), max_size=200)
"""Records that end: seconds after the one before, and whether it is a dead letter."""


@given(
    ENDS,
    st.floats(0, 0.99),
    st.integers(1, 10),
    st.sampled_from([0.5, 10.0, 60.0]),
    st.sampled_from([0.0, -5.3, 1e6]),
)
@settings(max_examples=300)
def test_beside_a_list_of_all_ends(
    ends: list[tuple[float, bool]], share: float, minimum: int, window: float, start: float
) -> None:
    clock = Clock(start)
    breaker = DeadLetterBreaker(Breaker(share=share, minimum=minimum, window=window), clock)
    seen: list[tuple[float, bool]] = []
    tripped = False
    for seconds, dead in ends:
        clock.now += seconds
        seen.append((clock.now, dead))
        slot = clock.now // (window / SLOTS)
        kept = [(at, was_dead) for at, was_dead in seen if at // (window / SLOTS) > slot - SLOTS]
        dead_ones = sum(was_dead for _, was_dead in kept)
        trips = not tripped and dead and dead_ones >= minimum and dead_ones > share * len(kept)
        assert breaker.note_end(dead) is trips
        tripped |= trips
        assert (breaker.dead, breaker.ended, breaker.is_tripped) == (dead_ones, len(kept), tripped)
        # to 1/64 of the window: none is older, and none that is clearly younger is missing
        assert all(at >= clock.now - window * 1.001 for at, _ in kept)
        assert len(kept) >= sum(at > clock.now - window * (SLOTS - 1.001) / SLOTS for at, _ in seen)


def test_memory_and_work_do_not_grow_with_the_rate() -> None:
    clock = Clock()
    breaker = DeadLetterBreaker(Breaker(window=60), clock)
    for number in range(100_000):
        clock.now += 0.005
        breaker.note_end(number % 3 == 0)
    assert len(breaker._slots) <= SLOTS
    assert breaker.ended == pytest.approx(60 / 0.005, rel=0.02)


def test_a_bad_deployment_trips_it_and_single_poison_records_do_not() -> None:
    clock = Clock()
    breaker = DeadLetterBreaker(Breaker(share=0.5, minimum=10, window=60), clock)
    assert not any(breaker.note_end(number % 10 == 0) for number in range(1000))
    assert not any(breaker.note_end(dead=True) for _ in range(800))  # 900 of 1800
    assert breaker.note_end(dead=True)
    assert not breaker.note_end(dead=True)  # once
    clock.now += 1000
    breaker.note_end(dead=False)
    assert breaker.is_tripped  # for good
    assert (breaker.dead, breaker.ended) == (0, 1)


def test_the_error_names_group_counts_and_limits() -> None:
    breaker = DeadLetterBreaker(Breaker(share=0.25, minimum=2, window=30), Clock())
    assert [breaker.note_end(dead=True) for _ in range(2)] == [False, True]
    error = breaker.error("billing")
    assert isinstance(error, DeadLetterRateError)
    assert (error.group_id, error.dead, error.ended, error.window) == ("billing", 2, 2, 30)
    assert str(error) == (
        "group 'billing': 2 of the 2 records that ended in the last 30 s are dead letters, more than share=0.25 with "
        "minimum=2: no further ones are written"
    )
