"""SingleFlight: callers share a run, and canceled callers do not stop it."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import ClosedError, NoBrokersError
from asyncgroup.lifecycle import SingleFlight, start_task

pytestmark = [pytest.mark.virtual, pytest.mark.usefixtures("no_asyncio_errors")]


class Work:
    """Takes a second, and returns the number of the run."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    async def __call__(self) -> int:
        self.begun += 1
        await asyncio.sleep(1)
        self.ended += 1
        return self.ended


async def test_concurrent_callers_share_a_run_and_later_ones_the_next() -> None:
    work = Work()
    flights = SingleFlight("flights", work)
    first = [asyncio.ensure_future(flights()) for _ in range(3)]
    await asyncio.sleep(0.5)
    second = [asyncio.ensure_future(flights()) for _ in range(3)]
    assert await asyncio.gather(*first, *second) == [1, 1, 1, 2, 2, 2]
    assert await flights() == 3


async def test_a_run_without_callers_continues() -> None:
    work = Work()
    flights = SingleFlight("flights", work)
    call = asyncio.ensure_future(flights())
    await asyncio.sleep(0.5)
    assert repr(flights) == "<SingleFlight flights: running>"
    call.cancel()
    await asyncio.sleep(1)
    assert work.ended == 1
    assert repr(flights) == "<SingleFlight flights: idle>"


async def test_a_cancelled_caller_does_not_stop_the_run_for_others() -> None:
    work = Work()
    flights = SingleFlight("flights", work)
    impatient, patient = asyncio.ensure_future(flights()), asyncio.ensure_future(flights())
    await asyncio.sleep(0.5)
    impatient.cancel()
    assert await patient == 1
    assert impatient.cancelled()
    assert work.begun == 1


async def test_closing_ends_the_run_and_all_waits() -> None:
    work = Work()
    flights = SingleFlight("flights", work)
    calls = [asyncio.ensure_future(flights())]
    await asyncio.sleep(0.5)
    calls.append(asyncio.ensure_future(flights()))
    await asyncio.sleep(0.1)
    await flights.aclose()
    await flights.aclose()
    for call in calls:
        with pytest.raises(ClosedError, match="flights"):
            await call
    with pytest.raises(ClosedError):
        await flights()
    assert (work.begun, work.ended) == (1, 0)
    assert repr(flights) == "<SingleFlight flights: closed>"


async def test_closing_before_the_first_run_has_begun() -> None:
    """A task that is canceled before its first step cannot set the callers' result itself."""
    flights = SingleFlight("flights", Work())
    call = asyncio.ensure_future(flights())
    await asyncio.sleep(0)
    await flights.aclose()
    with pytest.raises(ClosedError):
        async with asyncio.timeout(5):
            await call


class Failing:
    """Takes a second; run n raises the n-th of `failures`, if it is not None. Runs never overlap."""

    def __init__(self, *failures: Exception | None) -> None:
        self.failures = list(failures)
        self.begun_at: list[float] = []
        self.running = 0

    async def __call__(self) -> None:
        self.begun_at.append(asyncio.get_running_loop().time())
        self.running += 1
        assert self.running == 1
        await asyncio.sleep(1)
        self.running -= 1
        if self.failures and (error := self.failures.pop(0)):
            raise error


@pytest.mark.parametrize("waits", [False, True])
async def test_each_run_has_its_own_result(waits: bool) -> None:
    work = Failing(NoBrokersError("down"), None, ValueError("a bug"))
    flights = SingleFlight("flights", work, waits_a_turn=waits)
    with pytest.raises(NoBrokersError):
        await flights()
    assert not flights.is_closed, "a failed run does not prevent the next one"
    await flights()
    with pytest.raises(ValueError, match="a bug"):
        await flights()
    await asyncio.gather(*(flights() for _ in range(100)))
    assert work.begun_at == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("waits", [False, True])
async def test_an_error_without_a_waiting_caller_is_not_logged_by_asyncio(waits: bool) -> None:
    flights = SingleFlight("flights", Failing(NoBrokersError("down")), waits_a_turn=waits)
    call = asyncio.ensure_future(flights())
    await asyncio.sleep(0.5)
    call.cancel()
    await asyncio.sleep(5)
    assert repr(flights) == "<SingleFlight flights: idle>"


@pytest.mark.parametrize(("waits", "runs"), [(False, [0.0, 1.0]), (True, [0.0])])
async def test_a_call_one_turn_later_shares_the_run_if_that_waits_a_turn(
    waits: bool, runs: list[float]
) -> None:
    """An event that wakes several tasks wakes some of them a turn later than others."""
    work = Failing()
    flights = SingleFlight("flights", work, waits_a_turn=waits)
    first = start_task(flights())
    await asyncio.sleep(0)  # `first` has called
    await asyncio.sleep(0)  # the task of the runs has had its first turn
    await flights()
    await first
    assert work.begun_at == runs


async def test_closing_while_a_run_waits_its_turn() -> None:
    flights = SingleFlight("flights", Failing(), waits_a_turn=True)
    call = asyncio.ensure_future(flights())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await flights.aclose()
    with pytest.raises(ClosedError, match="flights"):
        await call


async def test_waiting_for_the_run_in_progress_only() -> None:
    """A caller that waits until what has begun is done does not wait for later runs, of which there may be no end."""
    work = Failing()
    flights = SingleFlight("flights", work)
    await flights.wait_run()  # none
    calls = [asyncio.ensure_future(flights())]
    await asyncio.sleep(0.5)
    calls.append(asyncio.ensure_future(flights()))
    began = asyncio.get_running_loop().time()
    await flights.wait_run()
    assert asyncio.get_running_loop().time() - began == 0.5
    assert [call.done() for call in calls] == [True, False]
    await asyncio.gather(*calls)
    await flights.wait_run()
