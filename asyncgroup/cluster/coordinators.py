"""Group and transaction coordinators: look them up (FindCoordinator), cache them, and send them requests.

A cached coordinator is used until a request to it fails or the caller reports NOT_COORDINATOR by `mark_unknown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final, NamedTuple, TypeVar

from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.network_client import NetworkClient, RequestBuilder
from asyncgroup.errors import AsyncGroupError, BrokerError, ConnectionLost, ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message, Request

__all__ = ["GROUP", "TRANSACTION", "CoordinatorClient", "CoordinatorMoved"]

GROUP: Final = 0
TRANSACTION: Final = 1
"""Coordinator types (`FindCoordinatorRequest.CoordinatorType`)."""

BATCHED_FROM_VERSION: Final = 4
"""The first FindCoordinator version that takes a list of keys (KIP-699)."""

R = TypeVar("R", bound=Message)

Key = tuple[int, str]
"""Coordinator type and group id (or transactional id)."""


class _Coordinator(NamedTuple):
    """A cached coordinator: its node id, and the number of the lookup that returned it."""

    node_id: int
    lookup: int


class CoordinatorMoved(ConnectionLost):
    """A request was cancelled at a former coordinator because a lookup returned another node."""


class CoordinatorClient:
    """The coordinators of a cluster, by key (a group id or transactional id) and coordinator type.

    `refresh` refreshes the metadata; it is called when a lookup returns a node that `network` does not know.

    When a lookup returns another node than the one before, the requests that still wait at the former coordinator are
    cancelled with CoordinatorMoved, so that the caller can send them to the new one. Java disconnects from the former
    coordinator for the same purpose (`AbstractCoordinator.markCoordinatorUnknown`).
    """

    def __init__(self, network: NetworkClient, refresh: Callable[[], Awaitable[None]]) -> None:
        self._network = network
        self._refresh = refresh
        self._known: dict[Key, _Coordinator] = {}
        self._last_known: dict[Key, int] = {}
        """The node that the last lookup returned; kept by `mark_unknown`."""
        self._stale: dict[Key, int] = {}
        """The node that the next lookup asks last."""
        self._lookups = count(1)
        self._pending: dict[Key, dict[asyncio.Timeout, int]] = {}
        """Requests in flight: the scope that cancels each, and the node that it was sent to."""

    async def find(self, key: str, kind: int = GROUP) -> int:
        """Return the coordinator's node id, looked up once if unknown. Raises BrokerError or NoBrokersError."""
        known = self._known.get((kind, key))
        if known is not None and known.node_id in self._network.view.brokers:
            return known.node_id
        response = await self._network.request_any(
            m.FindCoordinatorRequest,
            lambda version: _request(key, kind, version),
            last=self._stale.get((kind, key)),
        )
        # up to version 3 the result is in the response's own fields, later in a list (KIP-699)
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code:
            raise BrokerError(found.error_code, f"coordinator of {key!r}", found.error_message)
        if found.node_id not in self._network.view.brokers:
            await self._refresh()
        if found.node_id not in self._network.view.brokers:
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"coordinator of {key!r}, node {found.node_id}"
            )
        self._remember((kind, key), found.node_id)
        return found.node_id

    def _remember(self, key: Key, node_id: int) -> None:
        self._stale.pop(key, None)
        self._last_known[key] = node_id
        known = self._known.get(key)
        # if not, a concurrent lookup returned the same node first
        if known is None or known.node_id != node_id:
            self._known[key] = _Coordinator(node_id, next(self._lookups))
        self._cancel_requests_elsewhere(key, node_id)

    def _cancel_requests_elsewhere(self, key: Key, node_id: int) -> None:
        """Cancel the requests of this key that wait at other nodes than the coordinator."""
        now = asyncio.get_running_loop().time()
        pending = self._pending.get(key, {})
        for scope in [scope for scope, node in pending.items() if node != node_id]:
            del pending[scope]
            scope.reschedule(now)

    def lookup_number(self, key: str, kind: int = GROUP) -> int | None:
        """Return the number of the lookup that returned the current coordinator; None while it is unknown.

        Two different numbers mean that the coordinator was looked up in between, even if the node is the same.
        """
        known = self._known.get((kind, key))
        return known.lookup if known is not None else None

    def mark_unknown(self, key: str, node_id: int | None = None, kind: int = GROUP) -> None:
        """Look the coordinator up before the next request; if `node_id` is given, only if that is the coordinator."""
        known = self._known.get((kind, key))
        if known is not None and node_id in (None, known.node_id):
            del self._known[kind, key]

    def mark_stale(self, key: str, kind: int = GROUP) -> None:
        """Like `mark_unknown`, and ask the former coordinator last in the next lookup.

        A broker that was suspended and resumed may still consider itself the coordinator until it has caught up with
        the metadata.
        """
        if (former := self._last_known.get((kind, key))) is not None:
            self._stale[kind, key] = former
        self.mark_unknown(key, kind=kind)

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
        """Send a request to the coordinator of `key`; after a failure the next request looks the coordinator up again.

        Raises BrokerError if there is no coordinator, TransportError (CoordinatorMoved if another node becomes the
        coordinator before the response arrives), ProtocolError.
        """
        return await self.request_versioned(
            key, type(message), lambda _: message, lane=lane, timeout=timeout, highest=highest, kind=kind
        )

    async def request_versioned(
        self,
        key: str,
        cls: type[Request[R]],
        build: RequestBuilder[R],
        *,
        lane: str = CONTROL,
        timeout: float | None = None,
        highest: int | None = None,
        kind: int = GROUP,
    ) -> R:
        """Like `request`, for a message that depends on the version: `build(version)` makes it."""
        node_id = await self.find(key, kind)
        # Without a deadline of its own; `_cancel_requests_elsewhere` makes it expire when the coordinator moves.
        scope = asyncio.timeout(None)
        pending = self._pending.setdefault((kind, key), {})
        try:
            async with scope:
                pending[scope] = node_id
                try:
                    return await self._network.request_versioned(
                        node_id, cls, build, lane=lane, timeout=timeout, highest=highest
                    )
                finally:
                    pending.pop(scope, None)
        except TimeoutError:
            if not scope.expired():
                raise
            # the next request to that node, perhaps for another key, must not wait for the cancelled one
            self._network.pool.abandon_lane(node_id, lane)
            raise CoordinatorMoved(
                f"node {node_id} is no longer the coordinator of {key!r}: "
                f"{cls.NAME.removesuffix('Request')} was cancelled before a response arrived"
            ) from None
        except AsyncGroupError:
            self.mark_unknown(key, node_id, kind)
            raise
        finally:
            if not pending and self._pending.get((kind, key)) is pending:
                del self._pending[kind, key]


def _request(key: str, kind: int, version: int) -> m.FindCoordinatorRequest:
    if version >= BATCHED_FROM_VERSION:
        return m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    return m.FindCoordinatorRequest(key=key, key_type=kind)
