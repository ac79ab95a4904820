"""TLS on a node's connections: the handshake comes first, and only then there is a `Connection`."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from asyncgroup.broker.node import Node
from asyncgroup.broker.server import Connection
from asyncgroup.escaping import escaping_logger

__all__ = ["TlsHandshake"]

log = escaping_logger(__name__)

_HANDSHAKE_LIMIT: Final = 10.0
"""Seconds that a client has for its handshake."""


class TlsHandshake(asyncio.Protocol):
    """A connection that was accepted; once its handshake is done, a `Connection` takes over.

    Until then it counts among the node's connections, so that it ends with the node.
    """

    def __init__(self, node: Node, context: ssl.SSLContext) -> None:
        self._node = node
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._connection = Connection(node)
        self._early: list[bytes] = []  # what came together with the end of the handshake
        self._lost = False
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.number = self._connection.number

    def __repr__(self) -> str:
        return f"<TlsHandshake at node {self._node.id}>"

    # -- asyncio.Protocol: of the plain transport first, then of the one that TLS makes ------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake; nothing is read before TLS reads it."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._transport = transport
        self._node.connections.add(self)
        self._task = self._loop.create_task(self._shake_hands(transport))
        self._task.add_done_callback(self._over)
        if not self._node.running:  # accepted in the moment in which the node stopped
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Keep what comes before the connection is there."""
        self._early.append(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        """The client has gone."""
        self._lost = True

    # -- the handshake -----------------------------------------------------------------------------------------

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        try:
            secured = await self._loop.start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE_LIMIT,
            )
        except OSError as error:  # ssl.SSLError is one
            transport.abort()
            peer = transport.get_extra_info("peername")
            where = f"{peer[0]}:{peer[1]}" if peer else "a client"
            reason = (
                str(error) or "the client closed the connection"
            )  # asyncio's ConnectionResetError is empty
            log.warning("node %d: no TLS handshake with %s: %s", self._node.id, where, reason)
            return
        if secured is None or self._lost:  # the client left when the handshake was done
            transport.abort()
            return
        secured.set_protocol(self._connection)
        self._connection.connection_made(secured)
        for data in self._early:
            self._connection.data_received(data)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._node.connections.discard(self)
        if task.cancelled():
            if self._transport is not None:
                self._transport.abort()
        elif task.exception() is not None:
            log.error("node %d: a TLS handshake failed", self._node.id, exc_info=task.exception())
        if not self.closed.done():
            self.closed.set_result(None)

    def abort(self) -> None:
        """Close at once."""
        if self._task is not None:
            self._task.cancel()
