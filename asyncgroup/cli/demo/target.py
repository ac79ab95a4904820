"""The target of the demonstration: an embedded cluster, or new topics on a running Kafka, removed at the end.

`Admin` has the administrative requests that this needs: create and delete a topic, delete a group.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from asyncgroup.cluster import Cluster, client_of
from asyncgroup.config import ClientConfig
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode
from asyncgroup.lifecycle import wait_shielded
from asyncgroup.wire import messages as m

__all__ = ["PARTITIONS", "Admin", "DemoTarget", "embedded", "running"]

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

TIMEOUT_MS: Final = 30_000
BROKER_DEFAULT: Final = -1
"""The replication factor that stands for the broker's default (KIP-464)."""
TOPIC_STATES_VERSION: Final = 6
"""The first version of DeleteTopics that names topics by structures instead of strings (KIP-516)."""


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
            await _create(Admin(cluster), target)
        yield target


@asynccontextmanager
async def running(
    bootstrap_servers: str, properties: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[DemoTarget]:
    """Use a running Kafka, with unique names of topics and groups, which are always removed at the end."""
    name = f"asyncgroup-demo-{uuid.uuid4().hex[:8]}"
    client = ClientConfig.from_properties(properties).config
    async with Cluster(bootstrap_servers, client) as cluster:
        admin = Admin(cluster)
        brokers = len(cluster.view.brokers)
        where = f"Kafka at {bootstrap_servers}, {brokers} broker{'s'[: brokers != 1]}"
        target = DemoTarget(bootstrap_servers, name, name, where, properties)
        try:
            await _create(admin, target)
            yield target
        finally:
            await wait_shielded(asyncio.create_task(_remove(admin, target), name="remove the demo's topics"))


async def _create(admin: Admin, target: DemoTarget) -> None:
    for topic, partitions in target.topics.items():
        await admin.create_topic(topic, partitions)


async def _remove(admin: Admin, target: DemoTarget) -> None:
    groups = [("group", name, admin.delete_group) for name in target.groups]
    topics = [("topic", name, admin.delete_topic) for name in target.topics]
    for what, name, remove in (*groups, *topics):
        try:
            async with asyncio.timeout(REMOVAL_LIMIT):
                await remove(name)
        except (AsyncGroupError, TimeoutError) as error:
            _log.warning("%s %s was not removed: %s", what, name, error or type(error).__name__)


# --- requests ----------------------------------------------------------------------------------------------------------


class Admin:
    """Administrative requests on an open Cluster. All methods raise BrokerError and TransportError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client = client_of(cluster)

    async def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic, and wait until the metadata has a leader for every partition."""
        topic = m.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=BROKER_DEFAULT
        )
        request = m.CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        response = await self._cluster.request(await self._controller(), request)
        for result in response.topics:
            _check(result.error_code, f"creating topic {name!r}", result.error_message)
        await self._cluster.topics([name])

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; no error if it does not exist."""

        def build(version: int) -> m.DeleteTopicsRequest:
            if version >= TOPIC_STATES_VERSION:
                states = [m.DeleteTopicsRequest.DeleteTopicState(name=name)]
                return m.DeleteTopicsRequest(topics=states, timeout_ms=TIMEOUT_MS)
            return m.DeleteTopicsRequest(topic_names=[name], timeout_ms=TIMEOUT_MS)

        controller = await self._controller()
        response = await self._client.network.request_versioned(controller, m.DeleteTopicsRequest, build)
        for result in response.responses:
            if result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                _check(result.error_code, f"deleting topic {name!r}", result.error_message)

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members; no error if it does not exist."""
        request = m.DeleteGroupsRequest(groups_names=[group_id])
        response = await self._cluster.coordinators.request(group_id, request)
        for result in response.results:
            if result.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                _check(result.error_code, f"deleting group {group_id!r}")

    async def _controller(self) -> int:
        """Return the node id of the controller, or of any broker if the controller is not in the metadata.

        A KRaft broker forwards such requests to the controller.
        """
        await self._cluster.refresh()
        view = self._cluster.view
        return view.controller_id if view.controller_id in view.brokers else next(iter(view.brokers))


def _check(code: int, what: str, detail: str | None = None) -> None:
    if code:
        raise BrokerError(code, what, detail)
