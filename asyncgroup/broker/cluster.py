"""A Kafka cluster inside the process: several nodes on one event loop, open to any Kafka client.

    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("orders", 6)
        ...  # cluster.bootstrap_servers

All state changes are synchronous steps on the loop, and no clock is read but the loop's: in a virtual-time
loop with an in-memory network the cluster runs in virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.controller import Controller
from asyncgroup.broker.coordinator.ports import CoordinatorConfig
from asyncgroup.broker.coordinator.store import MemoryOffsetStore
from asyncgroup.broker.faults import Faults, topics_of
from asyncgroup.broker.history import DEFAULT_HISTORY_LIMIT, History
from asyncgroup.broker.node import Node, Shared
from asyncgroup.broker.server import Connection
from asyncgroup.broker.timers import LoopTimers
from asyncgroup.broker.topics import Partition, Topic
from asyncgroup.broker.transactions.coordinator import TransactionCoordinator
from asyncgroup.broker.transactions.markers import Markers
from asyncgroup.broker.transactions.metadata import TransactionMetadata
from asyncgroup.broker.views import GroupView, view_group
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.model import Record

__all__ = ["EmbeddedCluster"]


class EmbeddedCluster:
    """Nodes 1 … `nodes`, started on entering the context and gone, with every connection, on leaving it.

    `host` is listened on, `advertised_host` told to clients (default: `host`), `ports` one per node (default:
    free ones); a port stays the node's own while it is stopped. `default_replication_factor`: replicas of a
    topic that does not say (default: 3, or all nodes if there are fewer). Durations are seconds.
    `history_limit`: exchanges kept in `history` (0: none), `history_payloads`: with their records. `seed`
    makes ids (topics, members) repeatable. `racks`: where each node stands; a consumer that names its rack is sent
    to the replica there (KIP-392).

    `initial_rebalance_delay`, `group_min_session_timeout`, `group_max_session_timeout`, `group_max_size`:
    Kafka's broker settings of the same names; the defaults suit tests.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        host: str = "127.0.0.1",
        advertised_host: str | None = None,
        ports: Sequence[int] | None = None,
        auto_create_topics: bool = False,
        default_partitions: int = 1,
        default_replication_factor: int | None = None,
        initial_rebalance_delay: float = 0.0,
        group_min_session_timeout: float = 0.0,
        group_max_session_timeout: float = 1800.0,
        group_max_size: int = 2**31 - 1,
        history_limit: int = DEFAULT_HISTORY_LIMIT,
        history_payloads: bool = False,
        racks: Sequence[str | None] | None = None,
        seed: int | None = None,
    ) -> None:
        if nodes < 1:
            raise ConfigError("nodes", nodes, "1 or more")
        if ports is not None and len(ports) != nodes:
            raise ConfigError("ports", list(ports), f"one for each of {nodes} nodes")
        if racks is not None and len(racks) != nodes:
            raise ConfigError("racks", list(racks), f"one for each of {nodes} nodes")
        rng = random.Random(seed)
        factor = min(3, nodes) if default_replication_factor is None else default_replication_factor
        controller = Controller(
            range(1, nodes + 1),
            rng,
            default_partitions=default_partitions,
            default_replication_factor=factor,
        )
        self._shared = Shared(
            controller=controller,
            store=MemoryOffsetStore(controller.offsets_partition),
            history=History(history_limit, payloads=history_payloads),
            faults=Faults(self._topics_of),
            rng=rng,
            coordinator_config=CoordinatorConfig(
                initial_rebalance_delay=initial_rebalance_delay,
                min_session_timeout=group_min_session_timeout,
                max_session_timeout=group_max_session_timeout,
                max_size=group_max_size,
            ),
            auto_create_topics=auto_create_topics,
            connect=Connection,
        )
        self._host = host
        self._advertised_host = advertised_host or host
        self._ports = list(ports or [0] * nodes)
        self._racks = list(racks or [None] * nodes)
        self._moving = asyncio.Lock()
        self._entered = False

    def __repr__(self) -> str:
        alive = sorted(self._shared.controller.alive)
        return f"<EmbeddedCluster nodes {alive} of {list(self._shared.controller.node_ids)}>"

    # -- life ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start all nodes."""
        if self._entered:
            raise UsageError("an EmbeddedCluster is entered once only; make a new one")
        self._entered = True
        shared = self._shared
        shared.transactions = self._new_transactions()
        try:
            for node_id, port, rack in zip(shared.controller.node_ids, self._ports, self._racks, strict=True):
                node = Node(
                    node_id,
                    shared,
                    host=self._host,
                    advertised_host=self._advertised_host,
                    port=port,
                    rack=rack,
                )
                shared.nodes[node_id] = node
                await node.start()
        except BaseException:
            await self._stop_all()
            raise
        shared.controller.spread_coordinators()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all nodes; returns when every connection is closed."""
        await self._stop_all()

    def _new_transactions(self) -> TransactionCoordinator:
        """They outlive their nodes, as `__transaction_state` does in Kafka."""
        shared, loop = self._shared, asyncio.get_running_loop()
        self._timers = LoopTimers(loop)
        markers = Markers(shared.controller, shared.store, self._appended, loop.time)
        return TransactionCoordinator(shared.controller, self._timers, markers)

    def _appended(self, partition: Partition) -> None:
        next(iter(self._shared.nodes.values())).appended(partition)

    async def _stop_all(self) -> None:
        # All die in one step, so that even a cancelled exit leaves nothing behind.
        self._timers.clear()
        halted = [(node, node.halt(reserve_port=False)) for node in self._shared.nodes.values()]
        for node, _ in halted:
            node.close()
        for node, rest in halted:
            await node.wait_stopped(rest)
        self._shared.faults.clear()

    # -- nodes -----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The nodes by id, 1 and up, stopped ones included."""
        return self._shared.nodes

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,host:port,…` of all nodes, also of stopped ones."""
        return ",".join(f"{node.advertised_host}:{node.port}" for node in self._shared.nodes.values())

    async def stop_node(self, node_id: int) -> None:
        """Kill a node: its connections and its listener end, what was parked there is never answered.

        Leaders move to other replicas, where there are any alive, coordinators to any live node. A
        coordinator's groups come back as they were last written, as in Kafka: a rebalance under way starts
        anew.
        """
        node = self._node(node_id)
        async with self._moving:
            await node.stop()

    async def start_node(self, node_id: int) -> None:
        """Start a stopped node at its old port. Leaders and coordinators stay where they are now."""
        node = self._node(node_id)
        async with self._moving:
            if not node.running:
                await node.start()

    def _node(self, node_id: int) -> Node:
        node = self._shared.nodes.get(node_id)
        if node is None:
            raise UsageError(f"no node {node_id}; these are: {sorted(self._shared.nodes)}")
        return node

    # -- topics ----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        *,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; None takes the cluster's default. Raises `broker.Refused` as CreateTopics would."""
        self._shared.controller.create_topic(
            name,
            -1 if partitions is None else partitions,
            -1 if replication_factor is None else replication_factor,
            configs=configs,
        )

    def create_partitions(self, name: str, total: int) -> None:
        """Let a topic have `total` partitions, more than now."""
        self._shared.controller.create_partitions(self.topic(name), total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and the offsets committed for it."""
        next(iter(self._shared.nodes.values())).delete_topic(self.topic(name))

    def topic(self, name: str) -> Topic:
        """A topic with its partitions; UsageError if it does not exist."""
        topic = self._shared.controller.topics.get(name)
        if topic is None:
            raise UsageError(f"no topic {name!r}; these are: {sorted(self._shared.controller.topics)}")
        return topic

    def partition(self, topic: str, partition: int) -> Partition:
        """A partition with its log, leader and replicas; UsageError if it does not exist."""
        partitions = self.topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise UsageError(f"topic {topic!r} has partitions 0 to {len(partitions) - 1}, not {partition}")
        return partitions[partition]

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """All records of a topic, or of one partition, decoded; partition after partition, by offset.

        Those of open and aborted transactions are among them, transaction markers are not.
        """
        partitions = self.topic(topic).partitions if partition is None else [self.partition(topic, partition)]
        return [record for each in partitions for record in each.log.records()]

    # -- leaders and coordinators ----------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> int:
        """The id of the node that leads a partition, -1 if none does."""
        return self.partition(topic, partition).leader

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make a live node the leader of a partition."""
        self._shared.controller.move_leader(self.partition(topic, partition), node_id)

    def truncate(self, topic: str, partition: int, offset: int, leader: int | None = None) -> None:
        """Lose the records from `offset` on, as when a replica that lacks them becomes the leader (an unclean election).

        The batch that holds `offset` goes whole. `leader` is the new leader (default: the present one), whose leader
        epoch begins at the log's new end.
        """
        place = self.partition(topic, partition)
        self._shared.controller.truncate(place, offset, place.leader if leader is None else leader)

    def coordinator(self, group_id: str) -> int:
        """The id of the node that coordinates a group, -1 if none does."""
        return self._shared.controller.coordinator_of(group_id)

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a group.

        As in Kafka a whole partition of `__consumer_offsets` moves, with any other groups in it; requests
        parked at the old coordinator are answered NOT_COORDINATOR.
        """
        self._shared.controller.move_coordinator(group_id, node_id)

    def group(self, group_id: str) -> GroupView:
        """A picture of a group as it is now."""
        node_id = self.coordinator(group_id)
        node = self._shared.nodes.get(node_id)
        group = None if node is None else node.coordinator.groups.get(group_id)
        return view_group(group_id, node_id, group, self._shared.store.offsets(group_id))

    @property
    def transactions(self) -> Mapping[str, TransactionMetadata]:
        """The transactional ids that were used, with the state of their transactions."""
        return self._shared.transactions.transactions

    @property
    def groups(self) -> list[str]:
        """The ids of all groups that some node coordinates."""
        return sorted(g for node in self._shared.nodes.values() for g in node.coordinator.groups)

    # -- watching and disturbing -----------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """What was asked and answered so far."""
        return self._shared.history

    @property
    def faults(self) -> Faults:
        """What should go wrong: `cluster.faults.on("Fetch", node=1).error(…)`."""
        return self._shared.faults

    def _topics_of(self, context: RequestContext, request: Any) -> set[str]:
        ids = self._shared.controller.topics_by_id
        found = topics_of(request, lambda topic_id: ids[topic_id].name if topic_id in ids else None)
        if context.api == "Fetch" and request.session_epoch > 0:
            for key, _ in self._shared.nodes[context.node_id].fetch_sessions.keys(request.session_id):
                if isinstance(key, str):
                    found.add(key)
                elif key in ids:
                    found.add(ids[key].name)
        return found
