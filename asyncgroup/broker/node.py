"""One node of the embedded cluster: its listener and connections, the groups it coordinates, its parked requests."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from asyncgroup.broker.clock import LoopTimers, WallClock
from asyncgroup.broker.errors import PartitionError
from asyncgroup.broker.groups.coordinator import GroupCoordinator
from asyncgroup.broker.groups.shared.interfaces import CoordinatorConfig
from asyncgroup.broker.groups.store.offset_store import OffsetStore
from asyncgroup.broker.groups.store.offsets_topic import ClusterTopics, OffsetsTopic
from asyncgroup.broker.log.fetch_sessions import FetchSessions
from asyncgroup.broker.loggers import BrokerLoggers
from asyncgroup.broker.metadata.config_repository import GROUP
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.metadata.topics import OFFSETS_TOPIC, Partition, Topic
from asyncgroup.broker.net.listener import ClientConnection, Endpoint, Listener, ListenerOptions
from asyncgroup.broker.net.service import RequestContext, RequestService
from asyncgroup.broker.purgatory import Purgatory
from asyncgroup.broker.transactions.coordinator import TransactionCoordinator
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ClosedError
from asyncgroup.lifecycle import start_task
from asyncgroup.model import TopicPartition

__all__ = ["ClusterState", "Node"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"

MAX_LOOKUPS: Final = 10_000
"""Connections and topics that look-ups are counted for; then the count begins again."""

REPEATED_LOOKUPS: Final = 3
"""Lookups of a missing topic on one connection after which its client does not only find out whether the topic exists: a work
queue does that twice before it creates its retry and dead letter topics."""


Halted: TypeAlias = tuple[asyncio.Server, list[ClientConnection], list["asyncio.Task[object]"]]
"""What `Node.wait_stopped` has to wait for after a halt: the listener, connections and tasks."""


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """State and configuration shared by the nodes of a cluster."""

    controller: Controller
    rng: random.Random
    coordinator_config: CoordinatorConfig
    auto_create_topics: bool
    listeners: ListenerOptions
    new_service: Callable[[Node], RequestService]
    """Creates what serves the requests to a node."""
    nodes: dict[int, Node] = field(default_factory=dict)
    transactions: TransactionCoordinator = field(init=False)
    clock: WallClock = field(init=False)
    log_dir: str = "memory"
    """The log directory as DescribeLogDirs reports it."""
    static_configs: Mapping[str, str] = field(default_factory=dict)
    """The configs that all nodes are started with, by Kafka's names, except those that are defaults of topics."""
    loggers: BrokerLoggers = field(default_factory=BrokerLoggers)
    ended: bool = False
    """Whether the cluster has been stopped; its nodes cannot be started again."""
    on_unknown_topic: Callable[[str], object] | None = None
    """Called with the name of a topic that a client requests and that never existed."""
    topic_lookups: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Requests for such a topic that must not create it, by connection and name; counted only for `on_unknown_topic`."""


class Node:
    """A broker. It keeps its address when it is stopped and started, but loses its state in memory.

    The logs of partitions belong to the cluster, because all replicas share them.
    """

    def __init__(
        self, node_id: int, shared: ClusterState, endpoint: Endpoint, *, rack: str | None = None
    ) -> None:
        self.id = node_id
        self.rack = rack
        self.controller = shared.controller
        self.auto_create_topics = shared.auto_create_topics
        self.transactions = shared.transactions
        self.clock = shared.clock
        self.log_dir = shared.log_dir
        self.static_configs = shared.static_configs
        self.loggers = shared.loggers
        self.delay = 0.0
        """Delay of every request in seconds (`EmbeddedCluster.slow_node`)."""
        self.listener = Listener(node_id, shared.listeners, shared.new_service(self), endpoint)
        self._tasks: dict[asyncio.Task[object], None] = {}
        """Tasks of requests that continue when their connections close, in the order in which they were started."""
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._reset_state()

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        connections = len(self.listener.connections)
        return f"<Node {self.id} {self.advertised_host}:{self.port} {state}, {connections} connections>"

    @property
    def running(self) -> bool:
        """Whether the node is started."""
        return self.listener.is_open

    @property
    def host(self) -> str:
        """The address that the node listens on."""
        return self.listener.host

    @property
    def advertised_host(self) -> str:
        """The address sent to clients."""
        return self.listener.advertised_host

    @property
    def port(self) -> int:
        """The port that the node listens on; it keeps it while it is stopped."""
        return self.listener.port

    @property
    def peers(self) -> Mapping[int, Node]:
        """All nodes of the cluster by id, including this one."""
        return self._shared.nodes

    def live_peers(self) -> list[Node]:
        """Return the running nodes, ordered by id."""
        return [peer for peer in self._shared.nodes.values() if peer.running]

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that is canceled when the node stops."""
        task = start_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # mark as retrieved: asyncio must not log it if the client has disconnected

    # -- start and stop --------------------------------------------------------------------------------------

    def _reset_state(self) -> None:
        shared = self._shared
        self._timers = LoopTimers(self._loop)
        self.purgatory = Purgatory(self._loop)
        self.fetch_sessions = FetchSessions(
            now=self._loop.time, rng=random.Random(shared.rng.getrandbits(64))
        )
        config = shared.coordinator_config
        store = OffsetStore(
            OffsetsTopic(self.id, self.controller, self.complete_delayed_operations, self.clock),
            self._timers,
            self.controller.coordinators.offsets_partition,
            self.clock,
            append_delay=config.offsets_append_delay,
        )
        self.coordinator = GroupCoordinator(
            config,
            self._timers,
            store,
            self.controller.coordinators.offsets_partition,
            rng=random.Random(shared.rng.getrandbits(64)),
            clock=self.clock,
            topics=ClusterTopics(self.controller),
            group_configs=self._group_configs,
        )

    def _group_configs(self, group_id: str) -> dict[str, str]:
        """Return the dynamic configs of a group, and of all groups where this node has one."""
        configs = self.controller.configs
        given = {**configs.cluster, **configs.nodes.get(self.id, {})}
        interval = given.get(f"group.{_ASSIGNMENT_INTERVAL}")
        return {**({_ASSIGNMENT_INTERVAL: interval} if interval else {}), **configs.of(GROUP, group_id)}

    async def start(self) -> None:
        """Join the cluster and listen, on the node's previous port if it had one."""
        await self.open()
        await self.listen()

    async def open(self) -> None:
        """First half of `start`: bind the port and join the cluster; clients are refused until `listen`.

        Raise ClosedError if the cluster has ended.
        """
        server = await self.listener.bind()
        # the cluster may have been stopped while the port was bound
        if self._shared.ended:
            server.close()
            raise ClosedError("the cluster has ended")
        self.listener.open(server)
        self.controller.node_up(self.id, self)

    async def listen(self) -> None:
        """Second half of `start`: accept clients."""
        if self.running:  # the node may have been stopped again
            log.info("node %d listens on %s:%d", self.id, self.host, self.port)
            await self.listener.listen()

    async def stop(self) -> None:
        """Kill the node: close the listener and all connections; parked requests get no response."""
        await self.wait_stopped(self.halt(reserve_port=True))

    def halt(self, *, reserve_port: bool) -> Halted | None:
        """Stop the node in one step, without waiting for connections and tasks; None if it is not running."""
        server = self.listener.close_port(reserve=reserve_port)
        if server is None:
            return None
        self.controller.node_down(self.id)
        self._timers.clear()
        self.purgatory.drop_all()
        connections = self.listener.abort_connections()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        self._reset_state()
        log.info("node %d stopped", self.id)
        return server, connections, tasks

    async def wait_stopped(self, halted: Halted | None) -> None:
        """Wait until the connections and tasks that `halt` aborted have ended."""
        if halted is not None:
            server, connections, tasks = halted
            for connection in connections:
                await connection.closed
            if tasks:
                await asyncio.wait(tasks)
            await server.wait_closed()

    def close(self) -> None:
        """Release the port of a stopped node."""
        self.listener.release_port()

    # -- `MetadataListener` ----------------------------------------------------------------------------------

    def partition_changed(self, partition: Partition) -> None:
        """Check the requests parked for the partition, and write transaction markers that waited for a leader."""
        key = TopicPartition(partition.topic, partition.index)
        self.purgatory.check_and_complete(key)
        self.transactions.partition_changed(key)

    def coordinator_elected(self, offsets_partition: int) -> None:
        """Load the groups of this partition of `__consumer_offsets`."""
        self.coordinator.load(offsets_partition)

    def coordinator_resigned(self, offsets_partition: int) -> None:
        """Unload its groups."""
        self.coordinator.unload(offsets_partition)

    # -- partitions ------------------------------------------------------------------------------------------

    def partition(self, context: RequestContext, topic: Topic | None, index: int) -> Partition:
        """Return the partition. Raise PartitionError: UNKNOWN_TOPIC_OR_PARTITION, or the error that a fault sets."""
        if topic is None or not 0 <= index < len(topic.partitions):
            raise PartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if context.topic_errors:
            context.check_topic(topic.name)
        return topic.partitions[index]

    def check_leader(self, partition: Partition, epoch: int = -1) -> None:
        """Raise PartitionError unless this node leads `partition` in leader epoch `epoch` (-1: any; KIP-320)."""
        self.check_replica(partition, epoch, leader_only=True)

    def check_replica(self, partition: Partition, epoch: int, *, leader_only: bool) -> None:
        """As `check_leader`; without `leader_only`, the node may also be a follower."""
        # a request may have been parked since before the deletion
        if partition.deleted:
            raise PartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        leader = (partition.leader, partition.leader_epoch)
        if self.id not in partition.replicas:
            raise PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=leader)
        # the epoch first, as in `Partition.getLocalLog`: a client with old metadata is to refresh it
        if 0 <= epoch < partition.leader_epoch:
            raise PartitionError(ErrorCode.FENCED_LEADER_EPOCH, leader=leader)
        if epoch > partition.leader_epoch:
            raise PartitionError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if leader_only and partition.leader != self.id:
            raise PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=leader)

    def unknown_topic_requested(self, topic: str, lookup: int | None = None) -> None:
        """Report a client's request for a topic that never existed, which usually is a mistake in a test.

        `lookup`: the request came on this connection, and must not create the topic; that is reported when the connection
        repeats it.
        """
        shared = self._shared
        if shared.on_unknown_topic is None or topic.startswith("__"):
            return
        if lookup is not None:
            if len(shared.topic_lookups) >= MAX_LOOKUPS:
                shared.topic_lookups.clear()
            shared.topic_lookups[lookup, topic] += 1
            if shared.topic_lookups[lookup, topic] < REPEATED_LOOKUPS:
                return
        shared.on_unknown_topic(topic)

    def complete_delayed_operations(self, partition: Partition) -> None:
        """Check the requests parked for the partition on all nodes, after an append or when followers caught up."""
        key = TopicPartition(partition.topic, partition.index)
        for peer in self._shared.nodes.values():
            if key in peer.purgatory.watchers:
                peer.purgatory.check_and_complete(key)
        # the writes of groups wait for this high watermark
        if partition.topic == OFFSETS_TOPIC and partition.leader in self._shared.nodes:
            self._shared.nodes[partition.leader].coordinator.on_high_watermark_updated(partition.index)

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic with its records and the offsets that groups committed for it."""
        self.controller.delete_topic(topic)
        for partition in topic.partitions:
            # Needed when no node is alive to be notified: no marker may wait forever.
            self.transactions.partition_changed(TopicPartition(topic.name, partition.index))
        for peer in self._shared.nodes.values():
            peer.coordinator.remove_topic(topic.name)
