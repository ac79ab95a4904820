"""The work of the pytest fixtures, independent of pytest: run a cluster with the options of a test's `kafka` marker.

Each context manager starts a cluster, creates its topics and faults, registers a report of the cluster for failed tests,
and at the end checks for unused faults, unless the test has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Protocol

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import ClosedError, UsageError
from asyncgroup.testing.kafka_server import KafkaServer
from asyncgroup.testing.kit.marker_options import MarkerOptions
from asyncgroup.testing.virtual.loop import current_network
from asyncgroup.testing.virtual.network import Network

__all__ = [
    "REPORT_LINES",
    "TestContext",
    "VirtualKafka",
    "need_virtual_loop",
    "running_cluster",
    "running_server",
    "running_virtual_cluster",
]

REPORT_LINES: Final = 60
"""The number of exchanges in the report of a failed test."""


class VirtualKafka(EmbeddedCluster):
    """An `EmbeddedCluster` in virtual time and in an in-memory network."""

    @property
    def network(self) -> Network:
        """The network between clients and nodes, for latency, cuts and black holes."""
        return current_network()

    async def advance(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass; timers that are due in them run."""
        await asyncio.sleep(seconds)


class TestContext(Protocol):
    """The test, or test session, that uses a fixture."""

    def options(self) -> Mapping[str, Any]:
        """Return the keyword arguments of its marker."""

    def failed(self) -> bool:
        """Return whether the test has failed; unused faults are not reported then."""

    def set_report(self, report: Callable[[], str]) -> None:
        """Set the function that describes the cluster if the test fails."""

    def on_unknown_topic(self, topic: str) -> None:
        """Fail the test: a client requested a topic that never existed. Called on the cluster's event loop."""


@asynccontextmanager
async def running_cluster(context: TestContext) -> AsyncIterator[EmbeddedCluster]:
    """Run the cluster of an async test on the running event loop."""
    options = MarkerOptions.parse(context.options())
    async with EmbeddedCluster(options.cluster) as cluster:
        _begin(context, options, cluster)
        yield cluster
        _end(context, cluster)


@asynccontextmanager
async def running_virtual_cluster(context: TestContext) -> AsyncIterator[VirtualKafka]:
    """Run the cluster of an async test on a virtual-time loop."""
    need_virtual_loop("virtual_kafka")
    options = MarkerOptions.parse(context.options())
    async with VirtualKafka(options.cluster) as cluster:
        _begin(context, options, cluster)
        yield cluster
        _end(context, cluster)


def _begin(context: TestContext, options: MarkerOptions, cluster: EmbeddedCluster) -> None:
    context.set_report(lambda: _describe(cluster))
    cluster.faults.strict = True
    if not options.unknown_topics:
        cluster.on_unknown_topic(context.on_unknown_topic)
    options.apply_faults(cluster)


def _end(context: TestContext, cluster: EmbeddedCluster) -> None:
    if context.failed():
        cluster.faults.clear()


@contextmanager
def running_server(context: TestContext) -> Iterator[KafkaServer]:
    """Run the cluster of a blocking test in a separate thread."""
    options = MarkerOptions.parse(context.options())
    with KafkaServer(options.cluster) as server:
        context.set_report(lambda: _describe_server(server))
        if not options.unknown_topics:
            server.call(lambda cluster: cluster.on_unknown_topic(context.on_unknown_topic))
        server.call(options.apply_faults)
        yield server
        last = _describe_server(server)  # unused faults are reported after the server has stopped
        context.set_report(lambda: last)
        if context.failed():
            server.ignore_unused_faults()


def _describe_server(server: KafkaServer) -> str:
    try:
        return server.call(_describe, timeout=5.0)
    except ClosedError:
        return repr(server)


def need_virtual_loop(fixture: str) -> None:
    """Raise UsageError if the test of a fixture has no event loop in virtual time."""
    try:
        current_network()
    except UsageError as error:
        raise UsageError(
            f"{fixture} needs a test on a VirtualTimeLoop. With pytest-asyncio 1.4 or newer, an async test that uses "
            "the fixture runs on one; with anyio, the test's `anyio_backend` has to be "
            '("asyncio", {"loop_factory": asyncgroup.testing.VirtualTimeLoop})'
        ) from error


def _describe(cluster: EmbeddedCluster) -> str:
    """Describe the cluster, its groups, unused faults and last requests."""
    lines = [repr(cluster)]
    for group_id in cluster.groups:
        group = cluster.group(group_id)
        lines.append(
            f"group {group_id}: {group.state}, generation {group.generation}, {len(group.members)} members, "
            f"coordinator node {group.coordinator}"
        )
    lines += [repr(fault) for fault in cluster.faults.unused]
    lines.append(f"{len(cluster.history)} requests; the last of them, repeated ones folded:")
    return "\n".join([*lines, cluster.history.story(REPORT_LINES, fold=True)])
