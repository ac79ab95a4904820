"""PlannedWorld: carries out a plan on a virtual-time loop. It has the story, the tasks, and the first violation, which ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from asyncgroup.testing.virtual.tcp_stack import source_ip
from tests.simulation.action import Action, Args
from tests.simulation.conditions import NetworkDisturbance, SimulatedNetwork
from tests.simulation.story import Story, Violation

__all__ = ["AnyPlan", "PlannedWorld"]


class AnyPlan(Protocol):
    """A plan of any system."""

    @property
    def seed(self) -> int:
        """The seed that it was drawn from."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """Its actions, by time."""

    @property
    def faults_end_at(self) -> float:
        """The time after which nothing disturbs the run."""

    def without(self, actions: Sequence[Action]) -> Self:
        """Return the plan without some actions."""


PlanT = TypeVar("PlanT", bound=AnyPlan)


class PlannedWorld(Generic[PlanT]):
    """What a run of any system has. The first violation passed to `fail` ends it.

    `names` replace texts of the story that differ from run to run.
    """

    step = 0.25
    """Seconds between two looks at what is to become true."""

    def __init__(self, plan: PlanT, network: SimulatedNetwork, names: Mapping[str, str]) -> None:
        self.plan = plan
        self.network = network
        self.loop = asyncio.get_running_loop()
        self.story = Story(self.loop.time, self._on_log, names)
        self.broken: asyncio.Future[None] = self.loop.create_future()
        """Done when an invariant was violated."""
        self.violation: Violation | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []  # of the simulation itself
        self._hosts: dict[str, str] = {}  # programs by the addresses of their clients
        self.loop.set_exception_handler(self._on_loop_error)

    # --- violations -------------------------------------------------------------------------------------------------------

    def fail(self, violation: Violation) -> None:
        """Record a violated invariant; the first one ends the run."""
        if self.violation is None:
            self.violation = violation
            self.story.write("VIOLATION", str(violation))
        if not self.broken.done():
            self.broken.set_result(None)

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.fail(Violation("no unhandled errors", f"{context.get('message')}: {context.get('exception')!r}"))

    def _on_log(self, text: str) -> str:
        """Return the name of the program that has logged a text."""
        del text
        return self._hosts.get(source_ip.get() or "", "log")

    async def until(self, when: float) -> None:
        """Wait until a point in time; raise a violation that happens before."""
        await asyncio.wait([self.broken], timeout=max(0.0, when - self.loop.time()))
        if self.violation is not None:
            raise self.violation

    async def within(
        self,
        seconds: float,
        what: str,
        problem: Callable[[], str | None],
        *,
        longest: float | None = None,
    ) -> None:
        """Poll `problem` until it returns None; raise a violation with the remaining problem after `seconds`.

        With `longest` that is the limit, and `seconds` the limit without a change of the problem: there is progress.
        """
        began = self.loop.time()
        before, limit = None, began + seconds
        while (left := problem()) is not None:
            if longest is not None and left != before:
                before, limit = left, min(self.loop.time() + seconds, began + longest)
            if self.loop.time() >= limit:
                passed = self.loop.time() - began if longest is not None else seconds
                raise Violation(f"when faults stop {what}", f"not within {passed:g} s: {left}")
            await self.until(self.loop.time() + self.step)

    # --- tasks ------------------------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine in a task; an exception is a violation."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks = [one for one in self._tasks if not one.done()]
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(Violation("no unexpected exceptions", f"{task.get_name()}: {error!r}"))

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that have not ended."""
        return [task for task in self._tasks if not task.done()]

    async def all_tasks_end(self, who: str, seconds: float) -> None:
        """Wait until all tasks have ended; it is a violation if they need longer than `seconds`."""
        limit = self.loop.time() + seconds
        while self.tasks:
            if self.loop.time() >= limit:
                raise Violation(
                    f"all {who} end", f"still running: {[task.get_name() for task in self.tasks]}"
                )
            await asyncio.wait([*self.tasks, self.broken], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            await self.until(0.0)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call a function in `seconds`."""
        self._timers.append(self.loop.call_later(seconds, call))

    def cancel_later(self) -> None:
        """Cancel the calls of `later` that are still to come."""
        for timer in self._timers:
            timer.cancel()

    def disturb(self, disturbance: NetworkDisturbance, seconds: float) -> None:
        """Disturb the network for a time."""
        self.network.begin(disturbance)
        self.later(seconds, lambda: self.network.end(disturbance))

    # --- the plan ---------------------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Stop the brokers."""
        raise NotImplementedError

    async def carry_out(
        self,
        perform: Callable[[Self, str, Args], None],
        on_action: Callable[[Self], None] | None = None,
    ) -> None:
        """Perform every action of the plan at its time, and call `on_action` after it."""
        for action in self.plan.actions:
            await self.until(action.at)
            self.story.write("plan", str(action))
            self.story.count(f"action {action.kind}")
            perform(self, action.kind, action.args)
            if on_action is not None:
                on_action(self)
        await self.until(self.plan.faults_end_at)
