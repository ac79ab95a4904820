"""`EmbeddedCluster`: a Kafka cluster in this process, several nodes on one event loop, for any Kafka client.

    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("orders", 6)
        ...  # cluster.bootstrap_servers

All state changes are synchronous steps on the loop, and only the loop's clock is read: on a virtual-time loop with an
in-memory network the cluster runs in virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncgroup.broker.clock import WallClock
from asyncgroup.broker.control.call import CallService
from asyncgroup.broker.control.controls import ClusterControls
from asyncgroup.broker.control.faults import Faults
from asyncgroup.broker.control.history import DEFAULT_HISTORY_BYTES, DEFAULT_HISTORY_LIMIT, History
from asyncgroup.broker.control.seeding import topic_seeds
from asyncgroup.broker.groups.interfaces import CoordinatorConfig
from asyncgroup.broker.metadata.config_repository import ConfigRepository
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.metadata.journal import NoJournal
from asyncgroup.broker.metadata.topics import Topic
from asyncgroup.broker.net.listener import DEFAULT_CONNECTIONS_MAX_IDLE, ListenerOptions
from asyncgroup.broker.net.request_memory import DEFAULT_QUEUED_MAX_REQUEST_BYTES
from asyncgroup.broker.net.sasl import Authenticator
from asyncgroup.broker.net.security import ListenerSecurity
from asyncgroup.broker.net.tls import connection_factory
from asyncgroup.broker.node import ClusterState, Node
from asyncgroup.broker.storage.data_directory import DataDirectory
from asyncgroup.broker.storage.log_cleaner import LogCleaner
from asyncgroup.broker.storage.restore import restore_controller, restored_transactions
from asyncgroup.broker.storage.retention import CHECK_INTERVAL, Retention
from asyncgroup.broker.timers import LoopTimers
from asyncgroup.broker.transactions.coordinator import TransactionCoordinator
from asyncgroup.broker.transactions.markers import MarkerWriter, TransactionMarker
from asyncgroup.errors import ConfigError, UsageError

__all__ = ["EmbeddedCluster"]


class EmbeddedCluster(ClusterControls):
    """A cluster with nodes 1 to `nodes`.

    Entering the context starts them; leaving it stops them and closes all connections.

    `host` is the address that nodes listen on, `advertised_host` the one sent to clients (default: `host`; required
    if `host` is 0.0.0.0), `ports` one port per node (default: free ones). A stopped node keeps its port. Durations
    are seconds.

    `topics`: topics to create at the start: `"orders"`, `["orders", "bills"]`, `{"orders": 6}` (partitions), or
    `{"orders": {"partitions": 6, "configs": {"cleanup.policy": "compact"}, "records": [b"a book", ("ann", "a lamp")]}}`,
    with records as for `produce`. Topics that already exist in `data_dir` are left unchanged.

    `auto_create_topics`: whether a topic is created when a client asks for it, as Kafka's `auto.create.topics.enable`;
    the default here is False, so that a misspelled topic is noticed. `default_partitions` and
    `default_replication_factor` (default: 3, or all nodes if there are fewer) apply to topics created without them.

    `start_time`: wall-clock time (ms since 1970) at which the cluster starts, default the machine's; it then
    follows the loop's time. `queued_max_request_bytes`: memory per node for requests that are incomplete or queued;
    beyond it, the connection that has been silent longest is closed. `connections_max_idle`: seconds without a byte
    in either direction after which a connection is closed (Kafka's `connections.max.idle.ms`; None: never).

    `history_limit`: exchanges kept in `history` (0: none), `history_bytes`: memory that they may take,
    `history_payloads`: whether their records are kept; `history.dropped` counts the exchanges dropped at these
    limits. `seed` makes ids (topics, members) repeatable. `racks`: the rack of each node; a consumer that names its
    rack is sent to a replica in it (KIP-392).

    `data_dir`: keep records and metadata in this directory, which one cluster at a time may use; a cluster that
    opens it again continues with its topics, offsets, epochs, groups and transactions. Acknowledged writes survive
    a killed process; with `fsync` every write waits for the disk, so that they survive a power loss too, at the
    disk's speed. File I/O blocks the loop. A write that fails on disk has no effect: KAFKA_STORAGE_ERROR is
    returned, NOT_COORDINATOR by coordinators. Batches found damaged on disk are moved aside (`.corrupt`) together
    with all batches after them; damaged metadata is refused (KafkaStorageError).

    `retention_check_interval`: Kafka's `log.retention.check.interval.ms`; a cluster in memory checks only topics
    with retention settings of their own, see `apply_retention` and `compact`. Compacted logs are cleaned by Kafka's
    rules every `log.cleaner.backoff.ms`, 15 seconds unless that setting of the cluster is altered.

    `initial_rebalance_delay`, `group_min_session_timeout`, `group_max_session_timeout`, `group_max_size`,
    `offsets_retention`, `offsets_retention_check_interval`: Kafka's broker settings of the same names; the defaults
    suit tests. `offsets_append_delay`: time until an append to `__consumer_offsets` is replicated and acknowledged
    (default 0). `offsets_load_delay`: time to load one of its partitions, during which COORDINATOR_LOAD_IN_PROGRESS
    is returned (default 0).

    `security`: TLS and SASL on all listeners; None is PLAINTEXT.

    `settings`: topic defaults by the names of Kafka's broker settings, such as `{"log.retention.ms": "60000"}`.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        host: str = "127.0.0.1",
        advertised_host: str | None = None,
        ports: Sequence[int] | None = None,
        topics: object = None,
        auto_create_topics: bool = False,
        default_partitions: int = 1,
        default_replication_factor: int | None = None,
        initial_rebalance_delay: float = 0.0,
        group_min_session_timeout: float = 0.0,
        group_max_session_timeout: float = 1800.0,
        group_max_size: int = 2**31 - 1,
        offsets_retention: float = 7 * 24 * 3600.0,
        offsets_retention_check_interval: float = 600.0,
        offsets_append_delay: float = 0.0,
        offsets_load_delay: float = 0.0,
        queued_max_request_bytes: int = DEFAULT_QUEUED_MAX_REQUEST_BYTES,
        connections_max_idle: float | None = DEFAULT_CONNECTIONS_MAX_IDLE,
        history_limit: int = DEFAULT_HISTORY_LIMIT,
        history_bytes: int = DEFAULT_HISTORY_BYTES,
        history_payloads: bool = False,
        racks: Sequence[str | None] | None = None,
        seed: int | None = None,
        start_time: int | None = None,
        data_dir: str | Path | None = None,
        fsync: bool = False,
        retention_check_interval: float = CHECK_INTERVAL,
        security: ListenerSecurity | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        _check_nodes(nodes, ports=ports, racks=racks)
        if queued_max_request_bytes <= 0:
            raise ConfigError("queued_max_request_bytes", queued_max_request_bytes, "bytes, more than 0")
        if connections_max_idle is not None and not connections_max_idle > 0:
            raise ConfigError(
                "connections_max_idle", connections_max_idle, "seconds, more than 0, or None for never"
            )
        _check_intervals(
            retention_check_interval=retention_check_interval,
            offsets_retention_check_interval=offsets_retention_check_interval,
        )
        rng = random.Random(seed)
        self._shared = ClusterState(
            controller=_new_controller(
                nodes,
                rng,
                default_partitions,
                default_replication_factor,
                ConfigRepository.from_static(settings or {}),
            ),
            rng=rng,
            coordinator_config=CoordinatorConfig(
                initial_rebalance_delay=initial_rebalance_delay,
                min_session_timeout=group_min_session_timeout,
                max_session_timeout=group_max_session_timeout,
                max_size=group_max_size,
                offsets_retention=offsets_retention,
                offsets_retention_check_interval=offsets_retention_check_interval,
                offsets_append_delay=offsets_append_delay,
                offsets_load_delay=offsets_load_delay,
            ),
            auto_create_topics=auto_create_topics,
            listeners=ListenerOptions(
                connect=connection_factory(security),
                new_authenticator=partial(self._new_authenticator, security, rng),
                protocol="PLAINTEXT" if security is None else security.protocol,
                queued_max_request_bytes=queued_max_request_bytes,
                connections_max_idle=connections_max_idle,
            ),
            new_service=lambda node: CallService(node, self._history, self._faults),
        )
        self._history = History(
            history_limit,
            max_bytes=history_bytes,
            payloads=history_payloads,
            topic_name=self._topic_name,
        )
        self._faults = Faults(self._topics_of)
        if security is not None:
            self._shared.controller.scram_users.add_passwords(security.users, rng)
        self._start_time = start_time
        self._topics = topic_seeds(topics)
        # absolute, as the process may change its working directory
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._fsync = fsync
        self._data: DataDirectory | None = None
        self._retention_check_interval = retention_check_interval
        self._host = host
        self._advertised_host = _advertised(host, advertised_host)
        self._ports = list(ports or [0] * nodes)
        self._racks = list(racks or [None] * nodes)
        self._moving = asyncio.Lock()
        self._entered = False

    def _new_authenticator(
        self, security: ListenerSecurity | None, rng: random.Random
    ) -> Authenticator | None:
        if security is None or not security.sasl:
            return None
        return Authenticator(
            security, self._shared.controller.scram_users, rng, asyncio.get_running_loop().time
        )

    def __repr__(self) -> str:
        alive = sorted(self._shared.controller.alive)
        return f"<EmbeddedCluster nodes {alive} of {list(self._shared.controller.node_ids)}>"

    # -- start and stop --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start all nodes."""
        if self._entered:
            raise UsageError("an EmbeddedCluster can be entered only once; create a new one")
        _check_asyncio()
        self._entered = True
        shared = self._shared
        shared.clock = WallClock(asyncio.get_running_loop().time, self._start_time)
        shared.transactions = self._new_transactions()
        self._retention = self._new_retention()
        try:
            if self._data_dir is not None:
                self._data = DataDirectory(self._data_dir, fsync=self._fsync)
                shared.log_dir = str(self._data_dir)
                restore_controller(self._data, shared.controller)
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
                await node.open()
            shared.controller.coordinators.assign_evenly(shared.controller.alive)
            if self._data is not None:
                shared.transactions.restore(restored_transactions(self._data))
            self._seed()
            for node in shared.nodes.values():  # last: clients must not see a cluster that is half started
                await node.listen()
        except BaseException:
            await self._stop_all()
            raise
        return self

    def _seed(self) -> None:
        for name, seed in self._topics.items():
            if name not in self._shared.controller.topics:  # topics in the data directory are left unchanged
                self.create_topic(name, **seed.options)
                self.produce(name, *seed.records)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all nodes; return when every connection is closed.

        Raise `UnusedFaults` if a fault was never hit, or the exception that a fault's own functions raised, unless
        another exception is already propagating.
        """
        try:
            if exc is None:
                self._faults.check()
        finally:
            await self._stop_all()

    def _new_transactions(self) -> TransactionCoordinator:
        """Transaction state belongs to the cluster and survives its nodes, as `__transaction_state` does in Kafka."""
        shared, loop = self._shared, asyncio.get_running_loop()
        self._timers = LoopTimers(loop)
        markers = MarkerWriter(
            shared.controller, self._offsets_ended, self._complete_delayed_operations, shared.clock
        )
        return TransactionCoordinator(shared.controller, self._timers, markers)

    def _new_retention(self) -> Retention:
        shared = self._shared
        retention = Retention(
            shared.controller,
            self._timers,
            shared.clock,
            self._complete_delayed_operations,
            interval=self._retention_check_interval,
            all_topics=self._data_dir is not None,
        )
        cleaner = LogCleaner(
            shared.controller,
            self._timers,
            shared.clock,
            self._complete_delayed_operations,
            all_topics=self._data_dir is not None,
        )

        def configs_changed(topic: Topic) -> None:
            retention.configs_changed(topic)
            cleaner.configs_changed(topic)

        shared.controller.configs_changed = configs_changed
        return retention

    def _offsets_ended(self, partition: int, marker: TransactionMarker) -> None:
        node = self._shared.nodes.get(self._shared.controller.coordinators.offsets_leaders[partition])
        if node is not None:
            node.coordinator.end_transaction(marker.producer.id, partition, commit=marker.commit)

    async def _stop_all(self) -> None:
        # All nodes halt in one step without an await, so that even a cancelled exit leaves nothing running.
        self._shared.ended = True
        self._timers.clear()
        self._shared.controller.journal = NoJournal()  # leader changes caused by the shutdown are not stored
        halted = [(node, node.halt(reserve_port=False)) for node in self._shared.nodes.values()]
        if self._data is not None:
            self._data.close()
        for node, _ in halted:
            node.close()
        for node, rest in halted:
            await node.wait_stopped(rest)
        self._faults.clear()

    # -- nodes -----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The nodes by id (from 1), including stopped ones."""
        return self._shared.nodes

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,host:port,…` of all nodes, including stopped ones; IPv6 addresses are in brackets."""
        host = f"[{self._advertised_host}]" if ":" in self._advertised_host else self._advertised_host
        return ",".join(f"{host}:{node.port}" for node in self._shared.nodes.values())

    async def stop_node(self, node_id: int) -> None:
        """Kill a node: its connections and listener are closed; requests parked there get no response.

        Leadership moves to live replicas, if there are any, coordinators to any live node. As in Kafka, the new
        coordinator loads the groups as they were last written: a rebalance in progress starts again.
        """
        node = self._node(node_id)
        async with self._moving:
            await node.stop()

    async def start_node(self, node_id: int) -> None:
        """Start a stopped node on its old port. Leaders and coordinators stay where they are.

        Raise ClosedError if the cluster has ended.
        """
        node = self._node(node_id)
        async with self._moving:
            if not node.running:
                await node.start()

    def slow_node(self, node_id: int, delay: float) -> None:
        """Delay every request at a node by `delay` seconds, also after a restart; 0 ends the delay.

        Requests on one connection are delayed one after another, those on different connections concurrently. In a
        virtual network `Network.set_latency` slows down the network instead of the node.
        """
        if delay < 0:
            raise ConfigError("delay", delay, "seconds, 0 or more")
        self._node(node_id).delay = delay

    def _node(self, node_id: int) -> Node:
        node = self._shared.nodes.get(node_id)
        if node is None:
            raise UsageError(f"there is no node {node_id}; the nodes are {sorted(self._shared.nodes)}")
        return node


def _check_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "an EmbeddedCluster needs a running asyncio event loop, and there is none (is this trio?); "
            "asyncgroup.testing.KafkaServer runs one in a thread, for any kind of client"
        ) from None


def _check_nodes(nodes: int, **per_node: Sequence[object] | None) -> None:
    if nodes < 1:
        raise ConfigError("nodes", nodes, "1 or more")
    for name, values in per_node.items():
        if values is not None and len(values) != nodes:
            raise ConfigError(name, list(values), f"one for each of {nodes} nodes")


def _check_intervals(**seconds: float) -> None:
    """Raise ConfigError for an interval of 0 or less: its timer would keep the loop busy."""
    for name, value in seconds.items():
        if not value > 0:  # also refuses NaN
            raise ConfigError(name, value, "seconds, more than 0")


def _advertised(host: str, advertised_host: str | None) -> str:
    """Return the host to advertise; like Kafka, refuse to advertise `0.0.0.0`."""
    if advertised_host is None and host in {"0.0.0.0", "::"}:
        raise ConfigError("host", host, "only with an advertised_host that clients can connect to")
    return advertised_host or host


def _new_controller(
    nodes: int, rng: random.Random, partitions: int, factor: int | None, settings: ConfigRepository
) -> Controller:
    return Controller(
        range(1, nodes + 1),
        rng,
        default_partitions=partitions,
        settings=settings,
        default_replication_factor=min(3, nodes) if factor is None else factor,
    )
