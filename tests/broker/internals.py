"""The one way into a cluster's private state, for tests of what its public methods do not show."""

from __future__ import annotations

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.metadata.topics import Partition, Topic
from asyncgroup.broker.node import Node
from asyncgroup.broker.storage.data_directory import DataDirectory
from asyncgroup.broker.transactions.coordinator import TransactionCoordinator

__all__ = [
    "complete_delayed_operations",
    "controller_of",
    "data_of",
    "log_of",
    "node_of",
    "nodes_of",
    "offsets_partition_of",
    "partition_in",
    "topic_of",
    "transactions_of",
]


def controller_of(cluster: EmbeddedCluster) -> Controller:
    """Return the controller."""
    return cluster._inner.controller


def transactions_of(cluster: EmbeddedCluster) -> TransactionCoordinator:
    """Return the transaction coordinator of a running cluster."""
    return cluster._inner.transactions


def data_of(cluster: EmbeddedCluster) -> DataDirectory:
    """Return the data directory of a running cluster on disk."""
    assert cluster._runtime.data is not None
    return cluster._runtime.data


def nodes_of(cluster: EmbeddedCluster) -> list[Node]:
    """Return the nodes, ordered by id."""
    return list(cluster._inner.nodes.values())


def node_of(cluster: EmbeddedCluster, node_id: int = 1) -> Node:
    """Return a node."""
    return cluster._inner.nodes[node_id]


def topic_of(cluster: EmbeddedCluster, name: str) -> Topic:
    """Return a topic."""
    return cluster._topic(name)


def partition_in(cluster: EmbeddedCluster, topic: str, partition: int) -> Partition:
    """Return a partition."""
    return cluster._partition(topic, partition)


def log_of(cluster: EmbeddedCluster, topic: str, partition: int) -> PartitionLog:
    """Return the log of a partition."""
    return partition_in(cluster, topic, partition).log


def offsets_partition_of(cluster: EmbeddedCluster, group_id: str) -> int:
    """Return the partition of `__consumer_offsets` that stores the group."""
    return controller_of(cluster).coordinators.offsets_partition(group_id)


def complete_delayed_operations(cluster: EmbeddedCluster, partition: Partition) -> None:
    """Check the requests parked for the partition, after its log has been changed from outside."""
    cluster._runtime.complete_delayed_operations(partition)
