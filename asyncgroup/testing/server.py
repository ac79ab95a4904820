"""The server object that `create_server` returns on a virtual loop: asyncio's `Server` for in-memory addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from asyncgroup.testing.addresses import Address, family_of, socket_address

if TYPE_CHECKING:
    from asyncgroup.testing.network import Network
    from asyncgroup.testing.transport import VirtualTransport

__all__ = ["ListeningSocket", "VirtualServer"]


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


class VirtualServer(asyncio.AbstractServer):
    """A listener of a `Network`, with the interface of `asyncio.Server`.

    `wait_closed` works as since Python 3.12: it waits until the server is closed and its last connection has ended.
    """

    def __init__(
        self,
        network: Network,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        addresses: tuple[Address, ...],
    ) -> None:
        self._network = network
        self._protocol_factory = protocol_factory
        self._addresses = addresses
        self._serving = False
        self._closed = False
        self._clients: dict[VirtualTransport, None] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._forever: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        places = ", ".join(f"{ip}:{port}" for ip, port in self._addresses)
        state = "closed" if self._closed else "serving" if self._serving else "bound"
        return f"<VirtualServer {places} {state}, {len(self._clients)} connections>"

    @property
    def sockets(self) -> tuple[ListeningSocket, ...]:
        """One stand-in per address, with `getsockname()`; none after `close`."""
        return () if self._closed else tuple(ListeningSocket(address) for address in self._addresses)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The virtual loop."""
        return self._network.loop

    def is_serving(self) -> bool:
        """True while connections are accepted."""
        return self._serving

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
        if self._closed:
            return
        self._closed = True
        self._serving = False
        self._network.release(self)
        if self._forever is not None:
            self._forever.cancel()
        self._wake_if_over()

    def close_clients(self) -> None:
        """Close every open connection of this server."""
        for transport in list(self._clients):
            transport.close()

    def abort_clients(self) -> None:
        """Abort every open connection of this server."""
        for transport in list(self._clients):
            transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the server is closed and its last connection has ended."""
        if not self._over():
            waiter: asyncio.Future[None] = self.get_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def make_protocol(self) -> asyncio.BaseProtocol | None:
        """Return a protocol for a new connection; None if the factory raised, which goes to the loop's handler."""
        try:
            return self._protocol_factory()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # an error of the factory does not stop the listener
            message = "Error on transport creation for incoming connection"
            self.get_loop().call_exception_handler({"message": message, "exception": error})
            return None

    def attach(self, transport: VirtualTransport) -> None:
        """Register an accepted connection."""
        self._clients[transport] = None

    def detach(self, transport: VirtualTransport) -> None:
        """Remove a connection that has ended."""
        del self._clients[transport]
        self._wake_if_over()

    def _serve(self) -> None:
        if self._closed:
            raise RuntimeError(f"server {self!r} is closed")
        self._serving = True

    def _over(self) -> bool:
        return self._closed and not self._clients

    def _wake_if_over(self) -> None:
        if self._over():
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()
