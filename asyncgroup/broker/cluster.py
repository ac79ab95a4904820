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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncgroup.broker.clock import WallClock
from asyncgroup.broker.controller import Controller
from asyncgroup.broker.controls import ClusterControls
from asyncgroup.broker.coordinator.interfaces import CoordinatorConfig
from asyncgroup.broker.faults import Faults
from asyncgroup.broker.history import DEFAULT_HISTORY_BYTES, DEFAULT_HISTORY_LIMIT, History
from asyncgroup.broker.journal import NoJournal
from asyncgroup.broker.log_cleaner import LogCleaner
from asyncgroup.broker.node import DEFAULT_CONNECTIONS_MAX_IDLE, Node, Shared
from asyncgroup.broker.request_memory import DEFAULT_QUEUED_MAX_REQUEST_BYTES
from asyncgroup.broker.retention import CHECK_INTERVAL, Retention
from asyncgroup.broker.security import ListenerSecurity
from asyncgroup.broker.seeding import topic_seeds
from asyncgroup.broker.server import Connection
from asyncgroup.broker.settings import Settings
from asyncgroup.broker.storage.data_directory import DataDirectory
from asyncgroup.broker.storage.restore import restore_controller, restored_transactions
from asyncgroup.broker.timers import LoopTimers
from asyncgroup.broker.tls import TlsHandshake
from asyncgroup.broker.topics import Topic
from asyncgroup.broker.transactions.coordinator import TransactionCoordinator
from asyncgroup.broker.transactions.markers import MarkerWriter, TransactionMarker
from asyncgroup.errors import ConfigError, UsageError

__all__ = ["EmbeddedCluster"]


class EmbeddedCluster(ClusterControls):
    """Nodes 1 … `nodes`, started on entering the context and gone, with every connection, on leaving it.

    `host` is listened on, `advertised_host` told to clients (default: `host`; needed where that is 0.0.0.0), `ports`
    one per node (default: free ones); a port stays the node's own while it is stopped. Durations are seconds.

    `topics`: topics to create at the start: `"orders"`, `["orders", "bills"]`, `{"orders": 6}` (partitions), or
    `{"orders": {"partitions": 6, "configs": {"cleanup.policy": "compact"}, "records": [b"a book", ("ann", "a lamp")]}}`,
    with records as for `produce`. Those that a `data_dir` has already stay as they are.

    `auto_create_topics`: whether a topic comes into being when a client asks for it, as Kafka's
    `auto.create.topics.enable`; here the default is no, so that a misspelt topic is noticed. `default_partitions` and
    `default_replication_factor` (default: 3, or all nodes if there are fewer) are for topics that don't say.

    `start_time` is the time of day (ms since 1970) at which the cluster starts, default the machine's; from there on it
    follows the loop's time.
    `queued_max_request_bytes`: memory that requests which are not complete, or wait for their turn, may take at one node;
    beyond it the connection is closed that was silent for longest. `connections_max_idle`: seconds after which a
    connection is closed on which nothing comes or goes (Kafka's `connections.max.idle.ms`; None: never).

    `history_limit`: exchanges kept in `history` (0: none), `history_bytes`: memory that they may take,
    `history_payloads`: with their records; `history.dropped` counts those that are gone.
    `seed` makes ids (topics, members) repeatable. `racks`: where each node stands; a consumer that names its rack is sent
    to the replica there (KIP-392).

    `data_dir`: keep records and metadata in this directory, which one cluster at a time may use; a cluster that comes
    back to it goes on with its topics, offsets, epochs, groups and transactions. What is acknowledged survives the end
    of the process, however sudden; `fsync` makes every write wait for the disk, so that it survives a loss of power as
    well, at the disk's speed. Reading and writing files stops the loop meanwhile. What the disk does not take did not
    happen: KAFKA_STORAGE_ERROR is answered, by coordinators NOT_COORDINATOR. Batches that were damaged on the disk are put
    aside (`.corrupt`) with those behind them; damaged metadata is not opened (StorageError).

    `retention_check_interval`: Kafka's `log.retention.check.interval.ms`; topics of a cluster in memory are looked at if
    they have settings about it, see `apply_retention` and `compact`. Compacted logs are cleaned by Kafka's rules every
    `log.cleaner.backoff.ms`, 15 seconds unless that setting of the cluster is altered.

    `initial_rebalance_delay`, `group_min_session_timeout`, `group_max_session_timeout`, `group_max_size`,
    `offsets_retention`, `offsets_retention_check_interval`: Kafka's broker settings of the same names; the defaults suit
    tests. `offsets_append_delay`: the time from an append to `__consumer_offsets` until it is replicated and answered,
    `offsets_load_delay`: the time to read one of its partitions into memory (COORDINATOR_LOAD_IN_PROGRESS); both none.

    `security`: TLS and SASL on all listeners; None is PLAINTEXT.

    `settings`: defaults of topics by the names of Kafka's broker settings, such as `{"log.retention.ms": "60000"}`.
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
        self._shared = Shared(
            controller=_new_controller(
                nodes, rng, default_partitions, default_replication_factor, Settings.at_start(settings or {})
            ),
            history=History(
                history_limit,
                max_bytes=history_bytes,
                payloads=history_payloads,
                topic_name=self._topic_name,
            ),
            faults=Faults(self._topics_of),
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
            queued_max_request_bytes=queued_max_request_bytes,
            connections_max_idle=connections_max_idle,
            connect=_connect(security),
            security=security,
        )
        if security is not None:
            self._shared.controller.scram_users.add_passwords(security.users, rng)
        self._start_time = start_time
        self._topics = topic_seeds(topics)
        # absolute, as the process may go elsewhere
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

    def __repr__(self) -> str:
        alive = sorted(self._shared.controller.alive)
        return f"<EmbeddedCluster nodes {alive} of {list(self._shared.controller.node_ids)}>"

    # -- life ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start all nodes."""
        if self._entered:
            raise UsageError("an EmbeddedCluster is entered once only; make a new one")
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
            shared.controller.coordinators.spread(shared.controller.alive)
            if self._data is not None:
                shared.transactions.restore(restored_transactions(self._data))
            self._seed()
            for node in shared.nodes.values():  # not before all is there: a client would find half a cluster
                await node.listen()
        except BaseException:
            await self._stop_all()
            raise
        return self

    def _seed(self) -> None:
        for name, seed in self._topics.items():
            if name not in self._shared.controller.topics:  # those in a data directory stay as they are
                self.create_topic(name, **seed.options)
                self.produce(name, *seed.records)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all nodes; returns when every connection is closed.

        Raises `UnusedFaults` for a fault that was never hit, and what a fault's own functions raised, unless an
        exception is on its way already.
        """
        faults = self._shared.faults
        try:
            if exc is None:
                faults.check()
        finally:
            await self._stop_all()

    def _new_transactions(self) -> TransactionCoordinator:
        """They outlive their nodes, as `__transaction_state` does in Kafka."""
        shared, loop = self._shared, asyncio.get_running_loop()
        self._timers = LoopTimers(loop)
        markers = MarkerWriter(shared.controller, self._offsets_ended, self._appended, shared.clock)
        return TransactionCoordinator(shared.controller, self._timers, markers)

    def _new_retention(self) -> Retention:
        shared = self._shared
        retention = Retention(
            shared.controller,
            self._timers,
            shared.clock,
            self._appended,
            interval=self._retention_check_interval,
            everything=self._data_dir is not None,
        )
        cleaner = LogCleaner(
            shared.controller,
            self._timers,
            shared.clock,
            self._appended,
            everything=self._data_dir is not None,
        )

        def configured(topic: Topic) -> None:
            retention.configured(topic)
            cleaner.configured(topic)

        shared.controller.configured = configured
        return retention

    def _offsets_ended(self, partition: int, marker: TransactionMarker) -> None:
        node = self._shared.nodes.get(self._shared.controller.coordinators.offsets_leaders[partition])
        if node is not None:
            node.coordinator.end_transaction(marker.producer.id, partition, commit=marker.commit)

    async def _stop_all(self) -> None:
        # All die in one step, so that even a cancelled exit leaves nothing behind.
        self._shared.ended = True
        self._timers.clear()
        self._shared.controller.journal = NoJournal()  # that nodes end now is nothing to remember
        halted = [(node, node.halt(reserve_port=False)) for node in self._shared.nodes.values()]
        if self._data is not None:
            self._data.close()
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
        """`host:port,host:port,…` of all nodes, also of stopped ones; addresses of IPv6 in brackets."""
        host = f"[{self._advertised_host}]" if ":" in self._advertised_host else self._advertised_host
        return ",".join(f"{host}:{node.port}" for node in self._shared.nodes.values())

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
        """Start a stopped node at its old port. Leaders and coordinators stay where they are now.

        Raises ClosedError after the cluster's end.
        """
        node = self._node(node_id)
        async with self._moving:
            if not node.running:
                await node.start()

    def slow_node(self, node_id: int, delay: float) -> None:
        """Let a node handle every request `delay` seconds later, from now on and over restarts; 0 ends it.

        Requests on one connection wait behind each other, those of different connections don't. In a virtual network
        `Network.set_latency` slows the way instead of the node.
        """
        if delay < 0:
            raise ConfigError("delay", delay, "seconds, 0 or more")
        self._node(node_id).delay = delay

    def _node(self, node_id: int) -> Node:
        node = self._shared.nodes.get(node_id)
        if node is None:
            raise UsageError(f"no node {node_id}; these are: {sorted(self._shared.nodes)}")
        return node


def _check_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "an EmbeddedCluster runs on asyncio's event loop, and none is running (is this trio?): "
            "asyncgroup.testing.KafkaServer runs one in a thread, for every kind of client"
        ) from None


def _check_nodes(nodes: int, **per_node: Sequence[object] | None) -> None:
    if nodes < 1:
        raise ConfigError("nodes", nodes, "1 or more")
    for name, values in per_node.items():
        if values is not None and len(values) != nodes:
            raise ConfigError(name, list(values), f"one for each of {nodes} nodes")


def _check_intervals(**seconds: float) -> None:
    """Raises ConfigError where the loop would do nothing else."""
    for name, value in seconds.items():
        if not value > 0:  # NaN is not, either
            raise ConfigError(name, value, "seconds, more than 0")


def _advertised(host: str, advertised_host: str | None) -> str:
    """As Kafka refuses to advertise `0.0.0.0`."""
    if advertised_host is None and host in {"0.0.0.0", "::"}:
        raise ConfigError("host", host, "only with an advertised host, one that clients can connect to")
    return advertised_host or host


def _connect(security: ListenerSecurity | None) -> Callable[[Node], asyncio.Protocol]:
    """What makes the protocol of a connection; raises ConfigError for certificates that cannot be read."""
    context = None if security is None else security.tls_context()
    return Connection if context is None else lambda node: TlsHandshake(node, context)


def _new_controller(
    nodes: int, rng: random.Random, partitions: int, factor: int | None, settings: Settings
) -> Controller:
    return Controller(
        range(1, nodes + 1),
        rng,
        default_partitions=partitions,
        settings=settings,
        default_replication_factor=min(3, nodes) if factor is None else factor,
    )
