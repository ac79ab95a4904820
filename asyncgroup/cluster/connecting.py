"""Making a connection: every address of a name is tried, and the broker's versions are learned (KIP-511, KIP-896)."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from functools import cache
from importlib.metadata import PackageNotFoundError, version as package_version
from typing import Final

from asyncgroup.cluster.connection import Address, Connection, Pulse
from asyncgroup.config import ClientConfig
from asyncgroup.errors import (
    BrokerError,
    ConnectError,
    ErrorCode,
    ProtocolError,
    TransportError,
    UnsupportedVersionError,
)
from asyncgroup.hooks import Hooks
from asyncgroup.wire import messages as m
from asyncgroup.wire.protocol import APIS
from asyncgroup.wire.schema import VersionRange

__all__ = ["connect"]

_SOFTWARE: Final = "asyncgroup"


async def connect(
    address: Address, purpose: str, config: ClientConfig, hooks: Hooks, pulse: Pulse | None = None
) -> Connection:
    """Open a connection and learn the broker's versions, within `connect_timeout` seconds.

    Every address that the host name has is tried, in the resolver's order, each within an even share of the time.
    Raises ConnectError naming every address and why it failed, UnsupportedVersionError for a broker that is too old.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + config.connect_timeout
    targets = await _resolve(address, deadline)
    failures: list[str] = []
    for index, (host, port) in enumerate(targets):
        share = (deadline - loop.time()) / (len(targets) - index)
        connection = Connection(address, purpose, config, hooks, pulse)
        try:
            async with asyncio.timeout(share):
                await loop.create_connection(lambda made=connection: made.protocol, host, port)  # type: ignore[misc]
                await _learn_versions(connection, share)
        except UnsupportedVersionError:
            await connection.aclose()
            raise
        except (OSError, TimeoutError, TransportError, ProtocolError) as error:
            await connection.aclose()
            place = "" if (host, port) == address[1:] else f"{host}:{port}: "
            failures.append(place + _reason(error))
        except BaseException:
            await connection.aclose()
            raise
        else:
            connection.announce(host, port)
            return connection
    raise ConnectError(f"{address}: " + "; ".join(failures))


def _reason(error: Exception) -> str:
    """Why a connection could not be made, in words that stand behind its address."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or "no answer in time"


async def _resolve(address: Address, deadline: float) -> list[tuple[str, int]]:
    """Every address of a host name, each once, in the resolver's order."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(deadline):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else str(error)
        raise ConnectError(
            f"{address}: the name does not resolve: {reason or 'no answer in time'}"
        ) from error
    return list(dict.fromkeys((str(entry[4][0]), int(entry[4][1])) for entry in found))


async def _learn_versions(connection: Connection, timeout: float) -> None:
    """Ask ApiVersions in the newest version; a broker that does not know it answers in version 0 with its range."""
    version = APIS[m.ApiVersionsRequest.API_KEY].versions.high
    request = m.ApiVersionsRequest(
        client_software_name=_SOFTWARE, client_software_version=_software_version()
    )
    response = await connection.request(request, version, timeout)
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        theirs = {key.api_key: key.max_version for key in response.api_keys}
        version = min(theirs.get(m.ApiVersionsRequest.API_KEY, 0), version)
        response = await connection.request(request, version, timeout)
    if response.error_code:
        raise UnsupportedVersionError(
            str(BrokerError(response.error_code, f"ApiVersions of {connection.address}"))
        )
    connection.versions = {
        key.api_key: VersionRange(key.min_version, key.max_version) for key in response.api_keys
    }


@cache
def _software_version() -> str:
    """This package's version, in the alphabet that brokers accept (KIP-511)."""
    try:
        return re.sub(r"[^a-zA-Z0-9.-]", "-", package_version("asyncgroup"))
    except PackageNotFoundError:
        return "0"
