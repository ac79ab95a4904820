"""Establish a connection to a Pulsar broker: try every address of the host name, send CONNECT, answer challenges."""

from __future__ import annotations

import asyncio
import ssl
from itertools import count
from typing import Final

from asyncgroup.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionLost,
    ProtocolError,
    TransportError,
)
from asyncgroup.hooks import Hooks
from asyncgroup.net.addresses import resolve
from asyncgroup.net.transport import describe_connect_error, open_transport
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.credentials import CLIENT_VERSION
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.service_url import HINTS, BrokerAddress
from asyncgroup.pulsar.wire.commands import PROTOCOL_VERSION, CommandConnect, FeatureFlags
from asyncgroup.pulsar.wire.server_errors import ServerError

__all__ = ["connect"]

_FEATURES = FeatureFlags(
    supports_auth_refresh=True,  # without it the broker closes the connection when a token expires
    supports_broker_entry_metadata=True,
    supports_partial_producer=True,
    supports_topic_watchers=True,
    supports_get_partitioned_metadata_without_auto_creation=True,
)
_REFUSALS: Final = {ServerError.AUTHENTICATION_ERROR, ServerError.AUTHORIZATION_ERROR}


async def connect(
    logical: BrokerAddress,
    physical: BrokerAddress,
    config: PulsarConfig,
    context: ssl.SSLContext | None,
    ids: count[int],
    hooks: Hooks | None = None,
) -> PulsarConnection:
    """Open a connection within `connect_timeout` seconds.

    Raises ConnectError with every address and the reason why it failed, AuthenticationError.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + config.connect_timeout
    targets = await resolve(physical, deadline, config.connector)
    failures: list[str] = []
    cause: BaseException | None = None
    for index, (host, port) in enumerate(targets):
        connection = PulsarConnection(logical, physical, config, ids, hooks)
        try:
            async with asyncio.timeout((deadline - loop.time()) / (len(targets) - index)):
                await open_transport(connection.protocol, physical.host, host, port, config, context)
                await _set_up(connection)
        except AuthenticationError:
            await connection.aclose()
            raise
        except (OSError, TimeoutError, TransportError, ProtocolError, PulsarServerError) as error:
            await connection.aclose()
            failures.append(_reason(connection, error, host, port, with_tls=context is not None))
            cause = error.__cause__ or error
        except BaseException:
            await connection.aclose()
            raise
        else:
            if connection.reports is not None:
                connection.reports.connected(host, port)
            return connection
    raise ConnectError(f"{physical}: " + "; ".join(failures)) from cause


async def _set_up(connection: PulsarConnection) -> None:
    is_proxied = connection.logical != connection.physical
    connection.send_command(
        CommandConnect(
            client_version=CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
            auth_method_name=connection.credentials.method,
            auth_data=await connection.credentials.fetch(),
            proxy_to_broker_url=str(connection.logical) if is_proxied else None,
            feature_flags=_FEATURES,
        )
    )
    try:
        await connection.wait_connected()
    except PulsarServerError as error:
        if error.code in _REFUSALS:
            raise AuthenticationError(f"{error}{connection.credentials.hint()}") from error
        raise


def _reason(connection: PulsarConnection, error: Exception, host: str, port: int, *, with_tls: bool) -> str:
    is_connected = connection.protocol.has_transport
    why = describe_connect_error(connection.physical, error, with_tls and not is_connected, HINTS)
    if isinstance(error, TimeoutError) and connection.credentials.is_waiting:
        why = "the provider of the credential returned nothing in time (connect_timeout)"
    elif not with_tls and is_connected and isinstance(error, ConnectionLost | TimeoutError):
        why += f" (is it a TLS port? Then {HINTS.tls_listener})"
    return why if (host, port) == tuple(connection.physical) else f"{host}:{port}: {why}"
