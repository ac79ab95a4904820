"""Storms of joins, leaves and deaths in virtual time, with each group protocol.

At every change of the group a partition has at most one owner whose commits would be accepted; at the end every record was
handled, and everything is committed (`tests/simulate`).

The long storm takes 4 to 10 minutes for each protocol on one core:
`pytest --soak -m soak -s tests/scenario/test_storms.py -k eager` shows its progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.simulate.mutations import MUTATIONS
from tests.simulate.run import Outcome, run_plan
from tests.simulate.storm import LONG, SHORT, Protocol, storm_plan
from tests.simulate.world import World

PROTOCOLS: Final[tuple[Protocol, ...]] = ("consumer", "cooperative", "eager")
SECONDS: Final = 600.0
STORM: Final[dict[str, Any]] = {"seed": 1, "pause": 3.0, "intervals": SHORT, "records": 10, "nodes": 3}
GENERATIONS: Final = 60
"""How many rebalances must be completed at least."""
ENDS: Final = frozenset({"join", "leave", "crash", "lose_host", "restart", "produce"})

HOUR: Final = 3600.0
CPU_LIMIT: Final = 900.0
"""Seconds of CPU time that an hour of the long storm may take: that of the wall depends on what else is running."""


def check(outcome: Outcome) -> None:
    if outcome.violation is not None:
        pytest.fail("\n".join([*outcome.story[-60:], str(outcome.violation)]), pytrace=False)


@pytest.mark.timeout(600)
@pytest.mark.full
@pytest.mark.parametrize(
    "protocol", [pytest.param(name, marks=pytest.mark.xdist_group(f"storm {name}")) for name in PROTOCOLS]
)
def test_twenty_members_for_minutes(protocol: Protocol) -> None:
    plan = storm_plan(protocol, members=20, partitions=100, seconds=SECONDS, **STORM)
    outcome = run_plan(plan)
    check(outcome)
    assert {action.kind for action in plan.actions} == ENDS
    assert outcome.counts["rebalances"] > SECONDS / 40
    assert outcome.counts["generations"] > GENERATIONS
    assert outcome.counts["handled"] >= outcome.counts["records"] == STORM["records"] * (SECONDS - 1)


def progress(protocol: Protocol) -> Callable[[World], None]:
    """Return a function that prints a line for each virtual minute, for `run_plan`."""
    began, next_line = time.perf_counter(), 60.0

    def show(world: World) -> None:
        nonlocal next_line
        if (now := world.loop.time()) >= next_line:
            next_line += 60.0
            real, counts = time.perf_counter() - began, world.story.counts
            text = f"{counts['generations']} generations, {counts['handled']} records"
            print(f"{protocol}: {now:.0f} of {HOUR:.0f} s after {real:.0f} s, {text}", flush=True)

    return show


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_hundred_members_for_an_hour(protocol: Protocol) -> None:
    plan = storm_plan(
        protocol,
        members=200,
        partitions=1000,
        seconds=HOUR,
        pause=20.0,
        seed=1,
        intervals=LONG,
        records=4,
    )
    assert {action.kind for action in plan.actions} == ENDS
    began = time.process_time()
    outcome = run_plan(plan, progress(protocol))
    used = time.process_time() - began
    print(f"{protocol}: {used:.0f} s of CPU time, {dict(outcome.counts)}")
    check(outcome)
    assert outcome.counts["rebalances"] > HOUR / 30
    assert outcome.counts["generations"] > HOUR / 120, "rebalances that were completed"
    assert outcome.counts["handled"] >= outcome.counts["records"] == 4 * (HOUR - 1)
    assert used < CPU_LIMIT


@pytest.mark.full
@pytest.mark.parametrize(
    ("protocol", "mutation"),
    [
        ("eager", "mark before handling"),
        ("cooperative", "no commit at the end"),
        ("cooperative", "a cooperative leader moves partitions at once"),
        ("consumer", "claims outlast their assignment"),
        ("consumer", "partitions move before they are revoked"),
        ("consumer", "owned partitions are reported before the commit"),
    ],
)
def test_mutations_are_detected_in_a_storm(protocol: Protocol, mutation: str) -> None:
    with MUTATIONS[mutation]():
        outcomes = [
            run_plan(storm_plan(protocol, members=6, partitions=10, seconds=60.0, pause=2.0, seed=seed))
            for seed in range(2)
        ]
    assert any(outcome.violation is not None for outcome in outcomes)
