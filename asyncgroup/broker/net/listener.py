"""A node's listener: its address, which stays reserved while the node is stopped, and its clients' connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from asyncgroup.broker.net.frames import MAX_REQUEST_BYTES
from asyncgroup.broker.net.request_memory import DEFAULT_QUEUED_MAX_REQUEST_BYTES, RequestMemory
from asyncgroup.broker.net.sasl import Authenticator
from asyncgroup.broker.net.service import RequestService
from asyncgroup.net.servers import close_server

__all__ = [
    "DEFAULT_CONNECTIONS_MAX_IDLE",
    "ClientConnection",
    "Endpoint",
    "Listener",
    "ListenerOptions",
    "PortReservation",
]

DEFAULT_CONNECTIONS_MAX_IDLE: Final = 600.0
"""Kafka's default of `connections.max.idle.ms`, in seconds."""

_BACKLOG: Final = 1024
"""Length of the listener's accept queue; a client whose connection finds it full retries only after a second."""


class ClientConnection(Protocol):
    """A client's connection, during its TLS handshake or after it."""

    closed: asyncio.Future[None]
    """Done when the connection is closed and none of its tasks is left."""
    number: int
    """Sequence number of the connection, over all nodes, in the order of acceptance."""

    def abort(self) -> None:
        """Close at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOptions:
    """The options that the listeners of a cluster share."""

    connect: Callable[[Listener], asyncio.Protocol]
    """Creates the protocol of a new connection."""
    new_authenticator: Callable[[], Authenticator | None]
    """Returns the authenticator for a new connection, None without SASL."""
    protocol: str = "PLAINTEXT"
    """The security protocol, by Kafka's name."""
    queued_max_request_bytes: int = DEFAULT_QUEUED_MAX_REQUEST_BYTES
    connections_max_idle: float | None = DEFAULT_CONNECTIONS_MAX_IDLE


class Endpoint(NamedTuple):
    """The address that a node listens on (port 0: any), and the host that it sends to clients."""

    host: str
    advertised_host: str
    port: int


class Listener:
    """Accepts the clients of one node. It keeps its port while the node is stopped."""

    def __init__(
        self, node_id: int, options: ListenerOptions, service: RequestService, endpoint: Endpoint
    ) -> None:
        self.node_id = node_id
        self.service = service
        self.host, self.advertised_host, self.port = endpoint
        self.protocol = options.protocol
        self.new_authenticator = options.new_authenticator
        self.max_request_bytes = MAX_REQUEST_BYTES
        self.connections_max_idle = options.connections_max_idle
        self.connections: set[ClientConnection] = set()
        self._loop = asyncio.get_running_loop()
        self.request_memory = RequestMemory(self._loop, options.queued_max_request_bytes)
        self._connect = options.connect
        self._server: asyncio.Server | None = None
        self._reservation = PortReservation()
        self._reserves = False  # whether the port is to be kept when the server is closed

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Listener {self.advertised_host}:{self.port} {state}, {len(self.connections)} connections>"

    @property
    def is_open(self) -> bool:
        """Whether the port is bound."""
        return self._server is not None

    async def bind(self) -> asyncio.Server:
        """Bind the port; clients are refused until `listen`. `open` takes the result over."""
        return await self._loop.create_server(
            lambda: self._connect(self),
            self.host,
            self.port,
            backlog=_BACKLOG,
            start_serving=False,  # if this task is canceled now, no listener must be left open
        )

    def open(self, server: asyncio.Server) -> None:
        """Take over the port that `bind` has bound."""
        self._reservation.release()
        self._server = server
        self.port = server.sockets[0].getsockname()[1]

    async def listen(self) -> None:
        """Accept clients."""
        if self._server is not None:  # None if the node was stopped again
            await self._server.start_serving()

    def close_port(self, *, reserve: bool) -> asyncio.Server | None:
        """Stop listening; with `reserve`, keep the port for `bind`. Return the server to wait for, None if not open."""
        server, self._server = self._server, None
        if server is None:
            return None
        self._reserves = reserve
        if server.sockets[0].fileno() < 0:  # in virtual time
            server.close()
        else:
            close_server(server, self._reserve_port)
        return server

    def _reserve_port(self) -> None:
        if self._reserves:
            self._reservation.reserve(self.host, self.port)

    def abort_connections(self) -> list[ClientConnection]:
        """Abort all connections, and return them; wait for their `closed`."""
        self.request_memory.close()
        # sorted, because the order of a set differs from run to run
        connections = sorted(self.connections, key=lambda one: one.number)
        for connection in connections:
            connection.abort()
        return connections

    def release_port(self) -> None:
        """Release the port that `close_port` has reserved."""
        self._reserves = False
        self._reservation.release()


class PortReservation:
    """Reserves one port at a time, by a socket that is bound but does not listen (works on Linux)."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def __repr__(self) -> str:
        held = self._socket
        return f"<PortReservation {'none' if held is None else held.getsockname()[1]}>"

    def reserve(self, host: str, port: int) -> None:
        """Reserve the port; on systems that do not allow this, another process may get it."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        reservation = socket.socket(family, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reservation.bind((host, port))
            self._socket = reservation
            return
        reservation.close()

    def release(self) -> None:
        """Release the reserved port, if any."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
