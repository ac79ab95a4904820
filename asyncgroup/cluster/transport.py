"""Open a transport to a broker: name resolution, sockets, TLS, and readable messages for what can fail there."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from typing import Final

from asyncgroup.cluster.connection import Address, Connection
from asyncgroup.cluster.tls_errors import (
    PLAINTEXT_LISTENER_HINT,
    describe_certificate_error,
    describe_tls_error,
)
from asyncgroup.config import ClientConfig, Connector
from asyncgroup.errors import AuthenticationError, ConnectError, ConnectionLost, ProtocolError
from asyncgroup.security import OAuthBearer, Plain

__all__ = [
    "canonical_names",
    "describe_connect_error",
    "disconnect_hint",
    "open_transport",
    "resolve",
    "tls_context",
    "warn_if_credentials_unencrypted",
]

_log = logging.getLogger("asyncgroup.cluster")

KEEPALIVE_PROBES: Final = 3
"""Unanswered TCP keepalive probes after which the operating system drops a connection."""


async def resolve(address: Address, config: ClientConfig, deadline: float) -> list[tuple[str, int]]:
    """Return the distinct addresses of a host name in the resolver's order.

    With a configured `connector`, which resolves names itself, it is the host name. Raises ConnectError.
    """
    # A broker may advertise any number; a resolver would silently truncate it to 16 bits.
    if not 0 < address.port < 1 << 16:
        raise ConnectError(f"{address}: port {address.port} is not allowed: 1 to 65535")
    if config.connector is not None:
        return [address[1:]]
    try:
        return await _lookup(address.host, address.port, deadline)
    except (OSError, UnicodeError, TimeoutError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else str(error)
        raise ConnectError(
            f"{address}: the host name cannot be resolved: {reason or 'no answer in time'}"
        ) from error


async def _lookup(host: str, port: int, deadline: float) -> list[tuple[str, int]]:
    async with asyncio.timeout_at(deadline):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(entry[4][0]), int(entry[4][1])) for entry in found))


async def canonical_names(host: str, port: int, deadline: float) -> list[str]:
    """Return the canonical name of every address of `host`.

    An address without a name is returned as it is; if `host` does not resolve, `host` is returned.
    """
    loop = asyncio.get_running_loop()
    names = []
    try:
        for place in await _lookup(host, port, deadline):
            try:
                async with asyncio.timeout_at(deadline):
                    name, _ = await loop.getnameinfo(place, socket.NI_NAMEREQD)
            except OSError:
                name = place[0]
            names.append(name)
    except (OSError, UnicodeError, TimeoutError):
        names.append(host)
    return list(dict.fromkeys(names))


def tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    """Return a configuration's TLS context, None without TLS. Reads certificate files; raises ConfigError."""
    tls = config.security.tls if config.security is not None else None
    return None if tls is None else tls.make_context()


def warn_if_credentials_unencrypted(config: ClientConfig) -> None:
    """Log a warning if a SASL password or token is sent over an unencrypted connection."""
    security = config.security
    if security is None or security.tls is not None or not isinstance(security.sasl, (Plain, OAuthBearer)):
        return
    secret = "the password" if isinstance(security.sasl, Plain) else "the token"
    text = "SASL/%s without TLS: %s is sent to the brokers unencrypted; use Security(tls=Tls(…))"
    _log.warning(text, security.sasl.mechanism, secret)


async def open_transport(
    connection: Connection, host: str, port: int, config: ClientConfig, context: ssl.SSLContext | None
) -> None:
    """Connect `connection` to one resolved address, with TLS if `context` is given. Raises OSError, ConnectError."""
    loop = asyncio.get_running_loop()
    options: dict[str, object] = {}
    if context is not None:
        # the certificate is checked against the host name, not against the resolved address
        options = {"ssl": context, "server_hostname": connection.address.host.rstrip(".")}
        # the caller enforces a shorter limit, so asyncio's own must not end the handshake before
        options["ssl_handshake_timeout"] = config.connect_timeout
    if config.connector is not None:
        made = await _connect_with(config.connector, host, port)
        try:
            await loop.create_connection(lambda: connection.protocol, sock=made, **options)  # type: ignore[call-overload]  # mixed options
        except BaseException:
            made.close()
            raise
    else:
        if config.local_address is not None:
            options["local_addr"] = (config.local_address, 0)
        await loop.create_connection(lambda: connection.protocol, host, port, **options)  # type: ignore[call-overload]  # mixed options
    _enable_keepalive(connection.protocol.transport.get_extra_info("socket"), config.tcp_keepalive)


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

    `sock` is None on the in-memory test network.
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


# --- error messages ---------------------------------------------------------------------------------------------------

_TLS_LISTENER_HINT: Final = "does the listener expect TLS? Then set security.protocol=SSL or SASL_SSL, in code security=Security(tls=Tls(…))"
_CLIENT_CERT_REJECTED_HINT: Final = "does the broker trust the CA of this client's certificate?"
_CLIENT_CERT_MISSING_HINT: Final = (
    "does the listener require a client certificate? Then set cert_file and key_file"
)


def describe_connect_error(address: Address, error: Exception, with_tls: bool) -> str:
    """Return why a connection could not be opened, to follow the address in a message.

    Raises AuthenticationError if the broker's certificate was rejected, because a retry cannot succeed.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        raise AuthenticationError(f"{address}: {describe_certificate_error(address.host, error)}") from error
    if isinstance(error, ssl.SSLError):
        return describe_tls_error(error)
    text = str(error).removeprefix(f"{address}: ")
    if isinstance(error, OSError) and error.errno:
        text = os.strerror(error.errno)
    ended = isinstance(error, (ConnectionResetError, ConnectionAbortedError, TimeoutError))
    if not text:
        text = "no answer in time" if isinstance(error, TimeoutError) else "the broker closed the connection"
    if with_tls and ended:
        # a plaintext listener reads a TLS ClientHello as a request of 369 MB: it closes the connection, or waits for
        # the rest of the request
        return f"{text}, no TLS handshake ({PLAINTEXT_LISTENER_HINT})"
    return text


def disconnect_hint(config: ClientConfig, error: Exception) -> str:
    """Return a clause for the error of a connection that the broker closed before it answered any request, else "".

    A TLS listener closes a plaintext connection. A listener that requires a client certificate rejects the client only
    after the handshake of TLS 1.3, and not always with an alert.
    """
    if (
        not isinstance(error, ConnectionLost)
        or isinstance(error, ProtocolError)
        or "TLS failed" in str(error)
    ):
        return ""
    tls = config.security.tls if config.security is not None else None
    if tls is None:
        return f" before it answered any request ({_TLS_LISTENER_HINT})"
    if tls.context is None and tls.cert_file is None and tls.cert_data is None:
        return f" before it answered any request ({_CLIENT_CERT_MISSING_HINT})"
    return f" before it answered any request ({_CLIENT_CERT_REJECTED_HINT})"
