"""The server object that `create_server` returns on a virtual loop: asyncio's `Server` for in-memory addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from asyncgroup.testing.virtual.addresses import Address, family_of, socket_address
from asyncgroup.testing.virtual.transport import VirtualTransport

__all__ = ["ListeningSocket", "TcpListener", "VirtualServer"]


class ListeningSocket:
    """A stand-in for a listening socket in `Server.sockets`, which has an address but no descriptor."""

    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, address: Address) -> None:
        self._address = address
        self.family = family_of(address[0])

    def __repr__(self) -> str:
        return f"<ListeningSocket {self._address[0]}:{self._address[1]}>"

    def getsockname(self) -> tuple[str, int] | tuple[str, int, int, int]:
        """(ip, port); for IPv6 also flow label and scope id."""
        return socket_address(self._address)

    def fileno(self) -> int:
        """-1, as for a closed socket: there is no descriptor."""
        return -1


class TcpListener:
    """The state of a listener: its addresses, whether it accepts, and the connections that it has accepted."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        addresses: tuple[Address, ...],
    ) -> None:
        self.loop = loop
        self.addresses = addresses
        self.is_serving = False
        self.is_closed = False
        self.connections: dict[VirtualTransport, None] = {}
        self._protocol_factory = protocol_factory
        self._waiters: list[asyncio.Future[None]] = []  # wait until it has ended

    def make_protocol(self) -> asyncio.BaseProtocol | None:
        """Return a protocol for a new connection; None if the factory raised, which goes to the loop's handler."""
        try:
            return self._protocol_factory()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # an error of the factory does not stop the listener
            message = "Error on transport creation for incoming connection"
            self.loop.call_exception_handler({"message": message, "exception": error})
            return None

    def attach(self, transport: VirtualTransport) -> None:
        """Register an accepted connection."""
        self.connections[transport] = None

    def detach(self, transport: VirtualTransport) -> None:
        """Remove a connection that has ended."""
        del self.connections[transport]
        self._wake_if_over()

    def close(self) -> None:
        """Stop accepting; open connections stay open."""
        self.is_closed = True
        self.is_serving = False
        self._wake_if_over()

    async def wait_over(self) -> None:
        """Wait until the listener is closed and its last connection has ended."""
        if not self._is_over():
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _is_over(self) -> bool:
        return self.is_closed and not self.connections

    def _wake_if_over(self) -> None:
        if self._is_over():
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()


class VirtualServer(asyncio.AbstractServer):
    """A listener of a `Network`, with the interface of `asyncio.Server`.

    `wait_closed` works as since Python 3.12: it waits until the server is closed and its last connection has ended.
    """

    def __init__(self, listener: TcpListener, release: Callable[[TcpListener], None]) -> None:
        self._listener = listener
        self._release = release  # returns its addresses to the network
        self._forever: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        listener = self._listener
        places = ", ".join(f"{ip}:{port}" for ip, port in listener.addresses)
        state = "closed" if listener.is_closed else "serving" if listener.is_serving else "bound"
        return f"<VirtualServer {places} {state}, {len(listener.connections)} connections>"

    @property
    def sockets(self) -> tuple[ListeningSocket, ...]:
        """One stand-in per address, with `getsockname()`; none after `close`."""
        listener = self._listener
        return () if listener.is_closed else tuple(ListeningSocket(address) for address in listener.addresses)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The virtual loop."""
        return self._listener.loop

    def is_serving(self) -> bool:
        """True while connections are accepted."""
        return self._listener.is_serving

    async def start_serving(self) -> None:
        """Accept connections from now on. Raises RuntimeError on a closed server."""
        self._serve()
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        """Accept connections until cancelled, then close the server and wait for its connections to end."""
        if self._forever is not None:
            raise RuntimeError(f"server {self!r} is already being awaited on serve_forever()")
        self._serve()
        self._forever = self.get_loop().create_future()
        try:
            await self._forever
        except asyncio.CancelledError:
            self.close()
            await self.wait_closed()
            raise
        finally:
            self._forever = None

    def close(self) -> None:
        """Stop listening and release the addresses; open connections stay open."""
        if self._listener.is_closed:
            return
        self._release(self._listener)
        if self._forever is not None:
            self._forever.cancel()
        self._listener.close()

    def close_clients(self) -> None:
        """Close every open connection of this server."""
        for transport in list(self._listener.connections):
            transport.close()

    def abort_clients(self) -> None:
        """Abort every open connection of this server."""
        for transport in list(self._listener.connections):
            transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the server is closed and its last connection has ended."""
        await self._listener.wait_over()

    def _serve(self) -> None:
        if self._listener.is_closed:
            raise RuntimeError(f"server {self!r} is closed")
        self._listener.is_serving = True
