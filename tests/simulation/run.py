"""Run a plan of any system in a new event loop, to its outcome."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from asyncgroup.testing import VirtualTimeLoop
from asyncgroup.testing.virtual.connection import Pipe
from asyncgroup.testing.virtual.errors import VirtualTimeError, describe_tasks
from tests.simulation.conditions import SimulatedNetwork
from tests.simulation.scope_hashes import deterministic_scope_hashes
from tests.simulation.story import Violation
from tests.simulation.world import AnyPlan, PlannedWorld

__all__ = ["Outcome", "System", "first_violation", "run_in_new_loop"]

TIME_OF_DAY: Final = 1_700_000_000_000
"""The time of day in ms since 1970 at which every simulation begins, so that equal seeds write equal records."""

LAST_TURNS: Final = 20
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


WorldT = TypeVar("WorldT", bound=PlannedWorld[Any])


@dataclass(frozen=True, slots=True)
class System(Generic[WorldT]):
    """What a run needs of the system that it simulates."""

    live: Callable[[WorldT], Awaitable[None]]
    """Starts the world, carries out its plan, and closes all programs."""
    kill: Callable[[WorldT], None]
    """Ends all programs at once, without a check."""
    observing: Callable[[WorldT], AbstractContextManager[object]]
    """What is patched during the run."""
    requests: Callable[[WorldT], Iterable[str]]
    """Returns every request with its answer, in order of arrival."""


def run_in_new_loop(
    plan: AnyPlan,
    network: SimulatedNetwork,
    create: Callable[[], WorldT],
    system: System[WorldT],
) -> Outcome:
    """Carry out a plan in a world that `create` makes. Violations are part of the outcome and not raised."""
    began = time.perf_counter()
    loop = VirtualTimeLoop(
        network=network, max_virtual_time=plan.faults_end_at + 3600.0, time_of_day=TIME_OF_DAY
    )
    found: list[WorldT] = []
    violation: Violation | None = None
    with deterministic_scope_hashes(), asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            runner.run(_run(create, system, found))
        except Violation as broken:
            violation = broken
        except VirtualTimeError as error:
            violation = Violation("the run makes progress", f"{type(error).__name__}: {error}")
    world = found[0]
    violation = world.violation or violation
    requests = list(system.requests(world))
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


async def _run(create: Callable[[], WorldT], system: System[WorldT], found: list[WorldT]) -> None:
    world = create()
    found.append(world)
    with world.story.capturing_logs(), system.observing(world):
        try:
            await system.live(world)
        except Violation as violation:
            world.fail(violation)
            await _give_up(world, system)
            return
        finally:
            await world.end()
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        _check_nothing_left(world)


async def _give_up(world: WorldT, system: System[WorldT]) -> None:
    """End everything after a failure, without further checks."""
    world.story.is_over = True
    system.kill(world)
    limit = world.loop.time() + 60.0
    while (others := asyncio.all_tasks() - {asyncio.current_task()}) and world.loop.time() < limit:
        for task in sorted(others, key=lambda task: task.get_name()):
            if _has_begun(task):  # otherwise a coroutine that anyio has wrapped would never be awaited
                task.cancel()
        await asyncio.wait(others, timeout=1.0)


def _has_begun(task: asyncio.Task[Any]) -> bool:
    """Return whether a task has run its first step."""
    coroutine = task.get_coro()
    return not inspect.iscoroutine(coroutine) or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED


def _check_nothing_left(world: PlannedWorld[Any]) -> None:
    world.cancel_later()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        raise Violation("nothing is left", f"tasks:\n{describe_tasks(left)}")
    open_still = [*map(repr, world.network.connections()), *map(str, world.network.listeners())]
    if open_still:
        raise Violation("nothing is left", f"connections and listeners: {open_still}")
    scheduled = world.loop._scheduled  # type: ignore[attr-defined]
    timers = [each for each in scheduled if not (each.cancelled() or _is_on_its_way(each))]
    if timers:
        raise Violation("nothing is left", f"timers: {timers}")
    if world.violation is not None:
        raise world.violation


def _is_on_its_way(timer: Any) -> bool:
    """Whether a timer is that of bytes which have not arrived when their connection ends."""
    return isinstance(getattr(timer._callback, "__self__", None), Pipe)


def first_violation(run_seed: Callable[[int], Outcome], seeds: Iterable[int]) -> Outcome | None:
    """Return the first run that violates an invariant; None if none does."""
    return next((outcome for seed in seeds if (outcome := run_seed(seed)).violation is not None), None)
