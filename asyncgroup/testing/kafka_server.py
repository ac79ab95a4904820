"""The embedded cluster for blocking code: it runs in a separate thread and has plain, thread-safe methods.

with KafkaServer(nodes=3) as kafka:
    kafka.create_topic("orders", 6)
    ...  # any client at kafka.bootstrap_servers: confluent-kafka, Java, Spark
    kafka.stop_node(1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Unpack

from asyncgroup.broker import ClusterOptions, EmbeddedCluster, Exchange, GroupView
from asyncgroup.broker.arguments import SeedRecord
from asyncgroup.broker.control.options import ClusterKeywords
from asyncgroup.model import Header, Record, RecordMetadata, TopicPartition
from asyncgroup.testing.server_facades import ServerFaults, ServerHistory
from asyncgroup.testing.threaded_server import ThreadedServer

__all__ = ["KafkaServer"]


class KafkaServer(ThreadedServer[EmbeddedCluster]):
    """An `EmbeddedCluster` on an event loop in a separate thread; options are those of `EmbeddedCluster`.

    `faults` and `history` are as there, but a fault is created in one call, `faults.on("Fetch", nth=2, delay=1.0)` (the
    options: `asyncgroup.testing.fault_options.FaultOptions`), and `wait_hit` and `wait_for` have a `timeout`.

    A context manager that can be entered once. Every method may be called from any thread and blocks until it is done.
    `call` gives access to the cluster's other methods. Leaving the context raises what leaving the cluster raises, such
    as `UnusedFaults` for a fault that was never hit.
    """

    def __init__(self, nodes: int | ClusterOptions = 1, **options: Unpack[ClusterKeywords]) -> None:
        cluster = EmbeddedCluster(nodes, **options)
        cluster.faults.strict = True
        super().__init__(cluster)
        self.faults: Final = ServerFaults(self._thread.call)
        """Faults to inject: `kafka.faults.on(api="Fetch", node=1, error="NOT_LEADER_OR_FOLLOWER")`."""
        self.history: Final = ServerHistory[Exchange](self._thread.call)
        """The requests and responses so far."""

    # -- nodes -----------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,host:port,…` of all nodes, including stopped ones."""
        return self.call(lambda cluster: cluster.bootstrap_servers)

    def stop_node(self, node_id: int) -> None:
        """Kill a node; see `EmbeddedCluster.stop_node`."""
        self.call(lambda cluster: cluster.stop_node(node_id))

    def start_node(self, node_id: int) -> None:
        """Start a stopped node, on the same port as before."""
        self.call(lambda cluster: cluster.start_node(node_id))

    def slow_node(self, node_id: int, delay: float) -> None:
        """Delay every request of a node by `delay` seconds; 0 removes the delay."""
        self.call(lambda cluster: cluster.slow_node(node_id, delay))

    # -- topics ----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        *,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; None means the cluster's default. Raises `broker.Refused` with CreateTopics' errors."""
        self.call(lambda c: c.create_topic(name, partitions, replication_factor, configs=configs))

    def create_partitions(self, name: str, total: int) -> None:
        """Increase a topic's number of partitions to `total`."""
        self.call(lambda cluster: cluster.create_partitions(name, total))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and the offsets committed for it."""
        self.call(lambda cluster: cluster.delete_topic(name))

    def produce(
        self,
        topic: str,
        *records: SeedRecord,
        partition: int | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> list[RecordMetadata]:
        """Append records to a topic directly, without a client; see `EmbeddedCluster.produce`."""
        return self.call(
            lambda c: c.produce(topic, *records, partition=partition, headers=headers, timestamp=timestamp)
        )

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> None:
        """Commit offsets of a group that has no members; see `EmbeddedCluster.commit`."""
        self.call(lambda cluster: cluster.commit(group_id, offsets))

    def records(self, topic: str, partition: int | None = None) -> Sequence[Record]:
        """Return the records of a topic or of one partition, decoded, ordered by partition and offset."""
        return self.call(lambda cluster: cluster.records(topic, partition))

    # -- leaders, coordinators, groups -----------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> int:
        """Return the node id of a partition's leader, -1 if it is leaderless."""
        return self.call(lambda cluster: cluster.leader(topic, partition))

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make a live node the leader of a partition."""
        self.call(lambda cluster: cluster.move_leader(topic, partition, node_id))

    def coordinator(self, group_id: str) -> int:
        """Return the node id of a group's coordinator, -1 if there is none."""
        return self.call(lambda cluster: cluster.coordinator(group_id))

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a group."""
        self.call(lambda cluster: cluster.move_coordinator(group_id, node_id))

    def group(self, group_id: str) -> GroupView:
        """Return a snapshot of a group."""
        return self.call(lambda cluster: cluster.group(group_id))

    @property
    def groups(self) -> list[str]:
        """The ids of all groups that have a coordinator."""
        return self.call(lambda cluster: cluster.groups)
