"""TLS on a node's connections: after the handshake, a `ServerConnection` takes over."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

from asyncgroup.broker.net.connection import ServerConnection
from asyncgroup.broker.net.listener import Listener
from asyncgroup.broker.net.security import ListenerSecurity
from asyncgroup.errors import ConfigError
from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.secret import reveal

__all__ = ["TlsHandshake", "connection_factory"]

log = escaping_logger(__name__)

_HANDSHAKE_TIMEOUT: Final = 10.0
"""Time limit of a client's handshake in seconds."""


class TlsHandshake(asyncio.Protocol):
    """An accepted connection during its TLS handshake.

    It is one of the listener's connections, so that it is aborted when the node stops.
    """

    def __init__(self, listener: Listener, context: ssl.SSLContext) -> None:
        self._listener = listener
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._connection = ServerConnection(listener)
        self._encrypted: list[bytes] = []  # data received before the TLS protocol takes over
        self._decrypted: list[bytes] = []  # data received between that and `ServerConnection`
        self._is_secured = False  # the TLS protocol has taken over the transport
        self._lost = False
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.number = self._connection.number

    def __repr__(self) -> str:
        return f"<TlsHandshake at node {self._listener.node_id}>"

    # -- asyncio.Protocol: of the plain transport first, then of the TLS transport ----------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake; the transport is paused until TLS reads from it."""
        # not isinstance: the transports of uvloop do not derive from those of asyncio
        transport = cast("asyncio.Transport", transport)
        transport.pause_reading()
        self._transport = transport
        self._listener.connections.add(self)
        self._task = start_task(self._handshake(transport))
        self._task.add_done_callback(self._handshake_done)
        if not self._listener.is_open:  # accepted just as the node stopped
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Keep data that arrives before the next protocol takes over."""
        (self._decrypted if self._is_secured else self._encrypted).append(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Note that the client disconnected."""
        self._lost = True

    # -- the handshake -----------------------------------------------------------------------------------------

    async def _handshake(self, transport: asyncio.Transport) -> None:
        try:
            secured = await self._start_tls(transport)
        except OSError as error:  # includes ssl.SSLError
            transport.abort()
            peer = transport.get_extra_info("peername")
            where = f"{peer[0]}:{peer[1]}" if peer else "a client"
            reason = str(error) or "the client closed the connection"  # ConnectionResetError has no message
            log.warning("node %d: TLS handshake with %s failed: %s", self._listener.node_id, where, reason)
            return
        if secured is None or self._lost:  # the client disconnected right after the handshake
            transport.abort()
            return
        secured.set_protocol(self._connection)
        self._connection.connection_made(secured)
        for data in self._decrypted:
            self._connection.data_received(data)

    async def _start_tls(self, transport: asyncio.Transport) -> asyncio.Transport | None:
        """Return the TLS transport after the handshake.

        uvloop starts to read after `connection_made`, although that has paused the transport: what arrives before
        `start_tls` has replaced the protocol is passed on to the TLS protocol.
        """
        starting = start_task(
            self._loop.start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE_TIMEOUT,
            )
        )
        try:
            await asyncio.sleep(0)  # until the task has set the protocol, and scheduled its `connection_made`
            self._is_secured = True
            self._loop.call_soon(self._pass_on, transport)
            return await starting
        finally:
            await cancel_and_wait(starting)

    def _pass_on(self, transport: asyncio.Transport) -> None:
        """Give the TLS protocol what was received before it took over; runs before the transport is read again."""
        if not self._encrypted or transport.is_closing() or transport.get_protocol() is self:
            return
        protocol = cast("asyncio.BufferedProtocol", transport.get_protocol())
        rest = memoryview(b"".join(self._encrypted))
        while rest:
            buffer = memoryview(protocol.get_buffer(len(rest)))[: len(rest)]
            buffer[:] = rest[: len(buffer)]
            protocol.buffer_updated(len(buffer))
            rest = rest[len(buffer) :]

    def _handshake_done(self, task: asyncio.Task[None]) -> None:
        self._listener.connections.discard(self)
        if task.cancelled():
            if self._transport is not None:
                self._transport.abort()
        elif task.exception() is not None:
            log.error(
                "node %d: unexpected error in a TLS handshake",
                self._listener.node_id,
                exc_info=task.exception(),
            )
        if not self.closed.done():
            self.closed.set_result(None)

    def abort(self) -> None:
        """Close at once."""
        if self._task is not None:
            self._task.cancel()


def connection_factory(security: ListenerSecurity | None) -> Callable[[Listener], asyncio.Protocol]:
    """Return the factory of a connection's protocol. Raise ConfigError for certificates that cannot be read."""
    context = None if security is None else _tls_context(security)
    return ServerConnection if context is None else lambda listener: TlsHandshake(listener, context)


def _tls_context(security: ListenerSecurity) -> ssl.SSLContext | None:
    """Return the server's TLS context, None without TLS. Raise ConfigError naming a file that cannot be loaded."""
    if security.cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    password = reveal(security.key_password) or ""  # with None, OpenSSL would prompt at the terminal
    try:
        context.load_cert_chain(security.cert_file, security.key_file, lambda: password)
    except (OSError, ValueError) as error:
        rule = f"a readable PEM certificate with its key: {_why(error)}"
        raise ConfigError("cert_file", str(security.cert_file), rule) from error
    if security.client_ca_file is not None:
        try:
            context.load_verify_locations(security.client_ca_file)
        except (OSError, ValueError) as error:
            rule = f"readable PEM certificates: {_why(error)}"
            raise ConfigError("client_ca_file", str(security.client_ca_file), rule) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _why(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
