"""The in-memory TCP of a network: host names, listeners, handshakes and connections, as the loop uses them.

It behaves as TCP between two sockets of one machine does under asyncio. Only `connect_any` waits; every other method is
a plain state change.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import functools
import itertools
import socket
from asyncio import staggered
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from asyncgroup.errors import UsageError
from asyncgroup.testing.virtual.addresses import (
    WILDCARD,
    Address,
    AddressInfo,
    family_of,
    ips_of,
    lookup,
    socket_address,
)
from asyncgroup.testing.virtual.conditions import NetworkConditions, NetworkFault
from asyncgroup.testing.virtual.connection import Signal, TcpConnection
from asyncgroup.testing.virtual.server import TcpListener, VirtualServer
from asyncgroup.testing.virtual.transport import VirtualTransport

__all__ = ["TcpStack", "source_ip"]

_T = TypeVar("_T")
_ProtocolT = TypeVar("_ProtocolT", bound=asyncio.BaseProtocol)

source_ip: Final[contextvars.ContextVar[str | None]] = contextvars.ContextVar(
    "asyncgroup_source_host", default=None
)
"""The ip from which this context opens its connections, set by `Network.source`; by default the ip that it connects to."""


class TcpStack:
    """Listeners and connections of one loop; `conditions` are what a test has set with `Network`."""

    def __init__(self, conditions: NetworkConditions) -> None:
        self.conditions = conditions
        self.hosts: dict[str, list[str]] = {"localhost": ["127.0.0.1"]}  # the ips of each name
        self.listeners: dict[Address, TcpListener] = {}
        self.connections: dict[TcpConnection, None] = {}  # an ordered set: the oldest connection first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heal_waiters: list[asyncio.Future[None]] = []  # connects that hang until the next `heal`
        self._server_ports = itertools.cycle(range(49152, 65536))
        self._client_ports = itertools.cycle(range(32768, 49152))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this network. Raises `UsageError` before a loop has been created with it."""
        if self._loop is None:
            raise UsageError("this Network has no event loop yet: pass it to a VirtualTimeLoop")
        return self._loop

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make `loop` the loop of this network. Raises `UsageError` if it has one."""
        if self._loop is not None:
            raise UsageError("a Network belongs to one loop only, and this one has a loop already")
        self._loop = loop

    def detach(self) -> None:
        """Drop every connection and listener without calling their protocols: the loop is being closed."""
        for connection in list(self.connections):
            connection.drop()
        self.listeners.clear()
        self._heal_waiters.clear()

    def resume(self) -> None:
        """Continue connects and deliveries that a fault has stopped; those that a fault still stops wait again."""
        for waiter in self._heal_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._heal_waiters.clear()
        for connection in list(self.connections):
            connection.resume()

    # -- names --------------------------------------------------------------------------------------------------------

    def ips(self, host: str) -> Sequence[str]:
        """Return the ips of a name or of a numeric address. Raises `socket.gaierror` for any other host."""
        return ips_of(self.hosts, host)

    def first_ip(self, host: str) -> str:
        """Return the first ip of a host."""
        return self.lookup(host, 0)[0][4][0]

    def lookup(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        kind: int = 0,
        flags: int = 0,
    ) -> list[AddressInfo]:
        """Return what `getaddrinfo` returns, from `hosts`. Raises `socket.gaierror` for an unknown name or family."""
        datagram, passive = kind == socket.SOCK_DGRAM, bool(flags & socket.AI_PASSIVE)
        return lookup(self.hosts, host, port, family=family, datagram=datagram, passive=passive)

    # -- listeners ----------------------------------------------------------------------------------------------------

    def bind(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        hosts: Sequence[str | None],
        port: int,
        *,
        family: int = 0,
    ) -> VirtualServer:
        """Return a server bound to every address of `hosts`, not yet serving. Raises OSError if one is in use."""
        addresses: dict[Address, None] = {}
        for host in hosts:
            for info in self.lookup(host, port, family=family, flags=socket.AI_PASSIVE):
                addresses[info[4][0], port or self._free_port()] = None
        for address in addresses:
            if self._in_use(address):
                text = f"error while attempting to bind on address {address!r}: address already in use"
                raise OSError(errno.EADDRINUSE, text)
        listener = TcpListener(self.loop, protocol_factory, tuple(addresses))
        self.listeners.update(dict.fromkeys(addresses, listener))
        return VirtualServer(listener, self._release)

    def _release(self, listener: TcpListener) -> None:
        """Release the addresses of a listener that is being closed."""
        self.listeners = {
            address: other for address, other in self.listeners.items() if other is not listener
        }

    def _listener(self, address: Address) -> TcpListener | None:
        """Return what accepts connections to `address`, there or on its wildcard address; None if nothing does."""
        for ip in (address[0], WILDCARD[family_of(address[0])]):
            listener = self.listeners.get((ip, address[1]))
            if listener is not None and listener.is_serving:
                return listener
        return None

    def _free_port(self) -> int:
        used = {port for _, port in self.listeners}
        return next(port for port in self._server_ports if port not in used)

    def _in_use(self, address: Address) -> bool:
        ip, port = address
        wildcard = WILDCARD[family_of(ip)]
        bound = [
            other
            for other, other_port in self.listeners
            if other_port == port and family_of(other) == family_of(ip)
        ]
        return any(ip == other or wildcard in (ip, other) for other in bound)

    # -- connections --------------------------------------------------------------------------------------------------

    async def connect_any(
        self,
        targets: Sequence[Address],
        local: Address | None = None,
        *,
        delay: float | None = None,
        all_errors: bool = False,
    ) -> tuple[Address, Address]:
        """Return the first of `targets` that can be reached, as (client address, target).

        With `delay` the next target is tried after that many seconds at the latest (RFC 8305). Raises OSError (with
        `all_errors` an ExceptionGroup) as asyncio does if none can be reached.
        """
        attempts = [
            functools.partial(self._handshake, self._client_address(target, local), target)
            for target in targets
        ]
        return await _first_successful(attempts, delay=delay, all_errors=all_errors)

    def open(
        self,
        protocol_factory: Callable[[], _ProtocolT],
        client: Address,
        server: Address,
        waiter: asyncio.Future[None],
    ) -> tuple[VirtualTransport, _ProtocolT]:
        """Create the client's end of a connection; the server's is created when the opening signal arrives."""
        protocol = protocol_factory()
        connection = TcpConnection(self.loop, self.conditions, client, server, self._accept, self._forget)
        self.connections[connection] = None
        connection.up.send(Signal.OPEN)
        up, down = connection.up, connection.down
        return VirtualTransport(self.loop, protocol, down, up, client, server, waiter=waiter), protocol

    async def _handshake(self, client: Address, target: Address) -> tuple[Address, Address]:
        """Wait for the time of a TCP handshake. Raises ConnectionRefusedError without a listener."""
        await asyncio.sleep(2 * self.conditions.latency_between(client, target))
        while NetworkFault.HANG in (faults := self.conditions.faults_between(client, target)):
            waiter = self.loop.create_future()
            self._heal_waiters.append(waiter)
            await waiter
        is_silent = NetworkFault.SILENT in faults
        if NetworkFault.REFUSE in faults or (not is_silent and self._listener(target) is None):
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {socket_address(target)}")
        return client, target

    def _accept(self, connection: TcpConnection) -> None:
        """Handle the opening signal: create the server's end, or reset the connection if nothing listens."""
        listener = self._listener(connection.server)
        protocol = None if listener is None else listener.make_protocol()
        if listener is None or protocol is None:
            connection.reset()
            return
        up, down, client, server = connection.up, connection.down, connection.client, connection.server
        listener.attach(
            VirtualTransport(self.loop, protocol, up, down, server, client, on_lost=listener.detach)
        )

    def _forget(self, connection: TcpConnection) -> None:
        self.connections.pop(connection, None)

    def _client_address(self, target: Address, local: Address | None) -> Address:
        # without `source_ip` a client connects from the ip that it connects to, as between sockets of one machine
        ip = self.first_ip(local[0]) if local is not None else source_ip.get() or target[0]
        return ip, (local[1] if local is not None else 0) or next(self._client_ports)


async def _first_successful(
    attempts: Sequence[Callable[[], Awaitable[_T]]], *, delay: float | None = None, all_errors: bool = False
) -> _T:
    """Return the result of the first attempt that succeeds; errors are merged as `loop.create_connection` merges them.

    Without `delay` an attempt starts when the one before it has failed; with `delay` it starts after that many seconds at
    the latest (RFC 8305). Raises OSError, or with `all_errors` an ExceptionGroup, if every attempt fails.
    """
    problems: list[Exception] = []
    if delay is not None:
        winner: _T | None
        winner, _, raised = await staggered.staggered_race(attempts, delay)
        if winner is not None:
            return winner
        problems.extend(problem for problem in raised if problem is not None)
    else:
        for attempt in attempts:
            try:
                return await attempt()
            except OSError as problem:
                problems.append(problem)
    if all_errors:
        raise ExceptionGroup("create_connection failed", problems)
    if len({str(problem) for problem in problems}) == 1:
        raise problems[0]
    raise OSError(f"Multiple exceptions: {', '.join(str(problem) for problem in problems)}")
