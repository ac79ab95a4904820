"""Run one simulation, from a seed or a plan to its outcome."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from asyncgroup.error_codes import error_name
from tests.simulate.actions import perform
from tests.simulate.ending import close_all, end_faults
from tests.simulate.groups import strict_epochs
from tests.simulate.plan import Plan
from tests.simulate.queues_observer import observing_queues
from tests.simulate.seeds import plan_of
from tests.simulate.world import World, random_of
from tests.simulation.conditions import DisturbedConditions, SimulatedNetwork
from tests.simulation.run import Outcome, System, run_in_new_loop

__all__ = ["run_plan", "run_seed"]


def run_seed(seed: int) -> Outcome:
    """Run the plan of a seed."""
    return run_plan(plan_of(seed))


def run_plan(plan: Plan, on_action: Callable[[World], None] | None = None) -> Outcome:
    """Carry out a plan in a new event loop. Violations are part of the outcome and not raised.

    `on_action` is called after each action, to show the progress of long runs.
    """

    async def live(world: World) -> None:
        await world.start()
        await world.carry_out(perform, on_action)
        await end_faults(world)
        await close_all(world)

    conditions = DisturbedConditions(random_of(plan, "weather"), plan.setting.latency_profile)
    network = SimulatedNetwork(conditions, plan.setting.chunk_size)
    system = System(live, _kill, _observing, _requests)
    with _directory(plan) as directory:
        return run_in_new_loop(plan, network, lambda: World(plan, network, directory), system)


@contextmanager
def _directory(plan: Plan) -> Iterator[Path | None]:
    """A temporary data directory, if the brokers keep their records on disk."""
    if not plan.setting.is_on_disk:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="simulate-") as name:
        yield Path(name)


@contextmanager
def _observing(world: World) -> Iterator[None]:
    epochs = strict_epochs() if world.plan.setting.has_strict_epochs else nullcontext()
    queues = nullcontext() if world.plan.queues is None else observing_queues(world)
    with world.observer.observing(), epochs, queues:
        yield


def _kill(world: World) -> None:
    for member in world.members.values():
        member.handler.disturbances.end()
        member.die()


def _requests(world: World) -> Iterator[str]:
    """Yield every request with its response, in order of arrival."""
    for one in world.observer.recorder.exchanges:
        answered = "never" if one.answered_at is None else f"{one.answered_at:.6f}"
        code = getattr(one.response, "error_code", 0) or 0
        yield (
            f"{one.time:.6f} {one.client_id} {one.api} v{one.version} {one.request_bytes} @{one.node_id} "
            f"-> {answered} {one.response_bytes} {error_name(code) if code else ''}"
        )
