"""Establish a connection: try every address of a host name, request ApiVersions (KIP-511, KIP-896), authenticate."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from typing import Final

from asyncgroup.cluster.authentication import TokenTime, authenticate
from asyncgroup.cluster.connect_errors import HINTS, disconnect_hint
from asyncgroup.cluster.connection import Address, Connection, LastResponses
from asyncgroup.config import ClientConfig
from asyncgroup.errors import (
    AuthenticationError,
    BrokerError,
    ConnectError,
    ErrorCode,
    ProtocolError,
    RequestTimedOut,
    TransportError,
    UnsupportedVersionError,
)
from asyncgroup.hooks import Hooks
from asyncgroup.net.addresses import resolve
from asyncgroup.net.transport import describe_connect_error, open_transport
from asyncgroup.security import OAuthBearer, Plain
from asyncgroup.version import __version__
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import APIS
from asyncgroup.wire.schema import VersionRange

__all__ = ["connect", "tls_context", "warn_if_credentials_unencrypted"]

_log = logging.getLogger("asyncgroup.cluster")

_SOFTWARE: Final = "asyncgroup"
_SOFTWARE_VERSION: Final = re.sub(r"[^a-zA-Z0-9.-]", "-", __version__)
"""With only the characters that brokers accept (KIP-511)."""


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


async def connect(
    address: Address,
    purpose: str,
    config: ClientConfig,
    hooks: Hooks,
    last_responses: LastResponses | None = None,
    context: ssl.SSLContext | None = None,
) -> Connection:
    """Open a connection, request ApiVersions and authenticate, within `connect_timeout` seconds.

    Every address of the host name is tried in the resolver's order; each gets an equal share of the remaining time.
    `context` is the TLS context; without it one is made from the configuration. Raises ConnectError with every address
    and the reason why it failed, and with the exception of a token provider as its `__cause__`; UnsupportedVersionError if the
    broker is too old, AuthenticationError.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + config.connect_timeout
    context = context or tls_context(config)
    targets = await resolve(address, deadline, config.connector)
    failures: list[str] = []
    cause: BaseException | None = None
    for index, (host, port) in enumerate(targets):
        share = (deadline - loop.time()) / (len(targets) - index)
        connection = Connection(address, purpose, config, hooks, last_responses)
        token_time = TokenTime()
        try:
            async with asyncio.timeout(share):
                await open_transport(connection.protocol, address.host, host, port, config, context)
                await _set_up(connection, config, share, token_time)
        except (UnsupportedVersionError, AuthenticationError):
            await connection.aclose()
            raise
        except (OSError, TimeoutError, TransportError, ProtocolError) as error:
            await connection.aclose()
            has_transport = connection.protocol.has_transport
            in_handshake = context is not None and not has_transport
            place = "" if (host, port) == address[1:] else f"{host}:{port}: "
            slow = token_time.describe(share) if isinstance(error, TimeoutError | RequestTimedOut) else None
            why = slow or describe_connect_error(address, error, in_handshake, HINTS)
            if isinstance(error, ConnectError):
                cause = cause or error.__cause__
            if has_transport and not connection.versions:
                why += disconnect_hint(config, error)
            failures.append(place + why)
        except BaseException:
            await connection.aclose()
            raise
        else:
            connection.set_ready(host, port)
            return connection
    raise ConnectError(f"{address}: " + "; ".join(failures)) from cause


async def _set_up(
    connection: Connection, config: ClientConfig, timeout: float, token_time: TokenTime
) -> None:
    await _learn_versions(connection, timeout)
    if config.security is not None and config.security.sasl is not None:
        await authenticate(connection, config.security.sasl, timeout, token_time)


async def _learn_versions(connection: Connection, timeout: float) -> None:
    """Request ApiVersions in the newest version and store the broker's version ranges on the connection.

    A broker that does not support that version answers with its own range (KIP-511), and is asked again; without a usable
    range in version 0, as Java and librdkafka do (`NetworkClient.handleApiVersionsResponse`).
    """
    version = APIS[m.ApiVersionsRequest.API_KEY].versions.high
    request = m.ApiVersionsRequest(client_software_name=_SOFTWARE, client_software_version=_SOFTWARE_VERSION)
    response = await connection.request(request, version, timeout)
    while response.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
        theirs = {key.api_key: key.max_version for key in response.api_keys}
        named = theirs.get(m.ApiVersionsRequest.API_KEY, 0)
        version = named if 0 <= named < version else 0
        response = await connection.request(request, version, timeout)
    if response.error_code:
        error = BrokerError(response.error_code, f"{connection.address}: ApiVersions")
        raise (ConnectError if error.retriable else UnsupportedVersionError)(str(error))
    connection.versions = {
        key.api_key: VersionRange(key.min_version, key.max_version) for key in response.api_keys
    }
    connection.features = {key.name: key.max_version_level for key in response.finalized_features}
    connection.features_epoch = response.finalized_features_epoch
