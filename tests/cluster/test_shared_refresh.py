"""SingleFlight as a cluster uses it: concurrent callers share one run, and runs never overlap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncgroup.errors import ClosedError, NoBrokersError
from asyncgroup.lifecycle import SingleFlight

pytestmark = [pytest.mark.virtual, pytest.mark.usefixtures("no_asyncio_errors")]


class Work:
    """Work that takes a second; run n raises the n-th of `failures`, if it is not None."""

    def __init__(self, *failures: Exception | None) -> None:
        self.failures = list(failures)
        self.runs: list[float] = []
        self.running = 0

    async def __call__(self) -> None:
        self.runs.append(asyncio.get_running_loop().time())
        self.running += 1
        assert self.running == 1
        try:
            await asyncio.sleep(1)
        finally:
            self.running -= 1
        if self.failures and (error := self.failures.pop(0)):
            raise error


@asynccontextmanager
async def single_flight(work: Work) -> AsyncIterator[SingleFlight[None]]:
    refresh = SingleFlight("refreshes", work)
    try:
        yield refresh
    finally:
        await refresh.aclose()


async def test_concurrent_calls_share_a_run() -> None:
    work = Work()
    async with single_flight(work) as refresh:
        await asyncio.gather(*(refresh() for _ in range(100)))
        assert work.runs == [0.0]


async def test_calls_during_a_run_share_the_next_one() -> None:
    work = Work()
    async with single_flight(work) as refresh:
        first = asyncio.create_task(refresh())
        await asyncio.sleep(0.5)
        later = [asyncio.create_task(refresh()) for _ in range(5)]
        await first
        assert not any(task.done() for task in later)
        await asyncio.gather(*later)
        assert work.runs == [0.0, 1.0]
        await refresh()
        assert work.runs == [0.0, 1.0, 2.0]


async def test_each_run_has_its_own_result() -> None:
    work = Work(NoBrokersError("down"), None, ValueError("a bug"))
    async with single_flight(work) as refresh:
        with pytest.raises(NoBrokersError):
            await refresh()
        await refresh()
        with pytest.raises(ValueError, match="a bug"):
            await refresh()
        assert not refresh.is_closed, "a failed run does not prevent the next one"
        await refresh()


async def test_a_cancelled_caller_does_not_stop_the_run_for_others() -> None:
    work = Work()
    async with single_flight(work) as refresh:
        impatient, patient = asyncio.create_task(refresh()), asyncio.create_task(refresh())
        await asyncio.sleep(0.5)
        impatient.cancel()
        await patient
        assert impatient.cancelled()
        assert work.runs == [0.0]


async def test_an_error_without_a_waiting_caller_is_not_logged_by_asyncio() -> None:
    async with single_flight(Work(NoBrokersError("down"))) as refresh:
        task = asyncio.create_task(refresh())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.sleep(5)


async def test_closing_raises_closed_error_in_all_callers() -> None:
    async with single_flight(Work()) as refresh:
        under_way = asyncio.create_task(refresh())
        await asyncio.sleep(0.5)
        waiting = asyncio.create_task(refresh())
        await asyncio.sleep(0.1)
        await refresh.aclose()
        ends = await asyncio.gather(under_way, waiting, return_exceptions=True)
        assert [type(end) for end in ends] == [ClosedError, ClosedError]
        with pytest.raises(ClosedError):
            await refresh()


async def test_closing_before_the_run_has_started() -> None:
    async with single_flight(Work()) as refresh:
        caller = asyncio.create_task(refresh())
        await asyncio.sleep(0)
        await refresh.aclose()
        with pytest.raises(ClosedError):
            await caller
