"""Host names: how they are shown and resolved."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final, Protocol

from asyncgroup.errors import ConnectError
from asyncgroup.escaping import printable

if TYPE_CHECKING:
    from asyncgroup.config import Connector

__all__ = ["Destination", "canonical_names", "host_and_port", "resolve"]

_LONGEST_HOST: Final = 255
"""Characters of a host name shown in messages: the longest name that DNS allows."""


class Destination(Protocol):
    """What a client connects to; `str()` is its name in messages."""

    @property
    def host(self) -> str:
        """Name or IP address."""
        ...

    @property
    def port(self) -> int:
        """TCP port."""
        ...


def host_and_port(host: str, port: int) -> str:
    """Return `host:port` for a message, an IPv6 address in brackets."""
    shown = printable(host, _LONGEST_HOST)
    return f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"


async def resolve(
    destination: Destination, deadline: float, connector: Connector | None
) -> list[tuple[str, int]]:
    """Return the distinct addresses of a host name in the resolver's order.

    With a `connector`, which resolves names itself, it is the host name. Raises ConnectError.
    """
    # A broker may advertise any number; a resolver would silently truncate it to 16 bits.
    if not 0 < destination.port < 1 << 16:
        raise ConnectError(f"{destination}: port {destination.port} is not allowed: 1 to 65535")
    if connector is not None:
        return [(destination.host, destination.port)]
    try:
        return await _lookup(destination.host, destination.port, deadline)
    except (OSError, UnicodeError, TimeoutError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else str(error)
        raise ConnectError(
            f"{destination}: the host name cannot be resolved: {reason or 'no answer in time'}"
        ) from error


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


async def _lookup(host: str, port: int, deadline: float) -> list[tuple[str, int]]:
    async with asyncio.timeout_at(deadline):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(entry[4][0]), int(entry[4][1])) for entry in found))
