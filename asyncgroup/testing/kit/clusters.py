"""The work of the pytest fixtures for Kafka, independent of pytest: run a cluster with the options of a test's `kafka` marker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TypeVar

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.testing.kafka_server import KafkaServer
from asyncgroup.testing.kit.marker_options import MarkerOptions
from asyncgroup.testing.kit.running import (
    TestContext,
    VirtualTimeMembers,
    need_virtual_loop,
    running_on_loop,
    running_thread,
)

__all__ = ["VirtualKafka", "running_cluster", "running_server", "running_virtual_cluster"]

ClusterT = TypeVar("ClusterT", bound=EmbeddedCluster)


class VirtualKafka(VirtualTimeMembers, EmbeddedCluster):
    """An `EmbeddedCluster` in virtual time and in an in-memory network."""


def running_cluster(context: TestContext) -> AbstractAsyncContextManager[EmbeddedCluster]:
    """Run the cluster of an async test on the running event loop."""
    options = MarkerOptions.parse(context.options())
    return running_on_loop(context, options, _strict(EmbeddedCluster(options.cluster)), _groups)


def running_virtual_cluster(context: TestContext) -> AbstractAsyncContextManager[VirtualKafka]:
    """Run the cluster of an async test on a virtual-time loop."""
    need_virtual_loop("virtual_kafka")
    options = MarkerOptions.parse(context.options())
    return running_on_loop(context, options, _strict(VirtualKafka(options.cluster)), _groups)


def running_server(context: TestContext) -> AbstractContextManager[KafkaServer]:
    """Run the cluster of a blocking test in a separate thread."""
    options = MarkerOptions.parse(context.options())
    return running_thread(context, options, KafkaServer(options.cluster), _groups)


def _strict(cluster: ClusterT) -> ClusterT:
    cluster.faults.strict = True
    return cluster


def _groups(cluster: EmbeddedCluster) -> Iterator[str]:
    """Describe the groups of a cluster, a line each."""
    for group_id in cluster.groups:
        group = cluster.group(group_id)
        yield (
            f"group {group_id}: {group.state}, generation {group.generation}, {len(group.members)} members, "
            f"coordinator node {group.coordinator}"
        )
