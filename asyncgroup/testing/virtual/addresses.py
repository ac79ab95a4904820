"""Addresses of the in-memory network, as sockets and `getaddrinfo` return them, and the lookup of host names."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from typing import TypeAlias

__all__ = [
    "WILDCARD",
    "Address",
    "AddressInfo",
    "SocketAddress",
    "family_of",
    "ips_of",
    "lookup",
    "socket_address",
]

Address: TypeAlias = tuple[str, int]
"""(ip, port)"""

SocketAddress: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
"""An address as `getsockname` returns it; for IPv6 with flow label and scope id."""

AddressInfo: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, SocketAddress]
"""One result of `getaddrinfo`: family, type, proto, canonical name, socket address."""

WILDCARD = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
"""The wildcard address of each family: a listener bound to it accepts connections to every address."""

_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def family_of(ip: str) -> socket.AddressFamily:
    """Return AF_INET or AF_INET6."""
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def socket_address(address: Address) -> SocketAddress:
    """Return `address` in the form that sockets use."""
    return address if family_of(address[0]) == socket.AF_INET else (*address, 0, 0)


def ips_of(hosts: Mapping[str, Sequence[str]], host: str) -> Sequence[str]:
    """Return the ips of a name in `hosts`, or of a numeric address. Raises `socket.gaierror` for any other host."""
    if host in hosts:
        return hosts[host]
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        problem = f"Name or service not known: {host!r} is not in network.hosts"
        raise socket.gaierror(socket.EAI_NONAME, problem) from None


def lookup(
    hosts: Mapping[str, Sequence[str]],
    host: bytes | str | None,
    port: bytes | str | int | None,
    *,
    family: int = 0,
    datagram: bool = False,
    passive: bool = False,
) -> list[AddressInfo]:
    """Return what `getaddrinfo` returns, from `hosts`. Raises `socket.gaierror` for an unknown name or family."""
    name = host.decode() if isinstance(host, bytes) else host
    if not name:
        known = WILDCARD if passive else _LOOPBACK
        ips: Sequence[str] = [known[socket.AF_INET6 if family == socket.AF_INET6 else socket.AF_INET]]
    else:
        ips = [ip for ip in ips_of(hosts, name) if family in (0, family_of(ip))]
    if not ips:
        raise socket.gaierror(socket.EAI_NONAME, f"No address of that family for {name!r}")
    kind = socket.SOCK_DGRAM if datagram else socket.SOCK_STREAM
    proto = socket.IPPROTO_UDP if datagram else socket.IPPROTO_TCP
    return [(family_of(ip), kind, proto, "", socket_address((ip, int(port or 0)))) for ip in ips]
