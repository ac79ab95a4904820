"""The simulation of Pulsar (`python -m tests.simulate_pulsar`): no seed breaks an invariant, and bugs introduced on purpose are found.

Each run has its own event loop, so these tests are plain functions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncgroup.pulsar import MessageId
from tests.profiles import current_profile, long_family
from tests.simulate_pulsar.__main__ import PULSAR_SIMULATION
from tests.simulate_pulsar.mutations import MUTATIONS, find_mutation, mutated
from tests.simulate_pulsar.oracle import MessagePlace, PartitionOracle
from tests.simulate_pulsar.plan import SubscriptionSpec
from tests.simulate_pulsar.planner import ACTIONS, TRANSACTIONS, plan_of
from tests.simulate_pulsar.run import run_seed
from tests.simulation.story import Violation

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


@pytest.mark.parametrize(
    ("kind", "seconds", "is_violated"), [("shared", 0, True), ("failover", 0, False), ("failover", 2, True)]
)
def test_a_late_acknowledgement_counts_after_a_change_of_failover_only(
    kind: str, seconds: float, is_violated: bool
) -> None:
    """A message that was pushed again before the acknowledgement can have reached the broker is no violation."""
    spec = SubscriptionSpec(name="s", topic="t", kind=kind, queue=None)
    oracle = PartitionOracle(spec, "t")
    message: Any = SimpleNamespace(message_id=MessageId(1, 2), value=b"0", key=None)
    oracle.push((1, 2), 1, 10.0)
    oracle.receive("c1", message, is_exact=True)
    oracle.ack([MessagePlace(1, 2, 0)], 11.0, 1.5)
    oracle.push((1, 2), 1, 11.0 + seconds)
    with pytest.raises(Violation, match="cost no acknowledgement") if is_violated else nullcontext():
        oracle.receive("c2", message, is_exact=True)


def test_messages_on_their_way_are_received_before_a_request_for_all_reaches_its_broker() -> None:
    """Of a Key_Shared subscription those that were queued follow; others of the key still have their order."""
    oracle = PartitionOracle(SubscriptionSpec(name="s", topic="t", kind="key_shared", queue=None), "t")

    def receive(entry: int) -> None:
        message: Any = SimpleNamespace(message_id=MessageId(1, entry), value=b"0", key=b"k")
        oracle.receive("c", message, is_exact=False)

    receive(2)
    receive(4)  # the consumer had dropped 3
    oracle.redeliver_all([(1, 3), (1, 4)])
    receive(3)
    with pytest.raises(Violation, match="in order"):
        receive(1)


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_messages_before_a_seek_into_a_batch_are_not_required(kind: str) -> None:
    """A consumer that has moved acknowledges them with the rest; also one whose seek has failed after the move."""
    oracle = PartitionOracle(SubscriptionSpec(name="s", topic="t", kind=kind, queue=None), "t")
    first = MessagePlace(1, 2, 2)
    oracle.may_begin_at(first, (1, 2))
    assert oracle.required_from is None, "the broker was not moved"
    oracle.move(MessagePlace(1, 2, 0), 0.0)
    oracle.may_begin_at(first, (1, 2))
    assert oracle.required_from == first
    oracle.leave_out(first)
    oracle.move(MessagePlace(0, 0, 0), 0.0)
    assert not oracle.kept_over_seek, "the consumer that has moved gets them after its next seek"
    oracle.begin()
    assert oracle.kept_over_seek == (
        {MessagePlace(1, 2, 0), MessagePlace(1, 2, 1)} if kind == "shared" else set()
    )
