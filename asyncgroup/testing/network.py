"""The in-memory network of a virtual loop: host names, listeners, connections, latency, and faults that a test sets.

It behaves as TCP between two sockets of one machine does under asyncio, except that delivery takes exactly the
`latency` that the test sets, and that bandwidth is unlimited. Only `connect_any` waits; every other method is a plain
state change.

An address is the pair (ip, port). Where a method takes `host` and `port`, the host may be a name in `hosts` or an ip;
port None means all of its ports; and a connection is affected if **either** of its ends is at that address. So a fault
can be set for a broker, or for one client that connects from an address of its own (see `source`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import functools
import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

from asyncgroup.errors import UsageError
from asyncgroup.testing.addresses import (
    WILDCARD,
    Address,
    AddressInfo,
    family_of,
    ips_of,
    lookup,
    socket_address,
)
from asyncgroup.testing.happy_eyeballs import first_successful
from asyncgroup.testing.link import Link
from asyncgroup.testing.network_conditions import NetworkConditions, NetworkFault, patterns_of
from asyncgroup.testing.server import VirtualServer
from asyncgroup.testing.transport import VirtualTransport

__all__ = ["Network"]

_ProtocolT = TypeVar("_ProtocolT", bound=asyncio.BaseProtocol)

_source: contextvars.ContextVar[str | None] = contextvars.ContextVar("asyncgroup_source_host", default=None)


class Network:
    """Hosts, listeners and connections of one virtual loop.

    `latency`: seconds of virtual time that bytes take in one direction; 0 delivers in the next iteration of the loop.
    `window`: bytes in transit in one direction before the sender has to buffer further ones itself (TCP's window).
    `chunk_size`: the maximum of bytes for one `data_received` or `buffer_updated`; 1 splits the stream at every byte.
    All three may be changed at any time. An address has at most one fault: the last one set.
    """

    def __init__(
        self, *, latency: float = 0.0, window: int = 256 * 1024, chunk_size: int = 256 * 1024
    ) -> None:
        if latency < 0 or window < 1 or chunk_size < 1:
            raise UsageError(
                f"latency={latency}, window={window}, chunk_size={chunk_size}: latency must be 0 or more, window and "
                "chunk_size at least 1"
            )
        self.latency = latency
        self.window = window
        self.chunk_size = chunk_size
        self.hosts: dict[str, list[str]] = {"localhost": ["127.0.0.1"]}
        """The ips of each host name: `hosts["kafka"] = ["10.0.0.1", "10.0.0.2"]`. Numeric addresses need no entry."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: dict[Address, VirtualServer] = {}
        self._links: dict[Link, None] = {}  # an ordered set: the oldest connection first
        self._conditions = NetworkConditions()
        self._heal_waiters: list[asyncio.Future[None]] = []  # connects that hang until the next `heal`
        self._server_ports = itertools.cycle(range(49152, 65536))
        self._client_ports = itertools.cycle(range(32768, 49152))

    def __repr__(self) -> str:
        return (
            f"<Network {len(self._listeners)} listeners, {len(self._links)} connections, "
            f"{self._conditions.faults} faults, latency={self.latency:g}>"
        )

    # -- for tests ----------------------------------------------------------------------------------------------------

    def refuse(self, host: str, port: int | None = None) -> None:
        """Refuse new connections (ConnectionRefusedError) even if there is a listener. Open connections stay open."""
        self._conditions.set_fault(self._ips(host), port, NetworkFault.REFUSE)

    def blackhole(
        self, host: str, port: int | None = None, *, connect: Literal["hang", "accept"] = "hang"
    ) -> None:
        """Stop delivery in both directions, on open connections and new ones.

        `connect="hang"`: new connections hang, as with a firewall that drops packets. `connect="accept"`: they succeed
        but get no answer, as with a stopped process; this works without a listener, too. Bytes sent during the fault
        arrive after `heal`, as TCP would retransmit them; `cut` discards them.
        """
        fault = NetworkFault.HANG if connect == "hang" else NetworkFault.SILENT
        self._conditions.set_fault(self._ips(host), port, fault)

    def cut(self, host: str | None = None, port: int | None = None) -> int:
        """Abort open connections with ConnectionResetError at both ends, and return their number.

        It affects those of one address, of every port of a host, or (without host) all. Bytes in transit are lost.
        New connections are not affected (see `refuse`).
        """
        links = self.connections(host, port)
        for link in links:
            link.cut()
        return len(links)

    def heal(self, host: str | None = None, port: int | None = None) -> None:
        """Undo `refuse` and `blackhole` for one address, for every port of a host, or (without host) for all."""
        self._conditions.heal(None if host is None else self._ips(host), port)
        for waiter in self._heal_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._heal_waiters.clear()
        for link in list(self._links):
            link.resume()

    def set_latency(self, seconds: float, host: str, port: int | None = None) -> None:
        """Set the latency of one address, for bytes sent from now on; they never overtake earlier ones."""
        self._conditions.set_latency(self._ips(host), port, seconds)

    @contextlib.contextmanager
    def source(self, host: str) -> Iterator[None]:
        """Open the connections of this block, and of tasks started in it, from `host`.

        One client of several can then have a fault of its own: `blackhole(host)`. Only the first ip of `host` is used.
        """
        token = _source.set(self._first_ip(host))
        try:
            yield
        finally:
            _source.reset(token)

    def connections(self, host: str | None = None, port: int | None = None) -> tuple[Link, ...]:
        """The connections with at least one open end, oldest first; those of one address, or all."""
        links = [link for link in self._links if link.open_ends()]
        if host is not None:
            patterns = {(ip, port) for ip in self._ips(host)}
            links = [link for link in links if patterns & patterns_of(link.client, link.server)]
        return tuple(links)

    def listeners(self) -> tuple[Address, ...]:
        """The addresses with a listener, sorted."""
        return tuple(sorted(self._listeners))

    def describe_faults(self) -> list[str]:
        """Describe each fault in effect, for error messages."""
        return self._conditions.describe()

    # -- for the loop, its servers and transports ---------------------------------------------------------------------

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
        for link in list(self._links):
            link.drop()
        self._listeners.clear()
        self._heal_waiters.clear()

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
        server = VirtualServer(self, protocol_factory, tuple(addresses))
        self._listeners.update(dict.fromkeys(addresses, server))
        return server

    def release(self, server: VirtualServer) -> None:
        """Release the addresses of a closed server."""
        self._listeners = {
            address: other for address, other in self._listeners.items() if other is not server
        }

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
        return await first_successful(attempts, delay=delay, all_errors=all_errors)

    async def _handshake(self, client: Address, target: Address) -> tuple[Address, Address]:
        """Wait for the time of a TCP handshake. Raises ConnectionRefusedError without a listener."""
        await asyncio.sleep(2 * self.latency_between(client, target))
        while NetworkFault.HANG in (faults := self._conditions.faults_between(client, target)):
            waiter = self.loop.create_future()
            self._heal_waiters.append(waiter)
            await waiter
        listener = self.listener(target)
        if NetworkFault.REFUSE in faults or (NetworkFault.SILENT not in faults and listener is None):
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {socket_address(target)}")
        return client, target

    def open(
        self,
        protocol_factory: Callable[[], _ProtocolT],
        client: Address,
        server: Address,
        waiter: asyncio.Future[None],
    ) -> tuple[VirtualTransport, _ProtocolT]:
        """Create the client's end of a connection; the server's is created when the opening signal arrives."""
        protocol = protocol_factory()
        link = Link(self, client, server)
        self._links[link] = None
        return link.connect(protocol, waiter), protocol

    def listener(self, address: Address) -> VirtualServer | None:
        """Return the server that listens on `address` or on its wildcard address; None if there is none."""
        for ip in (address[0], WILDCARD[family_of(address[0])]):
            server = self._listeners.get((ip, address[1]))
            if server is not None and server.is_serving():
                return server
        return None

    def forget(self, link: Link) -> None:
        """Remove a connection whose ends are both closed."""
        self._links.pop(link, None)

    def is_blackholed(self, link: Link) -> bool:
        """True while a `blackhole` stops delivery on `link`."""
        faults = self._conditions.faults_between(link.client, link.server)
        return any(fault is not NetworkFault.REFUSE for fault in faults)

    def latency_between(self, one: Address, other: Address) -> float:
        """Return the seconds in one direction between two addresses: the largest set for either, or `latency`."""
        return self._conditions.latency_between(one, other, self.latency)

    # -- private ------------------------------------------------------------------------------------------------------

    def _ips(self, host: str) -> Sequence[str]:
        return ips_of(self.hosts, host)

    def _first_ip(self, host: str) -> str:
        return self.lookup(host, 0)[0][4][0]

    def _client_address(self, target: Address, local: Address | None) -> Address:
        # without `source` a client connects from the ip that it connects to, as between sockets of one machine
        ip = self._first_ip(local[0]) if local is not None else _source.get() or target[0]
        return ip, (local[1] if local is not None else 0) or next(self._client_ports)

    def _free_port(self) -> int:
        used = {port for _, port in self._listeners}
        return next(port for port in self._server_ports if port not in used)

    def _in_use(self, address: Address) -> bool:
        ip, port = address
        wildcard = WILDCARD[family_of(ip)]
        bound = [
            other
            for other, other_port in self._listeners
            if other_port == port and family_of(other) == family_of(ip)
        ]
        return any(ip == other or wildcard in (ip, other) for other in bound)
