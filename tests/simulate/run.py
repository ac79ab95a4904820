"""Run one simulation, from a seed or a plan to its outcome."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncgroup.error_codes import error_name
from asyncgroup.testing import VirtualTimeLoop
from asyncgroup.testing.virtual.errors import VirtualTimeError, describe_tasks
from tests.simulate.actions import perform
from tests.simulate.conditions import DisturbedConditions, SimulatedNetwork
from tests.simulate.ending import close_all, end_faults
from tests.simulate.groups import strict_epochs
from tests.simulate.plan import Plan
from tests.simulate.queues_observer import observing_queues
from tests.simulate.scope_hashes import deterministic_scope_hashes
from tests.simulate.seeds import plan_of
from tests.simulate.story import Violation
from tests.simulate.world import World, random_of

__all__ = ["Outcome", "run_plan", "run_seed"]

TIME_OF_DAY = 1_700_000_000_000
"""The time of day in ms since 1970 at which every simulation begins, so that equal seeds write equal records."""

LAST_TURNS = 20
"""Steps of the loop for tasks and transports that were canceled or closed without waiting."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a run. `digest` is a hash over the story and all requests, equal for equal runs."""

    seed: int
    violation: Violation | None
    counts: Counter[str]
    virtual_seconds: float
    real_seconds: float
    digest: str
    story: list[str] = field(repr=False)
    requests: list[str] = field(repr=False)

    @property
    def as_dict(self) -> dict[str, Any]:
        """The outcome for JSON."""
        broken = (
            None
            if self.violation is None
            else {"invariant": self.violation.name, "text": self.violation.text}
        )
        return {
            "seed": self.seed,
            "violation": broken,
            "counts": dict(sorted(self.counts.items())),
            "virtual_seconds": round(self.virtual_seconds, 4),
            "digest": self.digest,
        }


def run_seed(seed: int) -> Outcome:
    """Run the plan of a seed."""
    return run_plan(plan_of(seed))


def run_plan(plan: Plan, on_action: Callable[[World], None] | None = None) -> Outcome:
    """Carry out a plan in a new event loop. Violations are part of the outcome and not raised.

    `on_action` is called after each action, to show the progress of long runs.
    """
    began = time.perf_counter()
    conditions = DisturbedConditions(random_of(plan, "weather"), plan.setting.latency_profile)
    network = SimulatedNetwork(conditions, plan.setting.chunk_size)
    loop = VirtualTimeLoop(
        network=network, max_virtual_time=plan.faults_end_at + 3600.0, time_of_day=TIME_OF_DAY
    )
    found: list[World] = []
    violation: Violation | None = None
    with (
        _directory(plan) as directory,
        deterministic_scope_hashes(),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        try:
            runner.run(_run(plan, network, directory, found, on_action))
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
def _directory(plan: Plan) -> Iterator[Path | None]:
    """A temporary data directory, if the brokers keep their records on disk."""
    if not plan.setting.is_on_disk:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="simulate-") as name:
        yield Path(name)


async def _run(
    plan: Plan,
    network: SimulatedNetwork,
    directory: Path | None,
    found: list[World],
    on_action: Callable[[World], None] | None,
) -> None:
    world = World(plan, network, directory)
    found.append(world)
    epochs = strict_epochs() if plan.setting.has_strict_epochs else nullcontext()
    queues = nullcontext() if plan.queues is None else observing_queues(world)
    with world.story.capturing_logs(), world.observer.observing(), epochs, queues:
        try:
            await world.start()
            await world.carry_out(perform, on_action)
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


async def _give_up(world: World) -> None:
    """End everything after a failure, without further checks."""
    world.story.is_over = True
    for member in world.members.values():
        member.handler.disturbances.end()
        member.die()
    limit = world.loop.time() + 60.0
    while (others := asyncio.all_tasks() - {asyncio.current_task()}) and world.loop.time() < limit:
        for task in sorted(others, key=lambda task: task.get_name()):
            if has_begun(task):  # otherwise a coroutine that anyio has wrapped would never be awaited
                task.cancel()
        await asyncio.wait(others, timeout=1.0)


def has_begun(task: asyncio.Task[Any]) -> bool:
    """Return whether a task has run its first step."""
    coroutine = task.get_coro()
    return not inspect.iscoroutine(coroutine) or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED


def _check_nothing_left(world: World) -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        raise Violation("nothing is left", f"tasks:\n{describe_tasks(left)}")
    open_still = [*map(repr, world.network.connections()), *map(str, world.network.listeners())]
    if open_still:
        raise Violation("nothing is left", f"connections and listeners: {open_still}")
    if world.violation is not None:
        raise world.violation


def _requests(world: World) -> Iterator[str]:
    """Yield every request with its response, in order of arrival."""
    for one in world.observer.recorder.exchanges:
        answered = "never" if one.answered_at is None else f"{one.answered_at:.6f}"
        code = getattr(one.response, "error_code", 0) or 0
        yield (
            f"{one.time:.6f} {one.client_id} {one.api} v{one.version} {one.request_bytes} @{one.node_id} "
            f"-> {answered} {one.response_bytes} {error_name(code) if code else ''}"
        )
