"""Open a transport to one address: sockets, TLS, keepalive."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import TYPE_CHECKING, Final, Protocol

from asyncgroup.errors import AuthenticationError, ConnectError
from asyncgroup.net.tls_errors import Hints, describe_certificate_error, describe_tls_error

if TYPE_CHECKING:
    from asyncgroup.config import Connector
    from asyncgroup.net.addresses import Destination
    from asyncgroup.net.framing import FrameProtocol

__all__ = ["SocketOptions", "describe_connect_error", "open_transport"]

KEEPALIVE_PROBES: Final = 3
"""Unanswered TCP keepalive probes after which the operating system drops a connection."""


class SocketOptions(Protocol):
    """What the configuration of a client says about its sockets; seconds."""

    @property
    def connector(self) -> Connector | None:
        """Opens the socket in place of the event loop."""
        ...

    @property
    def connect_timeout(self) -> float:
        """Limit of the whole."""
        ...

    @property
    def local_address(self) -> str | None:
        """The address that the socket is bound to."""
        ...

    @property
    def tcp_keepalive(self) -> float | None:
        """Idle time before the first keepalive probe; None: none are sent."""
        ...


async def open_transport(
    protocol: FrameProtocol,
    server_name: str,
    host: str,
    port: int,
    options: SocketOptions,
    context: ssl.SSLContext | None,
) -> None:
    """Connect `protocol` to one resolved address, with TLS if `context` is given. Raises OSError, ConnectError.

    The certificate is checked against `server_name`, not against the resolved address.
    """
    loop = asyncio.get_running_loop()
    more: dict[str, object] = {}
    if context is not None:
        more = {"ssl": context, "server_hostname": server_name.rstrip(".")}
        # the caller enforces a shorter limit, so asyncio's own must not end the handshake before
        more["ssl_handshake_timeout"] = options.connect_timeout
    if options.connector is not None:
        made = await _connect_with(options.connector, host, port)
        try:
            await loop.create_connection(lambda: protocol, sock=made, **more)  # type: ignore[call-overload]  # mixed options
        except BaseException:
            made.close()
            raise
    else:
        if options.local_address is not None:
            more["local_addr"] = (options.local_address, 0)
        await loop.create_connection(lambda: protocol, host, port, **more)  # type: ignore[call-overload]  # mixed options
    _enable_keepalive(protocol.transport.get_extra_info("socket"), options.tcp_keepalive)


async def _connect_with(connector: Connector, host: str, port: int) -> socket.socket:
    try:
        made = await connector(host, port)
        made.setblocking(False)
    except OSError:
        raise
    except Exception as error:
        raise ConnectError(f"the connector failed: {type(error).__name__}: {error}") from error
    return made


def _enable_keepalive(sock: socket.socket | None, seconds: float | None) -> None:
    """Enable TCP keepalive, so that the operating system detects a peer that disappeared.

    Connections of the tests' network have no socket: `sock` is None.
    """
    if sock is None or seconds is None:
        return
    whole = max(1, round(seconds))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", whole),
        ("TCP_KEEPALIVE", whole),
        ("TCP_KEEPINTVL", whole),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def describe_connect_error(destination: Destination, error: Exception, with_tls: bool, hints: Hints) -> str:
    """Return why a connection could not be opened, to follow the address in a message.

    Raises AuthenticationError if the broker's certificate was rejected, because a retry cannot succeed.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        raise AuthenticationError(
            f"{destination}: {describe_certificate_error(destination.host, error, hints)}"
        ) from error
    if isinstance(error, ssl.SSLError):
        return describe_tls_error(error, hints)
    text = str(error).removeprefix(f"{destination}: ")
    if isinstance(error, OSError) and error.errno:
        text = os.strerror(error.errno)
    ended = isinstance(error, (ConnectionResetError, ConnectionAbortedError, TimeoutError))
    if not text:
        text = "no answer in time" if isinstance(error, TimeoutError) else "the broker closed the connection"
    if with_tls and ended:
        # a plaintext listener reads a TLS ClientHello as a frame of 369 MB: it closes the connection, or waits for
        # the rest of the frame
        return f"{text}, no TLS handshake ({hints.plaintext_listener})"
    return text
