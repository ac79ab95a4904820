"""What the pytest fixtures do, without pytest: a cluster as a test's marker describes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Protocol

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import ClosedError, UsageError
from asyncgroup.testing.kafka_server import KafkaServer
from asyncgroup.testing.loop import current_network
from asyncgroup.testing.network import Network
from asyncgroup.testing.plan import Plan

__all__ = ["Case", "Plan", "VirtualKafka", "running_cluster", "running_server", "running_virtual_cluster"]

STORY_LINES: Final = 60
"""Exchanges that are told of a test that failed."""


class VirtualKafka(EmbeddedCluster):
    """An `EmbeddedCluster` in virtual time and in an in-memory network."""

    @property
    def network(self) -> Network:
        """The network between clients and nodes: latency, cuts, black holes."""
        return current_network()

    async def advance(self, seconds: float) -> None:
        """Let so many seconds of virtual time pass, with all that falls due in them."""
        await asyncio.sleep(seconds)


class Case(Protocol):
    """What a test tells a fixture, and hears from it."""

    def options(self) -> Mapping[str, Any]:
        """The keyword arguments of its `kafka` marker."""

    def failed(self) -> bool:
        """Whether it has failed, so that unused faults are no news."""

    def tells(self, story: Callable[[], str]) -> None:
        """Keep `story`: what to show of the cluster if the test fails."""

    def asked_for_unknown(self, topic: str) -> None:
        """Fail: a client asks for a topic that never existed. Called on the cluster's event loop."""


@asynccontextmanager
async def running_cluster(case: Case) -> AsyncIterator[EmbeddedCluster]:
    """The cluster of an async test, on the loop that runs."""
    plan = Plan.of(case.options())
    async with EmbeddedCluster(**plan.cluster) as cluster:
        _begin(case, plan, cluster)
        yield cluster
        _end(case, cluster)


@asynccontextmanager
async def running_virtual_cluster(case: Case) -> AsyncIterator[VirtualKafka]:
    """The cluster of an async test on a virtual loop."""
    _need_virtual_loop()
    plan = Plan.of(case.options())
    async with VirtualKafka(**plan.cluster) as cluster:
        _begin(case, plan, cluster)
        yield cluster
        _end(case, cluster)


def _begin(case: Case, plan: Plan, cluster: EmbeddedCluster) -> None:
    case.tells(lambda: _story(cluster))
    cluster.faults.strict = True
    if not plan.unknown_topics:
        cluster.on_unknown_topic(case.asked_for_unknown)
    plan.prepare(cluster)


def _end(case: Case, cluster: EmbeddedCluster) -> None:
    if case.failed():
        cluster.faults.clear()


@contextmanager
def running_server(case: Case) -> Iterator[KafkaServer]:
    """The cluster of a test that blocks, in a thread of its own."""
    plan = Plan.of(case.options())
    with KafkaServer(**plan.cluster) as server:
        case.tells(lambda: _server_story(server))
        if not plan.unknown_topics:
            server.call(lambda cluster: cluster.on_unknown_topic(case.asked_for_unknown))
        server.call(plan.prepare)
        yield server
        last = _server_story(server)  # an unused fault is told of when the server has ended
        case.tells(lambda: last)
        if case.failed():
            server.forgive()


def _server_story(server: KafkaServer) -> str:
    try:
        return server.call(_story, timeout=5.0)
    except ClosedError:
        return repr(server)


def _need_virtual_loop() -> None:
    try:
        current_network()
    except UsageError as error:
        raise UsageError(
            "virtual_kafka needs a test on a VirtualTimeLoop. With pytest-asyncio 1.4 or newer an async test gets one "
            "by using the fixture; with anyio the test's `anyio_backend` has to be "
            '("asyncio", {"loop_factory": asyncgroup.testing.VirtualTimeLoop})'
        ) from error


def _story(cluster: EmbeddedCluster) -> str:
    """What the cluster looks like and what it was asked last."""
    lines = [repr(cluster)]
    for group_id in cluster.groups:
        group = cluster.group(group_id)
        lines.append(
            f"group {group_id}: {group.state}, generation {group.generation}, {len(group.members)} members, "
            f"coordinator node {group.coordinator}"
        )
    lines += [repr(fault) for fault in cluster.faults.unused]
    lines.append(f"{len(cluster.history)} requests; the last of them, equal ones folded:")
    return "\n".join([*lines, cluster.history.story(STORY_LINES, fold=True)])
