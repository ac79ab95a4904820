"""Which node coordinates a group: looked up on the least-loaded node, remembered until it disclaims it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from asyncgroup.cluster.lanes import CONTROL
from asyncgroup.cluster.network_client import Build, NetworkClient
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message, Request

__all__ = ["GROUP", "TRANSACTION", "Coordinators"]

GROUP: Final = 0
TRANSACTION: Final = 1
"""Kinds of coordinators (`FindCoordinatorRequest.CoordinatorType`)."""

BATCHED: Final = 4
"""The FindCoordinator version from which several keys fit one request (KIP-699)."""

R = TypeVar("R", bound=Message)


class Coordinators:
    """The coordinators of a cluster, by key (a group id) and kind.

    `refresh` is asked for new metadata when a coordinator is a node that `client` does not know.
    """

    def __init__(self, client: NetworkClient, refresh: Callable[[], Awaitable[None]]) -> None:
        self._client, self._refresh = client, refresh
        self._nodes: dict[tuple[int, str], int] = {}

    async def find(self, key: str, kind: int = GROUP) -> int:
        """The coordinator's node id. One lookup, no retries: raises BrokerError or NoBrokersError."""
        known = self._nodes.get((kind, key))
        if known is not None and known in self._client.view.brokers:
            return known
        response = await self._client.request_any(
            m.FindCoordinatorRequest, lambda version: _request(key, kind, version)
        )
        # up to version 3 the one answer stands in the message itself, later in a list (KIP-699)
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code:
            raise BrokerError(found.error_code, f"coordinator of {key!r}", found.error_message)
        if found.node_id not in self._client.view.brokers:
            await self._refresh()
        if found.node_id not in self._client.view.brokers:
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"coordinator of {key!r}, node {found.node_id}"
            )
        self._nodes[kind, key] = found.node_id
        return found.node_id

    def forget(self, key: str, node_id: int | None = None, kind: int = GROUP) -> None:
        """Look the coordinator up again next time (only if it still is `node_id`, where one is given)."""
        if node_id is None or self._nodes.get((kind, key)) == node_id:
            self._nodes.pop((kind, key), None)

    async def request(
        self,
        key: str,
        message: Request[R],
        *,
        lane: str = CONTROL,
        timeout: float | None = None,
        highest: int | None = None,
        kind: int = GROUP,
    ) -> R:
        """Send a request to the coordinator of `key`; a failure makes it be looked up again next time.

        Raises BrokerError where there is no coordinator, TransportError, ProtocolError.
        """
        return await self.request_built(
            key, type(message), lambda _: message, lane=lane, timeout=timeout, highest=highest, kind=kind
        )

    async def request_built(
        self,
        key: str,
        cls: type[Request[R]],
        build: Build[R],
        *,
        lane: str = CONTROL,
        timeout: float | None = None,
        highest: int | None = None,
        kind: int = GROUP,
    ) -> R:
        """As `request`, for messages that differ by version."""
        node_id = await self.find(key, kind)
        try:
            return await self._client.request_built(
                node_id, cls, build, lane=lane, timeout=timeout, highest=highest
            )
        except AsyncGroupError:
            self.forget(key, node_id, kind)
            raise


def _request(key: str, kind: int, version: int) -> m.FindCoordinatorRequest:
    if version >= BATCHED:
        return m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    return m.FindCoordinatorRequest(key=key, key_type=kind)
