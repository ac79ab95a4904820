"""The simulation of Pulsar (`python -m tests.simulate_pulsar`): no seed breaks an invariant, and bugs introduced on purpose are found.

Each run has its own event loop, so these tests are plain functions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profiles import current_profile, long_family
from tests.simulate_pulsar.__main__ import PULSAR_SIMULATION
from tests.simulate_pulsar.mutations import MUTATIONS, find_mutation, mutated
from tests.simulate_pulsar.planner import ACTIONS, TRANSACTIONS, plan_of
from tests.simulate_pulsar.run import run_seed

ROOT = Path(__file__).parents[2]
SEEDS = 40 if current_profile() == "full" else 4
SOAK_CHUNK = 500
check = PULSAR_SIMULATION.check


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("first", "count"), [(0, SEEDS), (TRANSACTIONS, SEEDS // 2)])
def test_seeds(first: int, count: int) -> None:
    summary = check(range(first, first + count))
    assert summary.counts["messages"] > 10 * count
    assert bool(summary.counts["transactions"]) == bool(first)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "first", [kind + first for kind in (0, TRANSACTIONS) for first in range(0, 10_000, SOAK_CHUNK)]
)
def test_many_seeds(first: int) -> None:
    """20,000 seeds; `python -m tests.simulate_pulsar --seeds 0:10000 --jobs 2` also prints the sums."""
    summary = check(range(first, first + SOAK_CHUNK), jobs=os.cpu_count() or 1)
    assert summary.unused == []


def test_plans_are_drawn_of_every_kind() -> None:
    plans = [plan_of(seed) for seed in range(200)]
    assert {action.kind for plan in plans for action in plan.actions} == set(ACTIONS)
    assert sum(plan.is_orderly for plan in plans) > 10
    subscriptions = [spec for plan in plans for spec in plan.setting.subscriptions.values()]
    assert {(spec.kind, spec.queue is None) for spec in subscriptions} == {
        (kind, is_plain)
        for kind in ("exclusive", "shared", "failover", "key_shared")
        for is_plain in (False, True)
    }


@pytest.mark.full
def test_runs_are_reproducible() -> None:
    """In other processes, with other hash seeds and memory addresses, and after other runs."""

    def stories(hash_seed: str) -> str:
        code = "from tests.simulate_pulsar.run import run_seed\nfor n in (1_000_003, 3, 4, 5, 6): print(run_seed(n).digest)"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert stories("1") == stories("2")
    assert run_seed(6).digest == stories("3").split()[-1]


@pytest.mark.parametrize("name", long_family(MUTATIONS))
def test_mutants_are_detected(name: str) -> None:
    seed = MUTATIONS[name].seed
    assert find_mutation(name, [seed]) is not None
    check([seed])


def test_every_mutation_still_applies_to_the_code() -> None:
    for mutant in MUTATIONS.values():
        with mutated(mutant):
            pass
