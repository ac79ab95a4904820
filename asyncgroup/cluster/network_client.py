"""Send requests to a given node, or to the least-loaded node of a cluster (Java's `NetworkClient`).

It resolves node ids to addresses, negotiates the version of each request, and hands it to a pooled connection.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from asyncgroup.cluster.bootstrap import PROVIDER, Bootstrap, BootstrapServers
from asyncgroup.cluster.connection import Address, Connection, OnResponse
from asyncgroup.cluster.connection_pool import CONTROL, ConnectionPool, Node
from asyncgroup.cluster.hedged_requests import HedgedRequests
from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.config import ClientConfig
from asyncgroup.errors import ClosedError, NoBrokersError, UnsupportedVersionError
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import BackgroundTasks
from asyncgroup.wire.message import Message, Request

__all__ = ["NetworkClient", "RequestBuilder"]

R = TypeVar("R", bound=Message)

HELD_APIS: Final = frozenset({"OffsetCommit", "TxnOffsetCommit"})
"""Requests that a broker answers when other brokers have replicated what they wrote, at most after 5 s
(`offsets.commit.timeout.ms`)."""

SOON: Final = 0.1
"""Seconds after which any other request in flight may be one that the broker does not answer soon."""

RequestBuilder: TypeAlias = Callable[[int], Request[R]]
"""Returns the request for a given version."""


class NetworkClient:
    """Sends requests to the nodes of one cluster; `view` is the known metadata, with the nodes' addresses.

    A `lane` argument names the purpose of a connection: requests of different lanes never wait for each other, because
    each lane has its own connection to each node, in the `pool`. A coordinator that was named at another address than the
    metadata has for its node gets connections apart from those of the node. Raises ConfigError if `bootstrap_servers` is malformed.
    """

    def __init__(
        self,
        bootstrap_servers: BootstrapServers,
        config: ClientConfig | None = None,
        *,
        hooks: Iterable[object] | Hooks = (),
        rng: random.Random | None = None,
    ) -> None:
        self.config = ClientConfig.of(config)
        self.hooks = hooks if isinstance(hooks, Hooks) else Hooks(hooks)
        self.view = ClusterView()
        self.random = rng or random.Random()
        self._bootstrap = Bootstrap(bootstrap_servers, self.config)
        self._tasks = BackgroundTasks("Cluster")
        self.pool = ConnectionPool(self._tasks, self.config, self.hooks, self.random)
        # a node whose response is overdue is asked after the others, until it responds
        self._hedged = HedgedRequests(lambda node: self.pool.mark_slow(node.node_id))

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._tasks.is_open

    @property
    def addresses(self) -> list[str]:
        """`host:port` of the known brokers and of the bootstrap servers."""
        known = [(broker.host, broker.port) for broker in self.view.brokers.values()]
        # each place once, the known brokers first: bootstrap servers may be old
        places = dict.fromkeys(
            [*known, *((address.host, address.port) for address in self._bootstrap.addresses)]
        )
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in places]

    def servers_for_another_client(self) -> BootstrapServers:
        """Return the bootstrap servers for another client of the same cluster: `addresses`, in turn with the provider."""
        return self._bootstrap.in_turn_with(self.addresses)

    def check_not_started(self, name: str) -> None:
        """Raise ClosedError if `start` was called before; `name` is the object that owns this client."""
        self._tasks.check_not_started(name)

    async def resolve_bootstrap(self) -> None:
        """Replace the bootstrap hosts by canonical names if `client_dns_lookup` asks for it (KIP-235)."""
        await self._bootstrap.resolve()

    def __repr__(self) -> str:
        state = "open" if self._tasks.is_open else "closed"
        return f"<Cluster {self._bootstrap!s}: {state}, {len(self.view.brokers)} brokers, {len(self.view.topics)} topics>"

    # --- open and close -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make requests possible; no connection is opened yet. Raises ClosedError on a second call."""
        await self._tasks.start()

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function until `aclose`."""
        self._tasks.spawn(function)

    def close(self) -> None:
        """Close every connection now; in-flight requests fail with ConnectionLost."""
        self.pool.close()

    async def aclose(self) -> None:
        """Close every connection, and wait until all tasks have ended. Safe to call twice."""
        # the connections first: tasks that wait for a response end by that
        self.close()
        try:
            await self._tasks.stop()
        finally:
            await self._bootstrap.aclose()
            await self._hedged.aclose()
            await self.pool.aclose()

    def set_view(self, view: ClusterView) -> None:
        """Use newer metadata, and close the connections to nodes that left the cluster."""
        # set before connections are closed: a task that wakes by that finds the new addresses
        self.view = view
        self.pool.close_nodes_except(set(view.brokers))

    # --- requests -----------------------------------------------------------------------------------------------

    def _address(self, node_id: int) -> Address:
        # bootstrap servers have negative ids, until a response says which nodes they are
        if node_id < 0 and (address := self._bootstrap.find(node_id)) is not None:
            return address
        broker = self.view.brokers.get(node_id)
        if broker is None:
            raise NoBrokersError(
                f"node {node_id} is not among the cluster's brokers {sorted(self.view.brokers)}"
            )
        return Address(node_id, broker.host, broker.port)

    def lane_node(self, node: Node) -> Node:
        """Return the node by which `pool` knows a lane: the node id, if the address is that of the metadata."""
        if isinstance(node, int):
            return node
        # a coordinator may be named at an address that the metadata does not have yet (or any more)
        broker, is_bootstrap = self.view.brokers.get(node.node_id), node.node_id < 0
        is_known = broker is not None and (broker.host, broker.port) == (node.host, node.port)
        return node.node_id if is_known or is_bootstrap else node

    async def connection(self, node: Node, lane: str = CONTROL) -> Connection:
        """Return the open connection of a lane to a node, or open one.

        Raises NoBrokersError, ConnectError, AuthenticationError, UnsupportedVersionError, ClosedError.
        """
        if not self._tasks.is_open:
            raise ClosedError(f"{self!r} is not open")
        address = self._address(node) if isinstance(node, int) else node
        return await self.pool.connection(address, lane, self.lane_node(node))

    async def request(
        self,
        node: Node,
        message: Request[R],
        *,
        lane: str = CONTROL,
        timeout: float | None = None,
        highest: int | None = None,
    ) -> R:
        """Send a request to a node in the newest version that both sides support (at most `highest`).

        `timeout` (seconds, default `request_timeout`) starts when the request is sent; connecting has its own limit.
        Raises TransportError and ProtocolError; the caller checks the error codes in the response.
        """
        return await self.request_versioned(
            node, type(message), lambda _: message, lane=lane, timeout=timeout, highest=highest
        )

    async def request_versioned(
        self,
        node: Node,
        cls: type[Request[R]],
        build: RequestBuilder[R],
        *,
        lane: str = CONTROL,
        spare_lane: str | None = None,
        timeout: float | None = None,
        highest: int | None = None,
    ) -> R:
        """Like `request`, for a message that depends on the version: `build(version)` makes it.

        If it may wait for long on `lane`, because of other requests in flight, it is sent on `spare_lane`, if that is given.
        """
        connection = await self.connection(node, lane)
        # the open connection decides whether it delays a request, by its requests in flight
        if spare_lane is not None and connection.would_delay(cls, HELD_APIS, SOON):
            connection = await self.connection(node, spare_lane)
        # after the connection, whose node says what it supports: nodes of one cluster may differ in an upgrade
        version = self._negotiated_version(connection, cls, highest)
        return await connection.request(build(version), version, timeout or self.config.request_timeout)

    async def submit(
        self,
        node_id: int,
        cls: type[Request[R]],
        build: RequestBuilder[R],
        on_response: OnResponse[R],
        *,
        lane: str,
        timeout: float | None = None,
        highest: int | None = None,
    ) -> None:
        """Like `request_versioned`, but return when the request is sent; `on_response` gets the response or the error."""
        connection = await self.connection(node_id, lane)
        version = self._negotiated_version(connection, cls, highest)
        timeout = timeout or self.config.request_timeout
        # built when it is sent: until then more records may be added
        await connection.submit(partial(build, version), version, timeout, on_response)

    def try_submit(
        self,
        node_id: int,
        cls: type[Request[R]],
        build: RequestBuilder[R],
        on_response: OnResponse[R],
        *,
        lane: str,
        timeout: float | None = None,
        highest: int | None = None,
    ) -> bool:
        """Send a request at once; return False if there is no connection to the node, or if the request would have to wait.

        Raises UnsupportedVersionError, also from `build`.
        """
        broker = self.view.brokers.get(node_id)
        if broker is None or not self._tasks.is_open:
            return False
        connection = self.pool.open_connection(Address(node_id, broker.host, broker.port), lane)
        # the caller falls back to `submit`, which waits
        if connection is None or not connection.is_ready_to_send:
            return False
        version = self._negotiated_version(connection, cls, highest)
        timeout = timeout or self.config.request_timeout
        return connection.try_submit(partial(build, version), version, timeout, on_response)

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
        """Send a request that has no response (Produce with acks=0); returns when the transport's buffer has room again."""
        connection = await self.connection(node_id, lane)
        version = self._negotiated_version(connection, cls, highest)
        await connection.send_oneway(build(version), version, timeout or self.config.request_timeout)

    def _negotiated_version(
        self, connection: Connection, cls: type[Request[Any]], highest: int | None
    ) -> int:
        """Return the version to send.

        If there is no common version, the connection is replaced before the error is raised: the new one requests
        ApiVersions again, because the node may be a different broker by then, or its first response was malformed.
        """
        try:
            return connection.version_for(cls, highest)
        except UnsupportedVersionError:
            # only the connection of this lane: the others may be to the right broker
            self.pool.replace(self.lane_node(connection.address), connection.purpose)
            raise

    async def request_any(
        self, cls: type[Request[R]], build: RequestBuilder[R], *, last: int | None = None
    ) -> R:
        """Send a request to the least-loaded node, and to the next one on failure or after 1 s without a response.

        Known brokers are asked first, then the bootstrap addresses, which a provider is asked for, so that the client
        rebootstraps when all known brokers are gone (KIP-899). The broker `last` is asked after all others. Raises
        NoBrokersError with the error of every node, ClosedError.
        """
        known = [self._address(node_id) for node_id in self.view.brokers]
        places = {(node.host, node.port) for node in known}
        further = [node for node in self._bootstrap.addresses if (node.host, node.port) not in places]
        # PROVIDER stands for addresses that are looked up only if no known broker answers
        nodes = [*self._by_load(known), *([PROVIDER] if self._bootstrap.is_live else self._by_load(further))]
        return await self._hedged_request(cls, build, sorted(nodes, key=lambda node: node.node_id == last))

    async def request_bootstrap(self, cls: type[Request[R]], build: RequestBuilder[R]) -> R:
        """Like `request_any`, but ask only the bootstrap addresses (KIP-1102)."""
        if self._bootstrap.is_live:
            await self._bootstrap.refresh()
        return await self._hedged_request(cls, build, self._by_load(self._bootstrap.addresses))

    async def _hedged_request(
        self, cls: type[Request[R]], build: RequestBuilder[R], nodes: Iterable[Address]
    ) -> R:
        if not self._tasks.is_open:
            raise ClosedError(f"{self!r} is not open")
        return await self._hedged.first_response(
            cls.NAME.removesuffix("Request"),
            nodes,
            lambda node: (
                self.request_bootstrap(cls, build)
                if node is PROVIDER
                else self.request_versioned(node.node_id, cls, build)
            ),
        )

    def _by_load(self, nodes: Iterable[Address]) -> list[Address]:
        # the sort is stable, so nodes of the same load are in random order: clients do not all begin with the
        # first
        shuffled = list(nodes)
        self.random.shuffle(shuffled)
        return sorted(shuffled, key=lambda node: self.pool.rank(node.node_id))
