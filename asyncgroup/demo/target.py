"""The target of the demonstration: an embedded cluster, or new topics on a running Kafka, removed at the end.

`TargetAdmin` has the administrative requests that this needs: create and delete a topic, delete a group.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from asyncgroup.cluster import Cluster
from asyncgroup.cluster.requests.groups import delete_groups
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.topics import NewTopic, create_topics, delete_topics
from asyncgroup.config import ClientConfig
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode
from asyncgroup.lifecycle import wait_shielded

__all__ = ["PARTITIONS", "DemoTarget", "TargetAdmin", "embedded", "running"]

_log = logging.getLogger("asyncgroup.demo")

C = TypeVar("C", bound=ClientConfig)

PARTITIONS: Final = 6
"""Partitions of the topic of flights."""
NODES: Final = 3
"""Nodes of the embedded cluster."""
QUERIES: Final = ("delays", "streaks")
"""The names of the pipeline's queries, with which the ids of their groups end."""

REMOVAL_LIMIT: Final = 20.0
"""Seconds for the removal of each topic or group."""


class DemoTarget(NamedTuple):
    """A cluster, and the names of the topics and groups that the demonstration uses there."""

    bootstrap_servers: str
    topic: str
    """The topic of flights, empty at the start."""
    group_id: str
    description: str
    """The cluster in words, for the screen."""
    properties: Mapping[str, str] = MappingProxyType({})
    """The clients' connection properties (TLS, SASL), by Kafka's names."""

    def config(self, cls: type[C], **keys: object) -> C:
        """Return a configuration for this cluster; `keys` override properties."""
        return cls.from_properties(self.properties, **keys).config

    @property
    def streaks_topic(self) -> str:
        """The topic to which the pipeline writes the streaks."""
        return f"{self.topic}-streaks"

    @property
    def query_group_id(self) -> str:
        """The prefix of the group ids of Spark's queries."""
        return f"{self.group_id}-query"

    @property
    def topics(self) -> dict[str, int]:
        """All topics with their number of partitions."""
        return {self.topic: PARTITIONS, self.streaks_topic: 1}

    @property
    def groups(self) -> list[str]:
        """The ids of all groups."""
        return [self.group_id, *(f"{self.query_group_id}-{query}" for query in QUERIES)]


@asynccontextmanager
async def embedded() -> AsyncIterator[DemoTarget]:
    """Run an embedded cluster of three nodes in this process."""
    from asyncgroup.broker import EmbeddedCluster

    async with EmbeddedCluster(NODES, history_limit=0) as broker:
        servers = broker.bootstrap_servers
        target = DemoTarget(servers, "flights", "flights-by-carrier", f"embedded cluster at {servers}")
        async with Cluster(servers) as cluster:
            await _create(TargetAdmin(cluster), target)
        yield target


@asynccontextmanager
async def running(
    bootstrap_servers: str, properties: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[DemoTarget]:
    """Use a running Kafka, with unique names of topics and groups, which are always removed at the end."""
    name = f"asyncgroup-demo-{uuid.uuid4().hex[:8]}"
    client = ClientConfig.from_properties(properties).config
    async with Cluster(bootstrap_servers, client) as cluster:
        admin = TargetAdmin(cluster)
        brokers = len(cluster.view.brokers)
        where = f"Kafka at {bootstrap_servers}, {brokers} broker{'s'[: brokers != 1]}"
        target = DemoTarget(bootstrap_servers, name, name, where, properties)
        try:
            await _create(admin, target)
            yield target
        finally:
            await wait_shielded(asyncio.create_task(_remove(admin, target), name="remove the demo's topics"))


async def _create(admin: TargetAdmin, target: DemoTarget) -> None:
    for topic, partitions in target.topics.items():
        await admin.create_topic(topic, partitions)


async def _remove(admin: TargetAdmin, target: DemoTarget) -> None:
    groups = [("group", name, admin.delete_group) for name in target.groups]
    topics = [("topic", name, admin.delete_topic) for name in target.topics]
    for what, name, remove in (*groups, *topics):
        try:
            async with asyncio.timeout(REMOVAL_LIMIT):
                await remove(name)
        except (AsyncGroupError, TimeoutError) as error:
            _log.warning("%s %s was not removed: %s", what, name, error or type(error).__name__)


# --- requests ----------------------------------------------------------------------------------------------------------


class TargetAdmin:
    """Administrative requests on an open Cluster. All methods raise BrokerError and TransportError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client = cluster._inner

    async def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic, and wait until the metadata has a leader for every partition."""
        (await create_topics(self._client, {name: NewTopic(partitions)})).require()
        await self._cluster.topics([name])

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; no error if it does not exist."""
        _check(await delete_topics(self._client, [name]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members; no error if it does not exist."""
        _check(await delete_groups(self._client, [group_id]), ErrorCode.GROUP_ID_NOT_FOUND)


def _check(results: Results[str, None], missing: ErrorCode) -> None:
    """Raise the error of a deletion, unless it says that there was nothing to delete."""
    for error in results.errors.values():
        if not isinstance(error, BrokerError) or error.code != missing:
            raise error
