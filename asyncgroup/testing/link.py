"""One in-memory TCP connection: two pipes, one for each direction, and the transports at both ends."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from asyncgroup.testing.addresses import Address
from asyncgroup.testing.pipe import Pipe, Signal
from asyncgroup.testing.transport import VirtualTransport

if TYPE_CHECKING:
    from asyncgroup.testing.network import Network

__all__ = ["Link"]


class Link:
    """A connection between `client` and `server`, both (ip, port). Created by `Network.open`."""

    def __init__(self, network: Network, client: Address, server: Address) -> None:
        self.network = network
        self.client = client
        self.server = server
        self.loop = network.loop
        self._up = Pipe(self)  # client to server
        self._down = Pipe(self)  # server to client
        self._up.back = self._down
        self._down.back = self._up

    def __repr__(self) -> str:
        client, server = (f"{ip}:{port}" for ip, port in (self.client, self.server))
        state = ", ".join(name for name, end in self._ends().items() if end is not None) or "neither end"
        return f"<Link {client} -> {server}, open at: {state}>"

    def _ends(self) -> dict[str, VirtualTransport | None]:
        return {"client": self._down.receiver, "server": self._up.receiver}

    def open_ends(self) -> tuple[VirtualTransport, ...]:
        """Return the transports whose protocol has not received `connection_lost` yet."""
        return tuple(end for end in self._ends().values() if end is not None)

    def connect(self, protocol: asyncio.BaseProtocol, waiter: asyncio.Future[None]) -> VirtualTransport:
        """Create the client's transport, and send the server the signal that opens the connection."""
        self._up.send(Signal.OPEN)
        return VirtualTransport(
            self.loop, protocol, self._down, self._up, self.client, self.server, waiter=waiter
        )

    def accept(self) -> None:
        """Handle the arrival of `Signal.OPEN`: create the server's transport, or reset if nothing listens."""
        server = self.network.listener(self.server)
        protocol = None if server is None else server.make_protocol()
        if server is None or protocol is None:
            self._up.close()
            self._down.send(Signal.RESET)
            self.end_closed()
            return
        VirtualTransport(self.loop, protocol, self._up, self._down, self.server, self.client, server=server)

    def end_closed(self) -> None:
        """Drop the connection if both ends have closed their sockets; called after each of them."""
        if self._up.closed and self._down.closed:
            self.drop()

    def cut(self) -> None:
        """Reset the connection at both ends at once. Bytes in transit are lost."""
        ends = self.open_ends()
        self.drop()
        for end in ends:
            end.fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def drop(self) -> None:
        """Discard everything in transit and deliver nothing from now on."""
        self._up.drop()
        self._down.drop()
        self.network.forget(self)

    def resume(self) -> None:
        """Continue delivery after a fault was removed."""
        self._up.schedule_delivery()
        self._down.schedule_delivery()
