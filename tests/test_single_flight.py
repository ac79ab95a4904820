"""SingleFlight: callers share a run, and canceled callers do not stop it."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import ClosedError
from asyncgroup.single_flight import SingleFlight

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


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
