"""Timers by key, and the purgatory: requests parked under watch keys."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker.clock import LoopTimers
from asyncgroup.broker.purgatory import Purgatory
from tests.stories.virtual import now


async def test_a_timer_fires_once_at_its_time():
    fired: list[tuple[str, float]] = []
    timers = LoopTimers(asyncio.get_running_loop())
    timers.schedule("b", 2.0, lambda: fired.append(("b", now())))
    timers.schedule("a", 1.0, lambda: fired.append(("a", now())))
    await asyncio.sleep(10)
    assert fired == [("a", 1.0), ("b", 2.0)]


@pytest.mark.parametrize(("second", "at"), [(5.0, 5.5), (0.2, 0.7), (1.0, 1.5)])
async def test_a_rescheduled_timer_fires_at_the_new_time_only(second, at):
    fired: list[tuple[str, float]] = []
    timers = LoopTimers(asyncio.get_running_loop())
    timers.schedule("key", 1.0, lambda: fired.append(("old", now())))
    await asyncio.sleep(0.5)
    timers.schedule("key", second, lambda: fired.append(("new", now())))
    await asyncio.sleep(10)
    assert fired == [("new", at)]


async def test_a_timer_rescheduled_many_times():
    fired: list[float] = []
    timers = LoopTimers(asyncio.get_running_loop())
    for _ in range(50):
        timers.schedule("key", 10.0, lambda: fired.append(now()))
        await asyncio.sleep(3)
    await asyncio.sleep(20)
    assert fired == [49 * 3 + 10]


async def test_cancelled_timers_do_not_fire():
    fired: list[str] = []
    timers = LoopTimers(asyncio.get_running_loop())
    for key in "abc":
        timers.schedule(key, 1.0, lambda key=key: fired.append(key))
    timers.cancel("b")
    timers.cancel("unknown")
    await asyncio.sleep(0.5)
    timers.schedule("b", 0.1, lambda: fired.append("again"))
    await asyncio.sleep(5)
    assert fired == ["again", "a", "c"]
    timers.schedule("d", 1.0, lambda: fired.append("d"))
    timers.clear()
    await asyncio.sleep(5)
    assert "d" not in fired


async def test_an_action_may_reschedule_its_own_key():
    fired: list[float] = []
    timers = LoopTimers(asyncio.get_running_loop())

    def action() -> None:
        fired.append(now())
        if len(fired) < 3:
            timers.schedule("key", 1.0, action)

    timers.schedule("key", 1.0, action)
    await asyncio.sleep(10)
    assert fired == [1.0, 2.0, 3.0]


# -- purgatory -----------------------------------------------------------------------------------------------


def purgatory() -> Purgatory:
    return Purgatory(asyncio.get_running_loop())


async def test_a_parked_request_is_answered_at_its_deadline():
    parked = purgatory()
    future = parked.park(["a"], 0.5, lambda: False, lambda: ("late", now()))
    assert await future == ("late", 0.5)
    assert len(parked) == 0


async def test_a_check_of_a_watched_key_answers_a_ready_request():
    parked, ready = purgatory(), []
    future = parked.park(["a", "b"], 9.0, lambda: bool(ready), lambda: now())
    parked.check_and_complete("a")
    await asyncio.sleep(1)
    assert not future.done()
    ready.append(1)
    parked.check_and_complete("c")
    await asyncio.sleep(0)
    assert not future.done()
    parked.check_and_complete("b")
    assert await future == 1.0
    assert len(parked) == 0
    await asyncio.sleep(20)  # its timer must be cancelled


async def test_requests_are_answered_in_the_order_in_which_they_were_parked():
    parked = purgatory()
    order: list[int] = []
    futures = [parked.park(["a"], 9.0, lambda: True, lambda n=n: order.append(n)) for n in range(5)]
    parked.check_and_complete("a")
    await asyncio.gather(*futures)
    assert order == [0, 1, 2, 3, 4]


def fail() -> bool:
    raise ValueError("a bug")


@pytest.mark.parametrize(("is_ready", "finish"), [(fail, now), (lambda: True, fail)])
async def test_an_exception_of_one_request_does_not_affect_others(is_ready, finish):
    parked = purgatory()
    first = parked.park(["a"], 9.0, lambda: True, now)
    failing = parked.park(["a", "b"], 9.0, is_ready, finish)
    last = parked.park(["a"], 9.0, lambda: True, now)
    parked.check_and_complete("a")
    assert (await first, await last) == (0.0, 0.0)
    with pytest.raises(ValueError, match="a bug"):
        await failing
    assert len(parked) == 0


async def test_an_exception_at_the_deadline_is_raised_to_the_caller():
    parked = purgatory()
    failing = parked.park(["a"], 0.5, lambda: False, fail)
    with pytest.raises(ValueError, match="a bug"):
        await failing
    assert (now(), len(parked)) == (0.5, 0)


async def test_a_cancelled_request_is_removed():
    parked, finished = purgatory(), []
    future = parked.park(["a"], 1.0, lambda: True, lambda: finished.append(1))
    future.cancel()
    await asyncio.sleep(0)
    assert len(parked) == 0
    parked.check_and_complete("a")
    await asyncio.sleep(5)
    assert finished == []


async def test_drop_all_cancels_all_requests():
    parked = purgatory()
    futures = [parked.park(["a", "b"], 1.0, lambda: True, lambda: 1) for _ in range(3)]
    parked.drop_all()
    await asyncio.sleep(5)
    assert all(future.cancelled() for future in futures)
    assert len(parked) == 0
