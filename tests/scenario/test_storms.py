"""Storms of joins, leaves and deaths in virtual time, with each group protocol.

At every change of the group a partition has at most one owner whose commits would be accepted; at the end every record was
handled, and everything is committed (`tests/simulate`).
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.profiles import current_profile, thinned
from tests.simulate.mutations import MUTATIONS
from tests.simulate.run import Outcome, run_plan
from tests.simulate.storm import Protocol, storm_plan

PROTOCOLS: Final[tuple[Protocol, ...]] = ("consumer", "cooperative", "eager")
SECONDS: Final = 600.0 if current_profile() == "full" else 30.0


def check(outcome: Outcome) -> None:
    if outcome.violation is not None:
        pytest.fail("\n".join([*outcome.story[-60:], str(outcome.violation)]), pytrace=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", thinned(PROTOCOLS))
def test_twenty_members(protocol: Protocol) -> None:
    plan = storm_plan(protocol, members=20, partitions=100, seconds=SECONDS, pause=3.0, seed=1)
    outcome = run_plan(plan)
    check(outcome)
    ends = {action.kind for action in plan.actions}
    assert ends == {"join", "leave", "crash", "lose_host", "restart", "produce"} or SECONDS < 600
    assert outcome.counts["generations"] > SECONDS / 10
    assert outcome.counts["handled"] >= outcome.counts["records"] == 10 * (SECONDS - 1)


@pytest.mark.full
@pytest.mark.parametrize("mutation", ["no commit at the end", "mark before handling"])
def test_mutations_are_detected_in_a_storm(mutation: str) -> None:
    with MUTATIONS[mutation]():
        outcomes = [
            run_plan(storm_plan("cooperative", members=6, partitions=10, seconds=60.0, pause=2.0, seed=seed))
            for seed in range(2)
        ]
    assert any(outcome.violation is not None for outcome in outcomes)
