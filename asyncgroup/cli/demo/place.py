"""Where the demonstration takes place: an embedded cluster, or a running Kafka that is left as it was."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from asyncgroup.cli.admin import Admin
from asyncgroup.cluster import Cluster
from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import finish

__all__ = ["PARTITIONS", "Place", "embedded", "running"]

_log = logging.getLogger("asyncgroup.demo")

PARTITIONS: Final = 6
NODES: Final = 3

REMOVAL_LIMIT: Final = 20.0
"""Seconds that tidying up may take."""


class Place(NamedTuple):
    """A cluster with an empty topic, and the group to read it with."""

    bootstrap_servers: str
    topic: str
    group_id: str
    description: str


@asynccontextmanager
async def embedded() -> AsyncIterator[Place]:
    """A cluster of three nodes in this process."""
    from asyncgroup.broker import EmbeddedCluster

    async with EmbeddedCluster(NODES, history_limit=0) as broker:
        servers = broker.bootstrap_servers
        async with Cluster(servers) as cluster:
            await Admin(cluster).create_topic("flights", PARTITIONS)
        yield Place(servers, "flights", "flights-by-carrier", f"embedded cluster at {servers}")


@asynccontextmanager
async def running(bootstrap_servers: str) -> AsyncIterator[Place]:
    """A Kafka that runs already, with names of our own, which are removed whatever happens."""
    name = f"asyncgroup-demo-{uuid.uuid4().hex[:8]}"
    async with Cluster(bootstrap_servers) as cluster:
        admin = Admin(cluster)
        try:
            await admin.create_topic(name, PARTITIONS)
            brokers = len(cluster.view.brokers)
            where = f"Kafka at {bootstrap_servers}, {brokers} broker{'s'[: brokers != 1]}"
            yield Place(bootstrap_servers, name, name, where)
        finally:
            await finish(asyncio.create_task(_remove(admin, name), name="remove the demo's topic"))


async def _remove(admin: Admin, name: str) -> None:
    for what, removal in (("group", admin.delete_group(name)), ("topic", admin.delete_topic(name))):
        try:
            async with asyncio.timeout(REMOVAL_LIMIT):
                await removal
        except (AsyncGroupError, TimeoutError) as error:
            _log.warning("%s %s was not removed: %s", what, name, error or type(error).__name__)
