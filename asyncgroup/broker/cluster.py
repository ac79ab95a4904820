"""`EmbeddedCluster`: a Kafka cluster in this process, several nodes on one event loop, for any Kafka client.

    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("orders", 6)
        ...  # cluster.bootstrap_servers

All state changes are synchronous steps on the loop, and only the loop's clock is read: on a virtual-time loop with an
in-memory network the cluster runs in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack
from uuid import UUID

from asyncgroup.broker.arguments import SeedRecord
from asyncgroup.broker.control.faults import Faults
from asyncgroup.broker.control.history import History
from asyncgroup.broker.control.options import ClusterKeywords, ClusterOptions, options_of
from asyncgroup.broker.control.runtime import ClusterRuntime
from asyncgroup.broker.control.seeding import append_records, commit_offsets, topic_seeds
from asyncgroup.broker.control.views import (
    GroupView,
    NodeView,
    PartitionView,
    TopicView,
    TransactionView,
    view_consumer_group,
    view_group,
    view_node,
    view_partition,
    view_topic,
    view_transaction,
)
from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.broker.metadata.topics import Partition, Topic
from asyncgroup.broker.node import Node
from asyncgroup.checks import check_duration_or_zero
from asyncgroup.errors import UsageError
from asyncgroup.model import Header, Record, RecordMetadata, TopicPartition

__all__ = ["EmbeddedCluster"]


class EmbeddedCluster:
    """A cluster with nodes 1 to `nodes`.

    The options are keyword arguments, or one `ClusterOptions` value in place of `nodes`. Entering the context starts the
    nodes; leaving it stops them and closes all connections.

    `host` is the address that nodes listen on, `advertised_host` the one sent to clients (default: `host`; required
    if `host` is 0.0.0.0), `ports` one port per node (default: free ones). A stopped node keeps its port. Durations
    are seconds.

    `topics`: topics to create at the start: `"orders"`, `["orders", "bills"]`, `{"orders": 6}` (partitions), or
    `{"orders": {"partitions": 6, "configs": {"retention.ms": "-1"}, "records": [b"a book", ("ann", "a lamp")]}}`,
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
    returned, NOT_COORDINATOR by coordinators, and the log names the file; an OSError at the start does as well. Batches found damaged on disk are moved aside (`.corrupt`) together
    with all batches after them; damaged metadata is refused (KafkaStorageError).

    `retention_check_interval`: Kafka's `log.retention.check.interval.ms`; a cluster in memory checks only topics
    that have retention settings, see `apply_retention` and `compact`. Compacted logs are cleaned by Kafka's
    rules every `log.cleaner.backoff.ms`, 15 seconds unless that setting of the cluster is altered.

    `initial_rebalance_delay`, `group_min_session_timeout`, `group_max_session_timeout`, `group_max_size`,
    `offsets_retention`, `offsets_retention_check_interval`: Kafka's broker settings of the same names; the defaults
    suit tests. `group_consumer_assignment_interval`, `group_consumer_heartbeat_interval`,
    `group_consumer_max_size`, `group_consumer_session_timeout`: those of groups with the consumer protocol (KIP-848),
    with Kafka's defaults; the configs of a group override them. `group_consumer_migration_policy`: whether a live group may
    become a consumer group (`upgrade`) or a classic one again (`downgrade`); `bidirectional`, the default, allows both,
    `disabled` neither.
    `offsets_append_delay`: time until an append to `__consumer_offsets` is replicated and acknowledged
    (default 0). `offsets_load_delay`: time to load one of its partitions, during which COORDINATOR_LOAD_IN_PROGRESS
    is returned (default 0).

    `transaction_markers_delay`: time from the response to EndTxn to the markers (default 0: both in one step). Until then the
    transaction is in PrepareCommit or PrepareAbort, and requests for the next one get CONCURRENT_TRANSACTIONS, as in Kafka.

    `security`: TLS and SASL on all listeners; None is PLAINTEXT.

    `transaction_version`, `group_version`: the levels of the features `transaction.version` (default 2; 0 and 1 are those
    without KIP-890) and `group.version` (default 1; 0 is without KIP-848), as `kafka-storage format --feature` sets them.
    UpdateFeatures changes them while the cluster runs; levels in `data_dir` that were changed so stay.

    `settings`: topic defaults by the names of Kafka's broker settings, such as `{"log.retention.ms": "60000"}`.
    """

    def __init__(self, nodes: int | ClusterOptions = 1, **options: Unpack[ClusterKeywords]) -> None:
        if not isinstance(nodes, ClusterOptions):
            nodes = options_of(nodes, options)
        elif options:
            raise UsageError(f"{', '.join(options)}: an option may not be given beside ClusterOptions")
        self._runtime = ClusterRuntime(nodes)
        self._inner = self._runtime.state
        self._history = History(self._runtime.recorder, self._runtime.topic_name)
        self._faults = Faults(self._runtime.injector, self._runtime.topics_in)

    def __repr__(self) -> str:
        controller = self._inner.controller
        return f"<EmbeddedCluster nodes {sorted(controller.alive)} of {list(controller.node_ids)}>"

    # -- start and stop --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start all nodes."""
        await self._runtime.start(self._seed)
        return self

    def _seed(self) -> None:
        for name, seed in topic_seeds(self._runtime.options.topics).items():
            if name not in self._inner.controller.topics:  # topics in the data directory are left unchanged
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
                self._runtime.injector.check()
        finally:
            await self._runtime.stop()

    # -- nodes -----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> dict[int, NodeView]:
        """Snapshots of the nodes by id (from 1), including stopped ones."""
        return {node_id: view_node(node) for node_id, node in self._inner.nodes.items()}

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,host:port,…` of all nodes, including stopped ones; IPv6 addresses are in brackets."""
        host = self._runtime.advertised_host
        host = f"[{host}]" if ":" in host else host
        return ",".join(f"{host}:{node.port}" for node in self._inner.nodes.values())

    async def stop_node(self, node_id: int) -> None:
        """Kill a node: its connections and listener are closed; requests parked there get no response.

        Leadership moves to live replicas, if there are any, coordinators to any live node. As in Kafka, the new
        coordinator loads the groups as they were last written: a rebalance in progress starts again.
        """
        node = self._node(node_id)
        async with self._runtime.moving:
            await node.stop()

    async def start_node(self, node_id: int) -> None:
        """Start a stopped node on its old port. Leaders and coordinators stay where they are.

        Raise ClosedError if the cluster has ended.
        """
        node = self._node(node_id)
        async with self._runtime.moving:
            if not node.running:
                await node.start()

    def slow_node(self, node_id: int, delay: float) -> None:
        """Delay every request at a node by `delay` seconds, also after a restart; 0 ends the delay.

        Requests on one connection are delayed one after another, those on different connections concurrently. In a
        virtual network `Network.set_latency` slows down the network instead of the node.
        """
        check_duration_or_zero("delay", delay)
        self._node(node_id).delay = delay

    def _node(self, node_id: int) -> Node:
        node = self._inner.nodes.get(node_id)
        if node is None:
            raise UsageError(f"there is no node {node_id}; the nodes are {sorted(self._inner.nodes)}")
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
        """Create a topic; None means the cluster's default.

        Raise `broker.Refused` with the error code of CreateTopics.
        """
        self._inner.controller.create_topic(
            name,
            -1 if partitions is None else partitions,
            -1 if replication_factor is None else replication_factor,
            configs=configs,
        )

    def create_partitions(self, name: str, total: int) -> None:
        """Increase a topic's partitions to `total`."""
        self._inner.controller.create_partitions(self._topic(name), total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and the offsets committed for it."""
        next(iter(self._inner.nodes.values())).delete_topic(self._topic(name))

    @property
    def topics(self) -> list[str]:
        """The names of all topics, including internal ones."""
        return sorted(self._inner.controller.topics)

    def topic(self, name: str | UUID) -> TopicView:
        """Return a snapshot of a topic and its partitions, by its name or id. Raise UsageError if it does not exist."""
        return view_topic(self._topic(name))

    def _topic(self, name: str | UUID) -> Topic:
        controller = self._inner.controller
        topic = controller.topics.get(name) if isinstance(name, str) else controller.topics_by_id.get(name)
        if topic is None:
            raise UsageError(f"no topic {str(name)!r}; the topics are {self.topics}")
        return topic

    def partition(self, topic: str, partition: int) -> PartitionView:
        """Return a snapshot of a partition: leader, replicas, offsets. Raise UsageError if it does not exist."""
        return view_partition(self._partition(topic, partition))

    def _partition(self, topic: str, partition: int) -> Partition:
        partitions = self._topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise UsageError(f"topic {topic!r} has partitions 0 to {len(partitions) - 1}, not {partition}")
        return partitions[partition]

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Return the decoded records of a topic, or of one partition, ordered by partition and offset.

        Records of open and aborted transactions are included, transaction markers are not.
        """
        partitions = (
            self._topic(topic).partitions if partition is None else [self._partition(topic, partition)]
        )
        return [record for each in partitions for record in read_records(each.log)]

    def produce(
        self,
        topic: str,
        *records: SeedRecord,
        partition: int | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> list[RecordMetadata]:
        """Append records directly, without a client; return their metadata in the order given.

        A record is its value, or a pair of key and value; text is encoded as UTF-8. Records go to `partition`;
        without it, records with a key go where Java's default partitioner puts them, records without one to the
        partitions in turn. `headers` and `timestamp` (ms since 1970, default: now) apply to all records.

        Raise UsageError for a topic or partition that does not exist or has no leader, ConfigError for an invalid key,
        value or timestamp, AppendError where a Produce request would be refused.
        """
        return append_records(
            self._topic(topic),
            records,
            partition=partition,
            headers=headers,
            timestamp=timestamp,
            now=self._inner.clock(),
            on_append=self._runtime.complete_delayed_operations,
        )

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> None:
        """Commit offsets (next to read) for a group without members: `commit("billing", {("orders", 0): 5})`.

        Raise UsageError if a partition does not exist, the group has members (only they may commit), or no node
        coordinates the group; ConfigError for an invalid offset.
        """
        for topic, partition in offsets:
            self._partition(topic, partition)
        commit_offsets(self._inner, group_id, offsets)

    def apply_retention(self) -> None:
        """Delete the segments beyond `retention.ms` and `retention.bytes` of all topics now.

        See `PartitionLog.delete_old_segments`. Kafka's defaults are seven days and no size limit.
        """
        self._runtime.retention.apply()

    def compact(self, topic: str) -> None:
        """Compact a topic now, with any `cleanup.policy`: keep the last record of each key.

        Records from the first open transaction on are not compacted.
        """
        self._runtime.retention.compact(self._topic(topic))

    # -- leaders and coordinators ----------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of the partition's leader, -1 if it has none."""
        return self._partition(topic, partition).leader

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make a live node the leader of a partition."""
        self._inner.controller.move_leader(self._partition(topic, partition), node_id)

    def truncate(self, topic: str, partition: int, offset: int, leader: int | None = None) -> None:
        """Lose the records from `offset` on, as in an unclean leader election of a replica that lacks them.

        The whole batch that holds `offset` is lost. `leader` is the new leader (default: the present one); its
        leader epoch begins at the new log end offset.
        """
        place = self._partition(topic, partition)
        self._inner.controller.truncate(place, offset, place.leader if leader is None else leader)

    def hold_followers(self, topic: str, partition: int) -> None:
        """Stop replication to a partition's followers: records appended from now on stay above the high watermark.

        Consumers do not see them, and acks=all waits for `release_followers` or fails with REQUEST_TIMED_OUT; so do
        the coordinator's writes to `__consumer_offsets` (COORDINATOR_NOT_AVAILABLE after five seconds). The
        followers stay in the ISR however long it takes (Kafka removes them after `replica.lag.time.max.ms`), and a
        new leader has all records.
        """
        log = self._partition(topic, partition).log
        log.follower_end_offset = log.high_watermark

    def release_followers(self, topic: str, partition: int) -> None:
        """Resume replication to a partition's followers; they catch up at once."""
        place = self._partition(topic, partition)
        place.log.follower_end_offset = None
        self._runtime.complete_delayed_operations(place)

    def coordinator(self, group_id: str) -> int:
        """Return the id of the group's coordinator, -1 if it has none."""
        return self._inner.controller.coordinators.group_coordinator(group_id)

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a group.

        As in Kafka, a whole partition of `__consumer_offsets` moves, including any other groups in it; requests
        parked at the old coordinator get NOT_COORDINATOR.
        """
        self._inner.controller.move_coordinator(group_id, node_id)

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the id of the transactional id's coordinator, -1 if it has none."""
        return self._inner.controller.coordinators.transaction_coordinator(transactional_id)

    def move_transaction_coordinator(self, transactional_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a transactional id.

        All other transactional ids in its partition of `__transaction_state` move too.
        """
        self._inner.controller.move_transaction_coordinator(transactional_id, node_id)

    def group(self, group_id: str) -> GroupView:
        """Return a snapshot of a group."""
        node_id = self.coordinator(group_id)
        node = self._inner.nodes.get(node_id)
        if node is None:
            return view_group(group_id, node_id, None, {})
        offsets = node.coordinator.offsets.committed(group_id)
        consumer_groups = node.coordinator.consumer_groups
        if (consumer_group := consumer_groups.get(group_id)) is not None:
            return view_consumer_group(consumer_group, node_id, consumer_groups.topics, offsets)
        return view_group(group_id, node_id, node.coordinator.groups.get(group_id), offsets)

    @property
    def transactions(self) -> dict[str, TransactionView]:
        """Snapshots of the known transactional ids and their transactions."""
        return {name: view_transaction(each) for name, each in self._inner.transactions.transactions.items()}

    @property
    def groups(self) -> list[str]:
        """The ids of all groups that some node coordinates."""
        coordinators = [node.coordinator for node in self._inner.nodes.values()]
        classic = (group_id for each in coordinators for group_id in each.groups)
        consumer = (group.group_id for each in coordinators for group in each.consumer_groups.all())
        return sorted([*classic, *consumer])

    # -- history and faults ----------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """The requests and responses so far."""
        return self._history

    @property
    def faults(self) -> Faults:
        """The injected faults: `cluster.faults.on("Fetch", node=1).error(…)`."""
        return self._faults

    def on_unknown_topic(self, call: Callable[[str], object]) -> None:
        """Call `call(name)` whenever a client requests a topic that never existed and is not created.

        Not for one that a client has tried to create (CreateTopics), and for a client that only finds out whether it exists
        (Metadata without topic creation) only when it repeats that.
        """

        def report(topic: str) -> None:
            if not self._history.of("CreateTopics", topic=topic):
                call(topic)

        self._inner.on_unknown_topic = report
