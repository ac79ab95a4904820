"""The simulated world on a virtual-time loop: brokers, network, members, producer and observer; carries out a plan."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Final

from asyncgroup import TopicPartition
from asyncgroup.broker import EmbeddedCluster
from tests.simulate.disk import PowerCut, tear
from tests.simulate.member import SimMember
from tests.simulate.observer import BrokerObserver
from tests.simulate.oracle import Oracle
from tests.simulate.plan import GROUP, STANDALONE_GROUP, Plan
from tests.simulate.producer import SimProducer
from tests.simulate.queues_logs import Logs
from tests.simulate.queues_member import SimQueue
from tests.simulate.queues_oracle import QueueOracle
from tests.simulate.queues_setting import DEAD_TOPIC, RETRY_TOPIC
from tests.simulate.standalone import StandaloneReader
from tests.simulation.conditions import SimulatedNetwork
from tests.simulation.world import PlannedWorld

__all__ = ["NODE_HOST", "World"]

NODE_HOST: Final = "10.0.0.1"
PRODUCER_HOST: Final = "10.3.0.1"
STANDALONE_HOST: Final = "10.4.0.1"


class World(PlannedWorld[Plan]):
    """All parts of a run."""

    group_id = GROUP

    def __init__(self, plan: Plan, network: SimulatedNetwork, data_dir: Path | None = None) -> None:
        super().__init__(plan, network, {str(data_dir): "data"} if data_dir else {})
        self.data_dir = data_dir
        self.oracle = Oracle()
        specs = [*plan.members.values(), *plan.others.values()]
        self.oracle.is_cooperative = any(spec.is_cooperative for spec in specs)
        self.oracle.replicated = self._replicated
        self.observer = BrokerObserver(
            {GROUP: self.oracle},
            self.story,
            name_of,
            self.fail,
            plan.setting.check_interval,
            is_mixed=bool(plan.others),
        )
        self.queues: QueueOracle | None = None
        """What the members have done if they are work queues."""
        if plan.queues is not None:
            logs = Logs(lambda: self.cluster, plan.setting.topics)
            self.queues = QueueOracle(plan.queues, self.oracle, logs, is_orderly=plan.is_orderly)
            self.observer.on_commit = self.queues.committed
        self.oracle.rules = self.observer.rules
        self.oracle.other_owner = self.observer.other_owner
        self.pattern = re.compile("orders|others")
        self._lives = 0
        self.cluster = self._new_cluster()
        self.is_down = False
        """Whether all nodes were killed, and the new cluster is not started yet."""
        self.members: dict[str, SimMember | SimQueue] = {}
        self.standalone: StandaloneReader | None = None
        self._stopped: dict[int, None] = {}
        self._torn_writes = random_of(plan, "accidents")

    def _new_cluster(self, ports: list[int] | None = None) -> EmbeddedCluster:
        """Create a cluster, not started yet, and observe it."""
        setting, self._lives = self.plan.setting, self._lives + 1
        cluster = EmbeddedCluster(
            setting.nodes,
            host=NODE_HOST,
            ports=ports,
            seed=self.plan.seed * 100 + self._lives,
            initial_rebalance_delay=setting.initial_rebalance_delay,
            group_consumer_session_timeout=setting.session_timeout,
            group_consumer_heartbeat_interval=setting.heartbeat_interval,
            group_consumer_assignment_interval=setting.initial_rebalance_delay,
            group_consumer_migration_policy=setting.migration_policy,
            racks=setting.racks or None,
            offsets_append_delay=setting.offsets_append_delay,
            offsets_load_delay=setting.offsets_load_delay,
            start_time=round(self.loop.time() * 1000),
            data_dir=self.data_dir,
        )
        self.observer.attach(cluster)
        return cluster

    def _replicated(self, tp: TopicPartition) -> int:
        return self.cluster.partition(*tp).high_watermark

    def _on_log(self, text: str) -> str:
        name = super()._on_log(text)
        whose = self.standalone if name == "reader" else self.members.get(name)
        if whose is not None:
            whose.on_log(text)
        return name

    # --- members --------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes."""
        return self.cluster.bootstrap_servers

    def join(self, name: str) -> SimMember | SimQueue:
        """Start the program with a member."""
        number = len(self.members)
        host = f"10.1.{number % 256}.{number // 256 + 1}"
        self._hosts[host] = name
        make = SimMember if self.plan.queues is None else SimQueue
        member = self.members[name] = make(self, self.plan.members[name], host)
        member.start()
        return member

    def member(self, name: str) -> SimMember | SimQueue | None:
        """Return a member if it is active."""
        member = self.members.get(name)
        return member if member is not None and member.is_active else None

    def client(self, name: str) -> SimMember | SimQueue | SimProducer | StandaloneReader | None:
        """Return an active member, the producer or the standalone reader."""
        others = {"producer": self.producer, "reader": self.standalone}
        return others[name] if name in others else self.member(name)

    @property
    def active_members(self) -> list[SimMember | SimQueue]:
        """The active members."""
        return [member for member in self.members.values() if member.is_active]

    # --- nodes ----------------------------------------------------------------------------------------------------

    def port(self, node_id: int) -> int:
        """Return the port of a node."""
        return self.cluster.nodes[node_id].port

    @property
    def has_nodes(self) -> bool:
        """Whether any node is running."""
        return any(node.running for node in self.cluster.nodes.values())

    def stop_node(self, node_id: int, seconds: float) -> None:
        """Stop a node, and start it again after `seconds`."""
        if node_id not in self._stopped and not self.is_down:
            self._stopped[node_id] = None
            self.spawn(self._restart_node(node_id, seconds), f"node {node_id} is down")

    async def _restart_node(self, node_id: int, seconds: float) -> None:
        await self.cluster.stop_node(node_id)
        await asyncio.sleep(seconds)
        while self.is_down:
            await asyncio.sleep(self.step)
        await self.cluster.start_node(node_id)
        self._stopped.pop(node_id, None)
        self.story.write(f"node {node_id}", "is up again")

    def power_cut(self, seconds: float) -> None:
        """Kill all nodes in the middle of their writes; after `seconds` a new cluster starts from the data directory."""
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
        self.story.write("cluster", f"is up again; {torn} of its files ended in partial writes")

    def release_followers(self, topic: str, partition: int) -> None:
        """Let the followers catch up, unless the whole cluster was killed in the meantime."""
        if not self.is_down:
            self.cluster.release_followers(topic, partition)

    # --- the plan -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the nodes, the producer and the standalone reader, and create the topics."""
        await self.cluster.__aenter__()
        for topic, partitions in self.plan.setting.topics.items():
            self.cluster.create_topic(topic, partitions)
        if (queues := self.plan.queues) is not None and not queues.creates_topics:
            self.cluster.create_topic(RETRY_TOPIC, 2)
            self.cluster.create_topic(DEAD_TOPIC, 2)
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
        """Stop the nodes."""
        await self.cluster.__aexit__(None, None, None)


def name_of(client_or_member_id: str) -> str:
    """Return the member's name for a client id, a group instance id, or a member id made of one of them and a uuid."""
    return client_or_member_id.removeprefix("place-").split("-")[0]


def random_of(plan: Plan, what: str) -> random.Random:
    """Return a separate random generator for each purpose."""
    return random.Random(f"{plan.seed} {what}")
