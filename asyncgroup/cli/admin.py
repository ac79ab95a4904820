"""The administrative requests that the demonstration needs: create and delete a topic, delete a group."""

from __future__ import annotations

from typing import Final

from asyncgroup.cluster import Cluster, client_of
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.wire import messages as m

__all__ = ["Admin"]

TIMEOUT_MS: Final = 30_000
BROKER_DEFAULT: Final = -1
"""The replication factor that stands for the broker's default (KIP-464)."""
TOPIC_STATES_VERSION: Final = 6
"""The first version of DeleteTopics that names topics by structures instead of strings (KIP-516)."""


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
        response = await self._client.request_versioned(controller, m.DeleteTopicsRequest, build)
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
