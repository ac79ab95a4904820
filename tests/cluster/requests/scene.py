"""An embedded cluster in virtual time, and a client of it, for the tests of requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncgroup import TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ClientConfig


@asynccontextmanager
async def opened(nodes: int = 3, **options: Any) -> AsyncIterator[tuple[EmbeddedCluster, ClusterClient]]:
    async with EmbeddedCluster(nodes=nodes, seed=1, **options) as cluster:
        config = ClientConfig(retry_backoff=0.1, retry_backoff_max=1.0)
        async with ClusterClient(cluster.bootstrap_servers, config, rng=random.Random(1)) as client:
            yield cluster, client


def now() -> float:
    return asyncio.get_running_loop().time()


def groups_of(cluster: EmbeddedCluster) -> dict[int, str]:
    """Create a group without members for each node; return it by the node that coordinates it."""
    cluster.create_topic("orders", 1)
    groups: dict[int, str] = {}
    for number in range(100):
        groups.setdefault(cluster.coordinator(f"g{number}"), f"g{number}")
        if len(groups) == len(cluster.nodes):
            break
    for group_id in groups.values():
        cluster.commit(group_id, {TopicPartition("orders", 0): 0})
    assert sorted(groups) == sorted(cluster.nodes)
    return groups
