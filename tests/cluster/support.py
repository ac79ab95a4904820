"""Helpers of the cluster tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.connecting import connect
from asyncgroup.cluster.connection import Address, Connection
from asyncgroup.config import ClientConfig
from asyncgroup.hooks import Hooks
from asyncgroup.wire import messages as m
from tests.cluster.scripted import PORT, Call, ScriptedCluster

HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
CONFIG = ClientConfig(connect_timeout=10.0, request_timeout=30.0)
HEARTBEAT = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
LIST_GROUPS = m.ListGroupsRequest()


def now() -> float:
    """Return loop time."""
    return asyncio.get_running_loop().time()


def cluster_of(scripted: ScriptedCluster, seed: int = 1, **config: Any) -> ClusterClient:
    """Return a ClusterClient with a seeded random generator."""
    return ClusterClient(scripted.servers, ClientConfig(**config), rng=random.Random(seed))


def lanes_of(client: ClusterClient) -> list[Any]:
    """Return the client's lanes: one connection for each broker and purpose."""
    return list(client.pool._lanes.values())


@asynccontextmanager
async def connected(
    scripted: ScriptedCluster, config: ClientConfig = CONFIG, hooks: Hooks | None = None
) -> AsyncIterator[Connection]:
    """Connect to node 1, and close the connection at the end."""
    connection = await connect(Address(1, scripted[1].host, PORT), "control", config, hooks or Hooks())
    try:
        yield connection
    finally:
        await connection.aclose()


def answer_list_groups(call: Call) -> None:
    """Answer a ListGroups request."""
    call.answer(m.ListGroupsResponse())


class Events:
    """Hooks that record every event."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *values: self.seen.append((name, *values))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """Return the events with this name."""
        return [event for event in self.seen if event[0] == name]
