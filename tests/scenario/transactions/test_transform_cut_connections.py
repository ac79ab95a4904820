"""The connections of a member that transforms records in transactions end after any byte."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncgroup.errors import NoBrokersError
from asyncgroup.testing.virtual.connection import Signal
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.scenario.transactions.transforming import OUT, Copy, all_once, host_of, transforming
from tests.stories.byte_cuts import ByteCuts, Direction, End

pytestmark = [pytest.mark.virtual(max_virtual_time=864_000), pytest.mark.usefixtures("no_asyncio_errors")]

SOME = 1191
"""Every byte takes hours, every 23rd twenty minutes."""
SETTINGS = {"commit_interval": 0.02, "max_records": 2}


async def told(protocol: str, cuts: ByteCuts, direction: Direction, places: list[int], end: End) -> int:
    """Run the story; return how many bytes were sent."""
    async with made_for(protocol, nodes=1) as env:
        env.cluster.create_topic(OUT, 4)
        await env.produce(5, range(2))
        cuts.start(direction, *places, end=end)
        for _ in range(5):
            try:
                async with transforming(env, Copy(env), settings=SETTINGS, close_timeout=5.0) as (_, run):
                    finished = asyncio.create_task(env.all_committed())
                    await asyncio.wait([run, finished], return_when=asyncio.FIRST_COMPLETED)
                    if run.done():
                        finished.cancel()
                        run.result()
                    await finished
                break
            except NoBrokersError:  # the only broker did not answer the first request
                continue
        sent = cuts.bytes
        await all_once(env, range(2))
        return sent


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(SOME, marks=pytest.mark.full),
        pytest.param(23, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.parametrize("end", [Signal.EOF, Signal.RESET])
@pytest.mark.parametrize("direction", ["requests", "responses"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_cut_after_each_byte(
    monkeypatch: pytest.MonkeyPatch, protocol: str, direction: Direction, end: End, step: int
) -> None:
    """No record is lost or transformed twice, after each byte at which one or several connections are cut."""
    rng, cuts = random.Random(1), ByteCuts(monkeypatch, host_of("ann"))
    whole = await told(protocol, cuts, direction, [], end)
    for count, after in enumerate(range(0, whole + 1, step)):
        places = [after, *(rng.randint(1, 1000) for _ in range(count % 2 * 3))]
        try:
            await told(protocol, cuts, direction, places, end)
        except BaseException as error:
            error.add_note(f"cut after {places} of {whole} bytes of {direction}")
            raise
