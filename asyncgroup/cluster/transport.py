"""Opening a transport to a broker: names, sockets, TLS; and what went wrong, in words that help."""

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
"""Keep-alive probes without an answer after which the system gives a connection up."""


async def resolve(address: Address, config: ClientConfig, deadline: float) -> list[tuple[str, int]]:
    """Every address of a host name, each once, in the resolver's order; the name itself where a connector resolves it.

    Raises ConnectError.
    """
    if (
        not 0 < address.port < 1 << 16
    ):  # brokers may advertise anything; a resolver would quietly cut it to 16 bits
        raise ConnectError(f"{address}: port {address.port} cannot be; 1 to 65535 is allowed")
    if config.connector is not None:
        return [address[1:]]
    try:
        return await _lookup(address.host, address.port, deadline)
    except (OSError, UnicodeError, TimeoutError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else str(error)
        raise ConnectError(
            f"{address}: the name does not resolve: {reason or 'no answer in time'}"
        ) from error


async def _lookup(host: str, port: int, deadline: float) -> list[tuple[str, int]]:
    async with asyncio.timeout_at(deadline):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(entry[4][0]), int(entry[4][1])) for entry in found))


async def canonical_names(host: str, port: int, deadline: float) -> list[str]:
    """The canonical name of every address of `host`; the address itself, or `host`, where the resolver has no answer."""
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
    """The TLS context that a configuration asks for, None without TLS; reads files. Raises ConfigError."""
    tls = config.security.tls if config.security is not None else None
    return None if tls is None else tls.make_context()


def warn_if_credentials_unencrypted(config: ClientConfig) -> None:
    """Warn of a password or token that anyone on the way to the brokers can read."""
    security = config.security
    if security is None or security.tls is not None or not isinstance(security.sasl, (Plain, OAuthBearer)):
        return
    secret = "the password" if isinstance(security.sasl, Plain) else "the token"
    text = "SASL/%s without TLS: %s is not encrypted on its way to the brokers; give Security(tls=Tls(…))"
    _log.warning(text, security.sasl.mechanism, secret)


async def open_transport(
    connection: Connection, host: str, port: int, config: ClientConfig, context: ssl.SSLContext | None
) -> None:
    """Connect `connection` to one address, with TLS if there is a context. Raises OSError, ConnectError."""
    loop = asyncio.get_running_loop()
    options: dict[str, object] = {}
    if context is not None:
        # the certificate is the named host's, whichever of its addresses answered
        options = {"ssl": context, "server_hostname": connection.address.host.rstrip(".")}
        # the caller's limit is the one that counts
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
    """Have the system notice a peer that vanished without a word; the in-memory network has no socket."""
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


# --- failures ---------------------------------------------------------------------------------------------------------

_TLS_LISTENER_HINT: Final = "does the listener expect TLS? Then give security.protocol=SSL or SASL_SSL, in code security=Security(tls=Tls(…))"
_CLIENT_CERT_REJECTED_HINT: Final = "does it trust the authority of this client's certificate?"
_CLIENT_CERT_MISSING_HINT: Final = (
    "does the listener ask for a client certificate? Give cert_file and key_file"
)


def describe_connect_error(address: Address, error: Exception, with_tls: bool) -> str:
    """Why a connection could not be made, in words that stand behind its address.

    Raises AuthenticationError for a broker whose certificate does not do: that will not heal by itself.
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
        # a plaintext listener takes a TLS greeting for a request of 369 MB: it hangs up, or waits for the rest of it
        return f"{text}, no TLS handshake ({PLAINTEXT_LISTENER_HINT})"
    return text


def disconnect_hint(config: ClientConfig, error: Exception) -> str:
    """What a broker that ends the connection before it has answered anything may expect, as a clause for the error.

    A TLS listener closes a plaintext connection; one that asks for client certificates says so only after TLS 1.3's
    handshake, and not always in words.
    """
    if (
        not isinstance(error, ConnectionLost)
        or isinstance(error, ProtocolError)
        or "TLS failed" in str(error)
    ):
        return ""
    tls = config.security.tls if config.security is not None else None
    if tls is None:
        return f" before it answered anything ({_TLS_LISTENER_HINT})"
    if tls.context is None and tls.cert_file is None and tls.cert_data is None:
        return f" before it answered anything ({_CLIENT_CERT_MISSING_HINT})"
    return f" before it answered anything ({_CLIENT_CERT_REJECTED_HINT})"
