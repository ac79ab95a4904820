"""A world on a virtual loop: brokers, network, members, a producer, and the observers. It carries a plan out."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from asyncgroup import TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.testing.network import _source
from tests.simulate.conditions import SimulatedNetwork
from tests.simulate.disk import PowerCut, tear
from tests.simulate.member import SimMember
from tests.simulate.observer import BrokerObserver
from tests.simulate.oracle import Oracle
from tests.simulate.plan import GROUP, STANDALONE_GROUP, Plan
from tests.simulate.producer import SimProducer
from tests.simulate.standalone import StandaloneReader
from tests.simulate.story import Story, Violation

__all__ = ["NODE_HOST", "World"]

NODE_HOST: Final = "10.0.0.1"
PRODUCER_HOST: Final = "10.3.0.1"
STANDALONE_HOST: Final = "10.4.0.1"
STEP: Final = 0.25


class World:
    """Everything there is in a run. `fail` takes the first violation, and the run ends."""

    group_id = GROUP

    def __init__(self, plan: Plan, network: SimulatedNetwork, data_dir: Path | None = None) -> None:
        self.plan, self.network, self.data_dir = plan, network, data_dir
        self.loop = asyncio.get_running_loop()
        self.story = Story(self.loop.time, self._on_log, {str(data_dir): "data"} if data_dir else {})
        self.oracle = Oracle()
        self.oracle.replicated = self._replicated
        self.observer = BrokerObserver({GROUP: self.oracle}, self.story, name_of, self.fail)
        self.oracle.accepts = self.observer.accepts
        self.pattern = re.compile("orders|others")
        self._lives = 0
        self.cluster = self._new_cluster()
        self.is_down = False
        """Whether all nodes are dead, and their directory waits for a new cluster."""
        self.members: dict[str, SimMember] = {}
        self.standalone: StandaloneReader | None = None
        self.broken: asyncio.Future[None] = self.loop.create_future()
        self.violation: Violation | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._hosts: dict[str, str] = {}
        self._stopped: dict[int, None] = {}
        self._torn_writes = random_of(plan, "accidents")
        self.loop.set_exception_handler(self._on_loop_error)

    def _new_cluster(self, ports: list[int] | None = None) -> EmbeddedCluster:
        """Not entered yet, and watched."""
        setting, self._lives = self.plan.setting, self._lives + 1
        cluster = EmbeddedCluster(
            setting.nodes,
            host=NODE_HOST,
            ports=ports,
            seed=self.plan.seed * 100 + self._lives,
            initial_rebalance_delay=setting.initial_rebalance_delay,
            offsets_append_delay=setting.offsets_append_delay,
            offsets_load_delay=setting.offsets_load_delay,
            start_time=round(self.loop.time() * 1000),
            data_dir=self.data_dir,
        )
        self.observer.attach(cluster)
        return cluster

    def _replicated(self, tp: TopicPartition) -> int:
        return self.cluster.partition(*tp).log.high_watermark

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def fail(self, violation: Violation) -> None:
        """An invariant is broken."""
        if self.violation is None:
            self.violation = violation
            self.story.write("VIOLATION", str(violation))
        if not self.broken.done():
            self.broken.set_result(None)

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.fail(
            Violation("no error is left lying", f"{context.get('message')}: {context.get('exception')!r}")
        )

    def _on_log(self, text: str) -> str:
        name = self._hosts.get(_source.get() or "", "log")
        whose = self.standalone if name == "reader" else self.members.get(name)
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
        return member if member is not None and member.is_active else None

    def client(self, name: str) -> SimMember | SimProducer | StandaloneReader | None:
        """Whoever has a wire: a member that is there, the producer, the hermit."""
        others = {"producer": self.producer, "reader": self.standalone}
        return others[name] if name in others else self.member(name)

    @property
    def active_members(self) -> list[SimMember]:
        """The members that are there and want to stay."""
        return [member for member in self.members.values() if member.is_active]

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
        if node_id not in self._stopped and not self.is_down:
            self._stopped[node_id] = None
            self.spawn(self._restart_node(node_id, seconds), f"node {node_id} is down")

    async def _restart_node(self, node_id: int, seconds: float) -> None:
        await self.cluster.stop_node(node_id)
        await asyncio.sleep(seconds)
        while self.is_down:
            await asyncio.sleep(STEP)
        await self.cluster.start_node(node_id)
        self._stopped.pop(node_id, None)
        self.story.write(f"node {node_id}", "is up again")

    def power_cut(self, seconds: float) -> None:
        """All nodes die in the middle of what they write; what their directory holds lives on after so many seconds."""
        if self.data_dir is not None and not self.is_down:
            self.is_down = True
            self.spawn(self._restart_cluster(self.data_dir, seconds), "all nodes are down")

    async def _restart_cluster(self, data_dir: Path, seconds: float) -> None:
        ports = [node.port for node in self.cluster.nodes.values()]
        sudden = PowerCut()
        await self.cluster.__aexit__(PowerCut, sudden, None)
        torn = tear(data_dir, self._torn_writes)
        await asyncio.sleep(seconds)
        self.cluster = self._new_cluster(ports)
        await self.cluster.__aenter__()
        self.is_down = False
        self.story.write("cluster", f"is up again; {torn} of its files had torn ends")

    def release_followers(self, topic: str, partition: int) -> None:
        """They catch up, unless the whole cluster has died meanwhile."""
        if not self.is_down:
            self.cluster.release_followers(topic, partition)

    # --- the plan -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """The nodes, topics and the producer."""
        await self.cluster.__aenter__()
        for topic, partitions in self.plan.setting.topics.items():
            self.cluster.create_topic(topic, partitions)
        self.producer = SimProducer(self, PRODUCER_HOST)
        await self.producer.start()
        if self.plan.setting.has_standalone:
            self._hosts[STANDALONE_HOST] = "reader"
            self.standalone = StandaloneReader(self, STANDALONE_HOST)
            self.standalone.oracle.replicated = self._replicated
            self.observer.oracles[STANDALONE_GROUP] = self.standalone.oracle
            self.standalone.start()
        self.network.conditions.is_on = True

    async def end(self) -> None:
        """The nodes are no more."""
        await self.cluster.__aexit__(None, None, None)

    async def carry_out(self, perform: Callable[[World, str, tuple[Any, ...]], None]) -> None:
        """Every action at its time."""
        for action in self.plan.actions:
            await self.until(action.at)
            self.story.write("plan", str(action))
            self.story.count(f"action {action.kind}")
            perform(self, action.kind, action.args)
        await self.until(self.plan.faults_end_at)


def name_of(client_or_member_id: str) -> str:
    """The member that has such an id: the client's or the place's, and with a member id a uuid behind it."""
    return client_or_member_id.removeprefix("place-").split("-")[0]


def random_of(plan: Plan, what: str) -> random.Random:
    """A source of chance of its own for each purpose."""
    return random.Random(f"{plan.seed} {what}")
