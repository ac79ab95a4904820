"""Parts of the demonstration: the memory sink, the comparison, progress and gate."""

from __future__ import annotations

import asyncio
import json
import random
from decimal import Decimal
from typing import Any, cast

import pytest

from asyncgroup.demo.flights import CarrierFigures, Figures
from asyncgroup.demo.group_run import GroupRun
from asyncgroup.demo.members import DemoMember, GatedHandler
from asyncgroup.demo.progress import DemoFailed, Gate, GroupProgress, RateMeter
from asyncgroup.demo.report import Phases, differences, verdict
from asyncgroup.demo.sinks import FoundFlights, MemorySink
from asyncgroup.demo.views import line as group_line
from asyncgroup.group import Handler
from asyncgroup.model import Batch, Record, TopicPartition


def batch(partition: int, start: int, end: int) -> Batch:
    rows = range(start, end)
    values = [
        json.dumps({"row": 1000 * partition + n + 1, "carrier": "UA", "dep_delay": n}).encode() for n in rows
    ]
    return Batch(
        "flights",
        partition,
        [Record("flights", partition, n, value=v) for n, v in zip(rows, values, strict=True)],
    )


# -- the memory sink -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "deliveries",
    [
        [(0, 10), (10, 20), (20, 30)],
        [(0, 10), (0, 10), (10, 30)],
        [(0, 10), (10, 20), (10, 30)],
        [(0, 10), (10, 20), (20, 30), (10, 15), (15, 30)],
        [(0, 30), (0, 4), (4, 30)],
    ],
)
def test_a_repeated_delivery_is_counted_once(deliveries: list[tuple[int, int]]) -> None:
    sink = MemorySink()
    for start, end in deliveries:
        sink.add(batch(0, start, end))
    found = sink.read(30)
    assert found.distinct == found.figures.flights == 30
    assert (found.missing, found.twice) == ([], [])
    assert found.figures.carriers["UA"] == CarrierFigures(30, 30, sum(range(30)))


def test_partitions_are_independent() -> None:
    sink = MemorySink()
    sink.add(batch(0, 5, 10))
    sink.add(batch(1, 0, 3))
    assert sink.read(8).figures.flights == 8


def test_missing_rows_are_found() -> None:
    sink = MemorySink()
    sink.add(batch(0, 0, 3))
    sink.add(batch(0, 5, 9))
    found = sink.read(10)
    assert (found.distinct, found.missing) == (7, [4, 5, 10])


# -- the comparison ------------------------------------------------------------------------------------------------------


def expected() -> Figures:
    return Figures({"UA": CarrierFigures(6, 5, 50), "HA": CarrierFigures(4, 4, 8)})


def test_equal_figures() -> None:
    found = FoundFlights(expected(), 10, [], [])
    wrong = differences(expected(), found)
    assert wrong == []
    assert verdict(expected(), found, wrong) == "10 of 10 flights, each exactly once"


def test_every_difference_is_reported() -> None:
    figures = Figures({"UA": CarrierFigures(7, 5, 49), "XX": CarrierFigures(1, 0, 0)})
    found = FoundFlights(figures, 7, [2, 3, 9], [4])
    wrong = differences(expected(), found)
    assert wrong == [
        "3 flights are missing: rows 2, 3, 9 of the CSV",
        "1 flight is there more than once: rows 4 of the CSV",
        "HA: flights 0, in the CSV 4",
        "HA: delays 0, in the CSV 4",
        "HA: delay sum 0, in the CSV 8",
        "UA: flights 7, in the CSV 6",
        "UA: delay sum 49, in the CSV 50",
        "XX: flights 1, in the CSV 0",
    ]
    assert verdict(expected(), found, wrong) == "7 of 10 flights; something went wrong, see above"


# -- progress and gate ---------------------------------------------------------------------------------------------------


class FakeClaim:
    """The part of a claim that the gate uses."""

    tp = TopicPartition("flights", 0)
    position = 10

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def end(self) -> None:
        self._ended.set()


async def test_commits_count_once_and_the_rate_is_of_the_last_seconds() -> None:
    progress = GroupProgress(100)
    tp = TopicPartition("flights", 0)
    assert [progress.commit(tp, 10), progress.commit(tp, 10), progress.commit(tp, 5)] == [10, 0, 0]
    assert progress.committed_records == 10
    meter = RateMeter(asyncio.get_running_loop().time)
    await asyncio.sleep(2)
    meter.add(100)
    assert meter.rate == pytest.approx(50)
    await asyncio.sleep(2.5)
    assert meter.rate == 0


async def test_the_gate_blocks_until_it_is_opened_or_the_claim_ends() -> None:
    progress = GroupProgress(100)
    gate, claim = Gate(progress), FakeClaim()
    gate.open_to(0.5)
    tp = TopicPartition("flights", 0)
    progress.set_delivered(tp, 49)
    await gate.wait(claim)  # type: ignore[arg-type]
    progress.set_delivered(tp, 50)
    waiting = [asyncio.create_task(gate.wait(each)) for each in (claim, FakeClaim())]  # type: ignore[arg-type]
    await asyncio.sleep(1)
    assert not any(task.done() for task in waiting)
    claim.end()
    await waiting[0]
    assert not waiting[1].done()
    gate.open_to(1.0)
    await waiting[1]


@pytest.mark.parametrize("turns", range(12))
async def test_the_gate_sees_a_change_in_any_iteration_of_the_loop(turns: int) -> None:
    """The gate may open after the waiter has created its tasks and before their first step."""
    progress = GroupProgress(100)
    gate = Gate(progress)
    gate.open_to(0.5)
    progress.set_delivered(TopicPartition("flights", 0), 50)
    waiting = asyncio.create_task(gate.wait(FakeClaim()))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    progress.notify()  # a change that does not open the gate: the waiter checks again
    for _ in range(turns):
        await asyncio.sleep(0)
    gate.open_to(1.0)
    async with asyncio.timeout(1):
        await waiting


async def test_records_of_a_former_owner_do_not_keep_the_gate_closed() -> None:
    """Records that were delivered but not committed are delivered again, to the partition's next owner."""
    progress = GroupProgress(100)
    gate = Gate(progress)
    gate.open_to(0.5)
    claim = FakeClaim()
    progress.set_delivered(claim.tp, 50)

    class Passes(Handler):
        async def consume_claim(self, session: Any, claim: Any) -> None:
            await gate.wait(claim)

    async with asyncio.timeout(1):
        await GatedHandler(Passes(), gate, progress).consume_claim(None, claim)  # type: ignore[arg-type]


class LeavingMember:
    """Stands in for a DemoMember, which leaves within some iterations of the loop."""

    def __init__(self) -> None:
        self.has_left = False
        self._leaving = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._leaving.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        self.has_left = True

    def leave(self) -> None:
        self._leaving.set()

    async def gone(self) -> None:
        await self._task


@pytest.mark.parametrize("turns", range(10))
async def test_all_members_leave_before_a_cancelled_demo_ends(turns: int) -> None:
    """Ctrl-C may come while the members leave already."""
    run = GroupRun(cast("Any", None), 1, Handler)
    members = [LeavingMember() for _ in range(3)]
    run.members += cast("list[DemoMember]", members)
    closing = asyncio.create_task(run.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    if turns:  # else `aclose` has not begun
        assert all(member.has_left for member in members)
    await run.aclose()


async def test_no_progress_is_an_error() -> None:
    progress = GroupProgress(100)
    progress.commit(TopicPartition("flights", 0), 10)
    with pytest.raises(DemoFailed, match="waiting for the end; 10 of 100 records were committed"):
        await progress.wait_until(lambda: False, "the end")


def test_rounded_phases_add_up() -> None:
    rng = random.Random(1)
    for _ in range(200):
        now = 0.0
        phases = Phases(lambda: now)  # noqa: B023  called within the iteration
        for name in rng.choices(["produce", "group", "read", "queries"], k=8):
            now += rng.random()
            with phases.phase(name):
                now += 10 * rng.random()
        now += rng.random()
        line = phases.line()
        total, parts = line.split(" s: ")
        assert total == f"{now:.1f}"
        assert sum(Decimal(part.split()[1]) for part in parts.split(", ")) == Decimal(total)
        assert len(line) <= 80


def test_the_groups_line_fits_a_terminal() -> None:
    progress = GroupProgress.__new__(GroupProgress)
    progress.total, progress.committed_offsets = 336_776, {TopicPartition("t", 0): 336_776}
    progress.meter = RateMeter(lambda: 0.0)
    progress.meter.add(10_865)
    assert progress.meter.rate == 108_650.0
    assert len("  " + group_line([], progress).replace("rebalancing", "generation 12")) <= 80
