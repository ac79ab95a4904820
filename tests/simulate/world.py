"""A world on a virtual loop: brokers, network, members, a producer, and the observers. It carries a plan out."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.testing.network import _source
from tests.simulate.hermit import Hermit
from tests.simulate.member import SimMember
from tests.simulate.plan import GROUP, HERMITS, Plan
from tests.simulate.producer import SimProducer
from tests.simulate.story import Story, Violation
from tests.simulate.truth import Truth
from tests.simulate.watch import BrokerWatch
from tests.simulate.weather import WeatherNetwork

__all__ = ["NODE_HOST", "World"]

NODE_HOST: Final = "10.0.0.1"
PRODUCER_HOST: Final = "10.3.0.1"
HERMIT_HOST: Final = "10.4.0.1"


class World:
    """Everything there is in a run. `fail` takes the first violation, and the run ends."""

    group_id = GROUP

    def __init__(self, plan: Plan, network: WeatherNetwork) -> None:
        self.plan, self.network = plan, network
        self.loop = asyncio.get_running_loop()
        self.story = Story(self.loop.time, self._on_log)
        self.truth = Truth()
        self.watch = BrokerWatch({GROUP: self.truth}, self.story, name_of, self.fail)
        self.pattern = re.compile("orders|others")
        self.cluster = EmbeddedCluster(
            plan.setting.nodes,
            host=NODE_HOST,
            seed=plan.seed,
            initial_rebalance_delay=plan.setting.initial_rebalance_delay,
            offsets_append_delay=plan.setting.offsets_append_delay,
            offsets_load_delay=plan.setting.offsets_load_delay,
            start_time=0,
        )
        self.members: dict[str, SimMember] = {}
        self.hermit: Hermit | None = None
        self.broken: asyncio.Future[None] = self.loop.create_future()
        self.violation: Violation | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._hosts: dict[str, str] = {}
        self._stopped: dict[int, None] = {}
        self.loop.set_exception_handler(self._on_loop_error)

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def fail(self, violation: Violation) -> None:
        """An invariant is broken."""
        if self.violation is None:
            self.violation = violation
            self.story.tell("VIOLATION", str(violation))
        if not self.broken.done():
            self.broken.set_result(None)

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.fail(
            Violation("no error is left lying", f"{context.get('message')}: {context.get('exception')!r}")
        )

    def _on_log(self, text: str) -> str:
        name = self._hosts.get(_source.get() or "", "log")
        whose = self.hermit if name == "hermit" else self.members.get(name)
        if whose is not None:
            whose.on_log(text)
        return name

    async def until(self, when: float) -> None:
        """Wait for a moment; raises the violation if one comes before."""
        await asyncio.wait([self.broken], timeout=max(0.0, when - self.loop.time()))
        if self.violation is not None:
            raise self.violation

    # --- tasks ----------------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run something in a task of the world's; what it raises is a violation."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks = [one for one in self._tasks if not one.done()]
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(Violation("nothing raises by surprise", f"{task.get_name()}: {error!r}"))

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Those that have not ended."""
        return [task for task in self._tasks if not task.done()]

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call something in so many seconds."""
        self.loop.call_later(seconds, call)

    # --- members --------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """All nodes."""
        return self.cluster.bootstrap_servers

    def join(self, name: str) -> SimMember:
        """A program starts."""
        host = f"10.1.{len(self.members)}.1"
        self._hosts[host] = name
        member = self.members[name] = SimMember(self, self.plan.members[name], host)
        member.start()
        return member

    def member(self, name: str) -> SimMember | None:
        """A member that is there."""
        member = self.members.get(name)
        return member if member is not None and member.is_there else None

    def party(self, name: str) -> SimMember | SimProducer | Hermit | None:
        """Whoever has a wire: a member that is there, the producer, the hermit."""
        others = {"producer": self.producer, "hermit": self.hermit}
        return others[name] if name in others else self.member(name)

    @property
    def living(self) -> list[SimMember]:
        """The members that are there and want to stay."""
        return [member for member in self.members.values() if member.is_there]

    # --- nodes ----------------------------------------------------------------------------------------------------

    def port(self, node_id: int) -> int:
        """The port of a node."""
        return self.cluster.nodes[node_id].port

    @property
    def has_nodes(self) -> bool:
        """Whether any node runs."""
        return any(node.running for node in self.cluster.nodes.values())

    def stop_node(self, node_id: int, seconds: float) -> None:
        """A node dies, and is started again after so many seconds."""
        if node_id not in self._stopped:
            self._stopped[node_id] = None
            self.spawn(self._down(node_id, seconds), f"node {node_id} is down")

    async def _down(self, node_id: int, seconds: float) -> None:
        await self.cluster.stop_node(node_id)
        await asyncio.sleep(seconds)
        await self.cluster.start_node(node_id)
        self._stopped.pop(node_id, None)
        self.story.tell(f"node {node_id}", "is up again")

    # --- the plan -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Topics and the producer; the cluster is entered."""
        for topic, partitions in self.plan.setting.topics.items():
            self.cluster.create_topic(topic, partitions)
        self.producer = SimProducer(self, PRODUCER_HOST)
        await self.producer.start()
        if self.plan.setting.has_hermit:
            self._hosts[HERMIT_HOST] = "hermit"
            self.hermit = Hermit(self, HERMIT_HOST)
            self.watch.truths[HERMITS] = self.hermit.truth
            self.hermit.start()
        self.network.weather.is_on = True

    async def carry_out(self, perform: Callable[[World, str, tuple[Any, ...]], None]) -> None:
        """Every action at its time."""
        for action in self.plan.actions:
            await self.until(action.at)
            self.story.tell("plan", str(action))
            self.story.count(f"action {action.kind}")
            perform(self, action.kind, action.args)
        await self.until(self.plan.calm_at)


def name_of(client_or_member_id: str) -> str:
    """The member that has such an id: the client's or the place's, and with a member id a uuid behind it."""
    return client_or_member_id.removeprefix("place-").split("-")[0]


def random_of(plan: Plan, what: str) -> random.Random:
    """A source of chance of its own for each purpose."""
    return random.Random(f"{plan.seed} {what}")
