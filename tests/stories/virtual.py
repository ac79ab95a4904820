"""Environment of stories in virtual time: the embedded cluster and the in-memory network on one loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from asyncgroup import ConsumerConfig
from asyncgroup.broker import EmbeddedCluster, Exchange
from asyncgroup.error_codes import error_name
from asyncgroup.testing import Network, VirtualTimeLoop, current_network
from tests.stories.environment import Environment, Group
from tests.stories.members import LocalMember, Member

__all__ = ["GROUP_APIS", "VirtualEnvironment", "block", "lines", "now", "transcript"]

GROUP_APIS = (
    "FindCoordinator",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "LeaveGroup",
    "OffsetCommit",
    "OffsetFetch",
)

HOST = "10.0.0.1"


def now() -> float:
    """Return the time of the event loop."""
    return asyncio.get_running_loop().time()


def block(seconds: float) -> None:
    """Block the event loop, or suspend the process: the clock moves, and nothing else runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop._set_time(now() + seconds)


class VirtualEnvironment(Environment):
    """Stories on the embedded cluster `cluster`; each member connects from its own host, `host(member)`."""

    limit = 600.0
    session_timeout = 10.0
    heartbeat_interval = 3.0
    refresh_interval = 5.0

    def __init__(self, cluster: EmbeddedCluster, network: Network) -> None:
        super().__init__(cluster.bootstrap_servers, "orders", "g")
        self.cluster = cluster
        self.network = network
        self._hosts: dict[str, str] = {}
        self._closing: list[asyncio.Task[None]] = []
        self._seen = 0
        self.chapters: dict[str, list[str]] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def made(cls, nodes: int = 3, partitions: int = 4, **options: Any) -> Any:
        """Run a cluster and an environment on it."""
        async with EmbeddedCluster(nodes, host=HOST, seed=1, **options) as cluster:
            environment = cls(cluster, current_network())
            cluster.create_topic(environment.topic, partitions)
            async with environment:
                yield environment

    async def __aexit__(self, *error: object) -> None:
        if self._closing:
            await asyncio.wait(self._closing)
        await super().__aexit__(*error)

    def host(self, member: Member) -> str:
        """Return the address from which a member connects."""
        return self._hosts[member.name]

    def _make(self, name: str, config: dict[str, Any], *, frail: bool) -> Member:
        host = self._hosts.setdefault(name, f"10.1.0.{len(self._hosts) + 1}")
        return LocalMember(
            name,
            self.bell,
            self.bootstrap_servers,
            self.group_id,
            ConsumerConfig(**config),
            lambda: self.network.source(host),
        )

    async def crash(self, member: Member) -> None:
        """Drop all packets of the member, abort its connections, and end its tasks."""
        host = self.host(member)
        self.network.blackhole(host)
        self.network.cut(host)
        self._closing.append(asyncio.create_task(member.leave(), name=f"{member.name} dies"))

    async def suspend(self, member: Member) -> None:
        self.network.blackhole(self.host(member))

    async def resume(self, member: Member) -> None:
        self.network.heal(self.host(member))

    async def kill_node(self, node_id: int) -> None:
        await self.cluster.stop_node(node_id)

    async def settled(self, *members: Member) -> Group:
        """Like the base method; also compares the generation and leader in the embedded coordinator."""
        group = await super().settled(*members)
        view = self.cluster.group(self.group_id)
        leaders = [member.name for member in members if member.member_id == view.leader]
        assert (view.generation, leaders) == (group.generation, [group.leader] if self.has_leader else []), (
            view,
            group,
        )
        return group

    def chapter(self, title: str, *, nodes: bool = False) -> None:
        self.chapters[title] = self.requests(nodes=nodes)

    def requests(self, *, nodes: bool = False) -> list[str]:
        """Return the members' requests to coordinators since the last call, as a transcript in order of arrival."""
        exchanges = self.cluster.history.of(*GROUP_APIS)
        new, self._seen = exchanges[self._seen :], len(exchanges)
        return transcript([e for e in new if e.client_id in self._hosts], nodes=nodes)


def lines(text: str) -> list[str]:
    """Split an expected transcript into lines; blank lines and indentation are ignored."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def transcript(exchanges: list[Exchange], *, nodes: bool = False) -> list[str]:
    """Return one line per exchange: client, API, errors in the response; `nodes` adds the node. Repeats become `× n`."""
    lines: list[tuple[str, int]] = []
    for line in (_line(exchange, nodes=nodes) for exchange in exchanges):
        if lines and lines[-1][0] == line:
            lines[-1] = (line, lines[-1][1] + 1)
        else:
            lines.append((line, 1))
    return [line if count == 1 else f"{line} × {count}" for line, count in lines]


def _line(exchange: Exchange, *, nodes: bool) -> str:
    words = [exchange.client_id, exchange.api]
    if exchange.api == "SyncGroup" and exchange.request.assignments:
        words.append("with the plan")
    if exchange.response is None:
        words.append("unanswered")
    else:
        words += [error_name(code) for code in sorted({*_codes(exchange.response)} - {0})]
    if nodes:
        words.append(f"@ {exchange.node_id}")
    return " ".join(words)


def _codes(response: Any) -> Iterator[int]:
    """Yield every error code in a group API's response, including those of nested parts."""
    yield getattr(response, "error_code", 0)
    for name in ("coordinators", "members", "groups", "topics", "partitions"):
        for part in getattr(response, name, ()):
            yield from _codes(part)
