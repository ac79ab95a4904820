"""Run one simulation, from a seed or a plan to its outcome."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Final
from unittest.mock import patch

from asyncgroup.pulsar import core
from tests.simulate_pulsar.actions import perform
from tests.simulate_pulsar.ending import close_all, end_faults
from tests.simulate_pulsar.plan import SimPlan
from tests.simulate_pulsar.planner import plan_of
from tests.simulate_pulsar.world import PulsarWorld, random_of
from tests.simulation.conditions import DisturbedConditions, SimulatedNetwork
from tests.simulation.run import Outcome, System, run_in_new_loop

__all__ = ["run_plan", "run_seed"]


def run_seed(seed: int) -> Outcome:
    """Run the plan of a seed."""
    return run_plan(plan_of(seed))


def run_plan(plan: SimPlan) -> Outcome:
    """Carry out a plan in a new event loop. Violations are part of the outcome and not raised."""
    conditions = DisturbedConditions(random_of(plan, "weather"), plan.setting.latency_profile)
    network = SimulatedNetwork(conditions, plan.setting.segment_size)
    with _seeded_clients(plan):
        return run_in_new_loop(plan, network, lambda: PulsarWorld(plan, network), _PULSAR)


@contextmanager
def _seeded_clients(plan: SimPlan) -> Iterator[None]:
    """The random choices of clients, which each client makes with a generator of its own, follow from the seed."""
    numbers = count()

    def new() -> random.Random:
        return random.Random(f"pulsar {plan.seed} client {next(numbers)}")

    with patch.object(core, "random", SimpleNamespace(Random=new)):
        yield


async def _live(world: PulsarWorld) -> None:
    await world.start()
    await world.carry_out(perform)
    await end_faults(world)
    await close_all(world)


def _kill(world: PulsarWorld) -> None:
    for program in world.programs:
        program.die()


def _requests(world: PulsarWorld) -> Iterator[str]:
    """Yield every request with its answer, in order of arrival."""
    for one in world.pulsar.history.of():
        answered = "never" if one.answered_at is None else f"{one.answered_at:.6f}"
        error = "" if one.error is None else one.error.published_name
        yield f"{one.time:.6f} {one.api} {one.topic} {one.subscription or ''} @{one.node_id} -> {answered} {error}"


_PULSAR: Final = System(_live, _kill, lambda world: world.observer.observing(), _requests)
