"""What the pytest fixtures do, without pytest: a cluster as a test's marker describes it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.testing.fault_options import make_fault
from asyncgroup.testing.kafka_server import KafkaServer
from asyncgroup.testing.loop import current_network
from asyncgroup.testing.network import Network

__all__ = ["Case", "Plan", "VirtualKafka", "running_cluster", "running_server", "running_virtual_cluster"]

_CLUSTER_OPTIONS: Final = frozenset(inspect.signature(EmbeddedCluster).parameters)
_OWN_OPTIONS: Final = frozenset({"topics", "faults", "slow", "max_virtual_time"})
_TOPIC_OPTIONS: Final = frozenset({"partitions", "replication_factor", "configs"})

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A cluster as a marker describes it: `cluster` are EmbeddedCluster's own options, `topics` create_topic's by
    name, `faults` make_fault's, `slow` seconds by node.
    """

    cluster: dict[str, Any] = field(default_factory=dict)
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: Sequence[Mapping[str, Any]] = ()
    slow: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The plan of a marker's keyword arguments; ConfigError for those that there are not."""
        for name, value in options.items():
            if name not in _CLUSTER_OPTIONS | _OWN_OPTIONS:
                allowed = ", ".join(sorted(_CLUSTER_OPTIONS | _OWN_OPTIONS))
                raise ConfigError(name, value, f"the options of @pytest.mark.kafka are {allowed}")
        faults = options.get("faults", ())
        return cls(
            cluster={name: value for name, value in options.items() if name in _CLUSTER_OPTIONS},
            topics=_topics(options.get("topics", ())),
            faults=[faults] if isinstance(faults, Mapping) else list(faults),
            slow=options.get("slow", {}),
        )

    def prepare(self, cluster: EmbeddedCluster) -> None:
        """Make the topics and faults in a cluster that has just started."""
        for name, options in self.topics.items():
            cluster.create_topic(name, **options)
        for node_id, delay in self.slow.items():
            cluster.slow_node(node_id, delay)
        for fault in self.faults:
            make_fault(cluster.faults, **fault)


def _topics(given: object) -> dict[str, dict[str, Any]]:
    """`"orders"`, `["orders", "bills"]`, `{"orders": 6}` or `{"orders": {"partitions": 6, "configs": {…}}}`."""
    if isinstance(given, str):
        return {given: {}}
    if not isinstance(given, Mapping):
        return {str(name): {} for name in given} if isinstance(given, Sequence) else _no_topics(given)
    topics = {}
    for name, what in given.items():
        options = dict(what) if isinstance(what, Mapping) else {"partitions": what}
        if unknown := options.keys() - _TOPIC_OPTIONS:
            raise ConfigError(
                "topics", given, f"a topic has {', '.join(sorted(_TOPIC_OPTIONS))}, not {unknown}"
            )
        topics[name] = options
    return topics


def _no_topics(given: object) -> dict[str, dict[str, Any]]:
    if given is None:
        return {}
    raise ConfigError("topics", given, "a name, a list of names, or partitions by name")


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
    count = len(cluster.history)
    lines.append(
        f"the last {STORY_LINES} of {count} requests:" if count > STORY_LINES else f"{count} requests:"
    )
    return "\n".join([*lines, cluster.history.story(STORY_LINES)])
