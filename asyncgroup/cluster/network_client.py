"""Requests to the nodes of one cluster: to one that is named, or to whichever answers first (Java's `NetworkClient`)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeAlias, TypeVar

from asyncgroup.checks import parse_servers
from asyncgroup.cluster.backoff import Backoff
from asyncgroup.cluster.connection import Address, Connection
from asyncgroup.cluster.connection_pool import CONTROL, ConnectionPool
from asyncgroup.cluster.hedged_requests import HedgedRequests
from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.cluster.transport import canonical_names
from asyncgroup.config import ClientConfig
from asyncgroup.errors import ClosedError, NoBrokersError, UnsupportedVersionError
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import BackgroundTasks
from asyncgroup.wire.message import Message, Request

__all__ = ["NetworkClient", "RequestBuilder"]

R = TypeVar("R", bound=Message)

RequestBuilder: TypeAlias = Callable[[int], Request[R]]
"""Makes a request for a version."""


class NetworkClient:
    """The connections of one client; `view` is what it knows of the cluster, and where it finds the nodes' addresses.

    Raises ConfigError for a malformed `bootstrap_servers`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        config: ClientConfig | None = None,
        *,
        hooks: Iterable[object] | Hooks = (),
        rng: random.Random | None = None,
    ) -> None:
        self.config = ClientConfig.of(config)
        self.hooks = hooks if isinstance(hooks, Hooks) else Hooks(hooks)
        self.view = ClusterView()
        self.random = rng or random.Random()
        servers = parse_servers(bootstrap_servers)
        self._bootstrap = [Address(-1 - index, host, port) for index, (host, port) in enumerate(servers)]
        self._tasks = BackgroundTasks("Cluster")
        self._pool = ConnectionPool(self._tasks, self.config, self.hooks, self.random)
        self._hedged = HedgedRequests(lambda node: self._pool.mark_slow(node.node_id))

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._tasks.is_open

    @property
    def last_response_at(self) -> float:
        """Loop time at which any broker last answered anything; minus infinity before the first answer."""
        return self._pool.last_responses.last

    def backoff(self) -> Backoff:
        """A new backoff with the configured pauses."""
        return Backoff(self.config.retry_backoff, self.config.retry_backoff_max, self.random)

    def metadata_backoff(self) -> Backoff:
        """A new backoff for lookups: the configured function's pauses, where there is one."""
        config = self.config
        return Backoff(
            config.retry_backoff, config.retry_backoff_max, self.random, config.metadata_retry_backoff
        )

    async def _resolve_bootstrap(self) -> None:
        """Put canonical names in place of the bootstrap addresses, if the configuration asks for it (KIP-235)."""
        if self.config.client_dns_lookup != "resolve_canonical_bootstrap_servers_only":
            return
        deadline = asyncio.get_running_loop().time() + self.config.connect_timeout
        places = [
            (name, address.port)
            for address in self._bootstrap
            for name in await canonical_names(address.host, address.port, deadline)
        ]
        unique = dict.fromkeys(places)
        self._bootstrap = [Address(-1 - index, host, port) for index, (host, port) in enumerate(unique)]

    # --- requests -----------------------------------------------------------------------------------------------

    def _address(self, node_id: int) -> Address:
        if -len(self._bootstrap) <= node_id < 0:
            return self._bootstrap[-1 - node_id]
        broker = self.view.brokers.get(node_id)
        if broker is None:
            raise NoBrokersError(
                f"node {node_id} is not among the cluster's brokers {sorted(self.view.brokers)}"
            )
        return Address(node_id, broker.host, broker.port)

    async def connection(self, node_id: int, lane: str = CONTROL) -> Connection:
        """The connection of a lane to a node, made if there is none. Raises NoBrokersError, ConnectError, ClosedError."""
        if not self._tasks.is_open:
            raise ClosedError(f"{self!r} is not open")
        return await self._pool.connection(self._address(node_id), lane)

    def limit_reconnect_backoff(self, seconds: float) -> None:
        """Wait at most so long before another attempt to connect to a node; the least limit counts, for all lanes.

        For those who are expelled when they are silent: a member of a group, whose coordinator may be any node, and who
        may have to ask any node for it.
        """
        self._pool.limit_reconnect_backoff(seconds)

    def abandon_lane(self, node_id: int, lane: str) -> None:
        """Nobody waits any more for what is under way on a lane: the next request goes by another connection.

        A broker serves a connection one request at a time, so it would not be looked at before a parked poll is over.
        The connection ends with the poll's answer.
        """
        self._pool.abandon(node_id, lane)

    def abort_lane(self, lane: str) -> None:
        """Close the connections of a lane to all nodes: what is under way there is not waited for any more."""
        self._pool.abort_purpose(lane)

    def acquire_lane(self, lane: str) -> None:
        """Say that one more client uses a lane which several share, until `release_lane`."""
        self._pool.acquire(lane)

    def release_lane(self, lane: str) -> None:
        """Undo one `acquire_lane`; after the last one the lane's connections close when nothing is under way on them."""
        self._pool.release(lane)

    def retire_lanes(self, lanes: Collection[str], node_id: int | None = None) -> None:
        """Close the connections of lanes (to one node) that nobody uses any more, once nothing is under way on them."""
        self._pool.retire_purposes(lanes, node_id)

    def in_flight(self, node_id: int, lane: str = CONTROL) -> int:
        """Requests of a lane whose response has not come yet: the next one is served after them."""
        return self._pool.in_flight(node_id, lane)

    def received_bytes(self, node_id: int, lane: str = CONTROL) -> int:
        """Bytes that a lane's present connection has received, those of unfinished responses included."""
        return self._pool.received_bytes(node_id, lane)

    def mark_slow(self, node_id: int) -> None:
        """Send lookups to other nodes first until this one, which owes an answer for too long, answers something."""
        self._pool.mark_slow(node_id)

    async def request(
        self,
        node_id: int,
        message: Request[R],
        *,
        lane: str = CONTROL,
        timeout: float | None = None,
        highest: int | None = None,
    ) -> R:
        """Send a request to a node in the newest version that both sides know (at most `highest`).

        `timeout` (seconds, default `request_timeout`) counts from the sending; connecting has its own limit.
        Raises TransportError and ProtocolError; error codes in the response are the caller's.
        """
        return await self.request_versioned(
            node_id, type(message), lambda _: message, lane=lane, timeout=timeout, highest=highest
        )

    async def request_versioned(
        self,
        node_id: int,
        cls: type[Request[R]],
        build: RequestBuilder[R],
        *,
        lane: str = CONTROL,
        timeout: float | None = None,
        highest: int | None = None,
    ) -> R:
        """As `request`, for messages that differ by version: `build(version)` makes it."""
        connection = await self.connection(node_id, lane)
        version = self._negotiated_version(connection, cls, highest)
        return await connection.request(build(version), version, timeout or self.config.request_timeout)

    async def send_oneway(
        self,
        node_id: int,
        cls: type[Request[Any]],
        build: RequestBuilder[Any],
        *,
        lane: str = CONTROL,
        timeout: float | None = None,
        highest: int | None = None,
    ) -> None:
        """Send a request that has no response (Produce with acks=0); returns when the transport has taken it."""
        connection = await self.connection(node_id, lane)
        version = self._negotiated_version(connection, cls, highest)
        await connection.send_oneway(build(version), version, timeout or self.config.request_timeout)

    def _negotiated_version(
        self, connection: Connection, cls: type[Request[Any]], highest: int | None
    ) -> int:
        """The version to send; where there is none another connection will ask for the node's versions anew: the node
        may be another one by then, or its answer was spoilt.
        """
        try:
            return connection.version_for(cls, highest)
        except UnsupportedVersionError:
            self._pool.replace(connection.address.node_id, connection.purpose)
            raise

    async def request_any(
        self, cls: type[Request[R]], build: RequestBuilder[R], *, last: int | None = None
    ) -> R:
        """Send a lookup to the least-loaded node, to the next one if that fails or is silent for a second.

        Known brokers come first, then the bootstrap addresses: when all known nodes are gone the cluster is found
        anew (KIP-899). The broker `last` is asked after all others. Raises NoBrokersError naming what every node
        answered, ClosedError.
        """
        known = [self._address(node_id) for node_id in self.view.brokers]
        places = {(node.host, node.port) for node in known}
        further = [node for node in self._bootstrap if (node.host, node.port) not in places]
        nodes = [*self._by_load(known), *self._by_load(further)]
        return await self._hedged_request(cls, build, sorted(nodes, key=lambda node: node.node_id == last))

    async def _hedged_request(
        self, cls: type[Request[R]], build: RequestBuilder[R], nodes: Iterable[Address]
    ) -> R:
        if not self._tasks.is_open:
            raise ClosedError(f"{self!r} is not open")
        return await self._hedged.first_response(
            cls.NAME.removesuffix("Request"),
            nodes,
            lambda node: self.request_versioned(node.node_id, cls, build),
        )

    def _by_load(self, nodes: Iterable[Address]) -> list[Address]:
        shuffled = list(nodes)
        self.random.shuffle(shuffled)
        return sorted(shuffled, key=lambda node: self._pool.rank(node.node_id))
