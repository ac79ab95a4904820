"""The in-memory network of a virtual loop: names, addresses, listeners, latency, and faults a test sets by hand.

It behaves as TCP between two sockets of one machine does under asyncio, except that delivery takes exactly the
`latency` a test asks for, and that bandwidth has no limit. Nothing here waits except `connect_any`; all else is a
plain state change.

An address is the pair (ip, port). Wherever a method takes `host` and `port`, the host may be a name of `hosts` or an
ip, port None means every port of it, and a connection is meant when **either** of its ends is at that address. So a
fault can be put on a broker, or on one client that dials under a name of its own (see `source`).
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

    `latency`: seconds of virtual time that bytes need in one direction; 0 delivers at the next turn of the loop.
    `window`: bytes that one direction holds on their way before the sender has to buffer them itself (TCP's window).
    `chunk_size`: the most bytes that one `data_received` or `buffer_updated` gets; 1 tries a parser's every seam.
    All three may be changed at any time. An address has one fault at most: the last one set counts.
    """

    def __init__(
        self, *, latency: float = 0.0, window: int = 256 * 1024, chunk_size: int = 256 * 1024
    ) -> None:
        if latency < 0 or window < 1 or chunk_size < 1:
            raise UsageError("latency must not be negative, window and chunk_size at least 1")
        self.latency = latency
        self.window = window
        self.chunk_size = chunk_size
        self.hosts: dict[str, list[str]] = {"localhost": ["127.0.0.1"]}
        """What names mean: `hosts["kafka"] = ["10.0.0.1", "10.0.0.2"]`. Numeric addresses need no entry."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: dict[Address, VirtualServer] = {}
        self._links: dict[Link, None] = {}
        self._conditions = NetworkConditions()
        self._heal_waiters: list[asyncio.Future[None]] = []
        self._server_ports = itertools.cycle(range(49152, 65536))
        self._client_ports = itertools.cycle(range(32768, 49152))

    def __repr__(self) -> str:
        return (
            f"<Network {len(self._listeners)} listeners, {len(self._links)} connections, "
            f"{self._conditions.faults} faults, latency={self.latency:g}>"
        )

    # -- what a test sets and sees ------------------------------------------------------------------------------------

    def refuse(self, host: str, port: int | None = None) -> None:
        """Refuse new connections (ConnectionRefusedError), even where somebody listens. Open ones live on."""
        self._conditions.set_fault(self._ips(host), port, NetworkFault.REFUSE)

    def blackhole(
        self, host: str, port: int | None = None, *, connect: Literal["hang", "accept"] = "hang"
    ) -> None:
        """Let nothing through any more, in either direction, on open connections and new ones.

        `connect="hang"`: new connections hang, as behind a firewall that drops packets. `connect="accept"`: they
        succeed and nobody ever answers, as with a stopped process; this works where nobody listens, too.
        What is sent meanwhile arrives after `heal`, as TCP would send it again; `cut` throws it away.
        """
        fault = NetworkFault.HANG if connect == "hang" else NetworkFault.SILENT
        self._conditions.set_fault(self._ips(host), port, fault)

    def cut(self, host: str | None = None, port: int | None = None) -> int:
        """Abort open connections with ConnectionResetError at both ends; returns how many there were.

        Those of one address, of every port of a host, or (without host) all. What was on its way is lost.
        New connections are not touched (see `refuse`).
        """
        links = self.connections(host, port)
        for link in links:
            link.cut()
        return len(links)

    def heal(self, host: str | None = None, port: int | None = None) -> None:
        """Take back `refuse` and `blackhole`: of one address, of every port of a host, or (without host) all."""
        self._conditions.heal(None if host is None else self._ips(host), port)
        for waiter in self._heal_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._heal_waiters.clear()
        for link in list(self._links):
            link.resume()

    def set_latency(self, seconds: float, host: str, port: int | None = None) -> None:
        """Another latency for one address than `latency`, for what is sent from now on; order is kept."""
        self._conditions.set_latency(self._ips(host), port, seconds)

    @contextlib.contextmanager
    def source(self, host: str) -> Iterator[None]:
        """Connections dialled inside the block, and by tasks started inside it, come from `host`.

        So that one client among many can be cut off: `blackhole(host)`. Only the first ip of `host` is used.
        """
        token = _source.set(self._first_ip(host))
        try:
            yield
        finally:
            _source.reset(token)

    def connections(self, host: str | None = None, port: int | None = None) -> tuple[Link, ...]:
        """The connections of which at least one end is open, oldest first; of one address, or all."""
        links = [link for link in self._links if link.open_ends()]
        if host is not None:
            places = {(ip, port) for ip in self._ips(host)}
            links = [link for link in links if places & patterns_of(link.client, link.server)]
        return tuple(links)

    def listeners(self) -> tuple[Address, ...]:
        """The addresses that are listened to, in order."""
        return tuple(sorted(self._listeners))

    def describe_faults(self) -> list[str]:
        """The faults in effect, one readable text each, for messages."""
        return self._conditions.describe()

    # -- what the loop calls ------------------------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop this network belongs to. Raises `UsageError` before there is one."""
        if self._loop is None:
            raise UsageError("this Network belongs to no loop (yet)")
        return self._loop

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Belong to `loop` from now on."""
        if self._loop is not None:
            raise UsageError("a Network belongs to one loop only")
        self._loop = loop

    def detach(self) -> None:
        """Forget every connection and listener, without a word to their protocols: the loop closes."""
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
        """Answer `getaddrinfo` from `hosts`. Raises `socket.gaierror` for a name or family that is not there."""
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
        """A server bound to every address of `hosts`, not yet serving. Raises OSError where one is taken."""
        addresses: dict[Address, None] = {}
        for host in hosts:
            for info in self.lookup(host, port, family=family, flags=socket.AI_PASSIVE):
                addresses[info[4][0], port or self._free_port()] = None
        for address in addresses:
            if self._taken(address):
                text = f"error while attempting to bind on address {address!r}: address already in use"
                raise OSError(errno.EADDRINUSE, text)
        server = VirtualServer(self, protocol_factory, tuple(addresses))
        self._listeners.update(dict.fromkeys(addresses, server))
        return server

    def release(self, server: VirtualServer) -> None:
        """Give the addresses of a closed server free."""
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
        """The first of `targets` that can be reached, as (client address, target); errors as asyncio joins them.

        With `delay` the next target is tried after that many seconds at the latest (RFC 8305).
        """
        attempts = [
            functools.partial(self._handshake, self._client_address(target, local), target)
            for target in targets
        ]
        return await first_successful(attempts, delay=delay, all_errors=all_errors)

    async def _handshake(self, client: Address, target: Address) -> tuple[Address, Address]:
        """Pass the time of a TCP handshake. Raises ConnectionRefusedError where nobody listens."""
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
        """Make the client's end of a connection; the server's is made when the opening arrives there."""
        protocol = protocol_factory()
        link = Link(self, client, server)
        self._links[link] = None
        return link.connect(protocol, waiter), protocol

    def listener(self, address: Address) -> VirtualServer | None:
        """Who serves `address`, itself or as part of every address; None if nobody does."""
        for ip in (address[0], WILDCARD[family_of(address[0])]):
            server = self._listeners.get((ip, address[1]))
            if server is not None and server.is_serving():
                return server
        return None

    def forget(self, link: Link) -> None:
        """A connection is over at both ends."""
        self._links.pop(link, None)

    def is_blackholed(self, link: Link) -> bool:
        """True while a black hole holds what `link` carries."""
        faults = self._conditions.faults_between(link.client, link.server)
        return any(fault is not NetworkFault.REFUSE for fault in faults)

    def latency_between(self, one: Address, other: Address) -> float:
        """Seconds in one direction between two addresses: the largest set for either, or `latency`."""
        return self._conditions.latency_between(one, other, self.latency)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _ips(self, host: str) -> Sequence[str]:
        return ips_of(self.hosts, host)

    def _first_ip(self, host: str) -> str:
        return self.lookup(host, 0)[0][4][0]

    def _client_address(self, target: Address, local: Address | None) -> Address:
        # without a name of its own a client dials from the address it dials to, as on one machine
        ip = self._first_ip(local[0]) if local is not None else _source.get() or target[0]
        return ip, (local[1] if local is not None else 0) or next(self._client_ports)

    def _free_port(self) -> int:
        used = {port for _, port in self._listeners}
        return next(port for port in self._server_ports if port not in used)

    def _taken(self, address: Address) -> bool:
        ip, port = address
        anywhere = WILDCARD[family_of(ip)]
        rivals = [
            other for other, taken in self._listeners if taken == port and family_of(other) == family_of(ip)
        ]
        return any(ip == other or anywhere in (ip, other) for other in rivals)
