"""Run one simulation, from a seed or a plan to its outcome."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from unittest.mock import patch

from asyncgroup.pulsar import core
from asyncgroup.testing import VirtualTimeLoop
from asyncgroup.testing.virtual.errors import VirtualTimeError, describe_tasks
from tests.simulate.conditions import DisturbedConditions, SimulatedNetwork
from tests.simulate.run import LAST_TURNS, TIME_OF_DAY, Outcome, has_begun
from tests.simulate.scope_hashes import deterministic_scope_hashes
from tests.simulate.story import Violation
from tests.simulate_pulsar.actions import perform
from tests.simulate_pulsar.ending import close_all, end_faults
from tests.simulate_pulsar.plan import SimPlan
from tests.simulate_pulsar.planner import plan_of
from tests.simulate_pulsar.world import PulsarWorld, random_of

__all__ = ["run_plan", "run_seed"]


def run_seed(seed: int) -> Outcome:
    """Run the plan of a seed."""
    return run_plan(plan_of(seed))


def run_plan(plan: SimPlan) -> Outcome:
    """Carry out a plan in a new event loop. Violations are part of the outcome and not raised."""
    began = time.perf_counter()
    conditions = DisturbedConditions(random_of(plan, "weather"), plan.setting.latency_profile)
    network = SimulatedNetwork(conditions, plan.setting.segment_size)
    loop = VirtualTimeLoop(
        network=network, max_virtual_time=plan.faults_end_at + 3600.0, time_of_day=TIME_OF_DAY
    )
    found: list[PulsarWorld] = []
    violation: Violation | None = None
    with (
        _seeded_clients(plan),
        deterministic_scope_hashes(),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        try:
            runner.run(_run(plan, network, found))
        except Violation as broken:
            violation = broken
        except VirtualTimeError as error:
            violation = Violation("the run makes progress", f"{type(error).__name__}: {error}")
    world = found[0]
    violation = world.violation or violation
    requests = list(_requests(world))
    digest = hashlib.sha256("\n".join([*world.story.lines, *requests]).encode()).hexdigest()[:16]
    world.story.count("requests", len(requests))
    return Outcome(
        plan.seed,
        violation,
        world.story.counts,
        loop.time(),
        time.perf_counter() - began,
        digest,
        world.story.lines,
        requests,
    )


@contextmanager
def _seeded_clients(plan: SimPlan) -> Iterator[None]:
    """The random choices of clients, which each client makes with a generator of its own, follow from the seed."""
    numbers = count()

    def new() -> random.Random:
        return random.Random(f"pulsar {plan.seed} client {next(numbers)}")

    with patch.object(core, "random", SimpleNamespace(Random=new)):
        yield


async def _run(plan: SimPlan, network: SimulatedNetwork, found: list[PulsarWorld]) -> None:
    world = PulsarWorld(plan, network)
    found.append(world)
    with world.story.capturing_logs(), world.observer.observing():
        try:
            await world.start()
            await world.carry_out(perform)
            await end_faults(world)
            await close_all(world)
        except Violation as violation:
            world.fail(violation)
            await _give_up(world)
            return
        finally:
            await world.end()
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        _check_nothing_left(world)


async def _give_up(world: PulsarWorld) -> None:
    """End everything after a failure, without further checks."""
    world.story.is_over = True
    for program in world.programs:
        program.die()
    limit = world.loop.time() + 60.0
    while (others := asyncio.all_tasks() - {asyncio.current_task()}) and world.loop.time() < limit:
        for task in sorted(others, key=lambda task: task.get_name()):
            if has_begun(task):
                task.cancel()
        await asyncio.wait(others, timeout=1.0)


def _check_nothing_left(world: PulsarWorld) -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        raise Violation("nothing is left", f"tasks:\n{describe_tasks(left)}")
    open_still = [*map(repr, world.network.connections()), *map(str, world.network.listeners())]
    if open_still:
        raise Violation("nothing is left", f"connections and listeners: {open_still}")
    timers = [each for each in world.loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
    if timers:
        raise Violation("nothing is left", f"timers: {timers}")
    if world.violation is not None:
        raise world.violation


def _requests(world: PulsarWorld) -> Iterator[str]:
    """Yield every request with its answer, in order of arrival."""
    for one in world.pulsar.history.of():
        answered = "never" if one.answered_at is None else f"{one.answered_at:.6f}"
        error = "" if one.error is None else one.error.published_name
        yield f"{one.time:.6f} {one.api} {one.topic} {one.subscription or ''} @{one.node_id} -> {answered} {error}"
