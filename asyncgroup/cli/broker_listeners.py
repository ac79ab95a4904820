"""The addresses that `asyncgroup broker` listens on: ports, errors that name the flag, and a warning if others can connect."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from asyncgroup.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from asyncgroup.broker import ListenerSecurity

__all__ = ["exposure_warning", "is_free", "node_ports", "readable_errors"]


def node_ports(options: argparse.Namespace) -> range | None:
    """Return the nodes' ports; None for any free ports."""
    last = options.port + options.nodes - 1
    if last > 65535:
        allowed = f"at most {65536 - options.port} with --port {options.port}"
        raise UsageError(f"--nodes {options.nodes} is not allowed: {allowed}")
    # port 0: each node gets any free port
    return range(options.port, last + 1) if options.port else None


@contextmanager
def readable_errors(options: argparse.Namespace) -> Iterator[None]:
    """Turn errors of listeners, of the data directory and of options into errors that name the flag and its value."""
    try:
        yield
    except socket.gaierror as error:
        raise UsageError(
            f"--host {options.host} is not allowed: an address of this machine ({error.strerror})"
        ) from error
    except ConfigError as error:
        # keys of the cluster that have a flag here; others are of --set, whose text names them
        flag = {"nodes": "--nodes", "data_dir": "--data-dir"}.get(error.key)
        if flag is None:
            raise
        raise UsageError(f"{flag} {error.value} is not allowed: {error.allowed}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"{_address_in_use(options)} is in use: choose another --port") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"--host {options.host} is not allowed: an address of this machine") from error
        # errors of sockets have no file name
        if error.filename is not None and options.data_dir is not None:
            what = "it is not a directory" if isinstance(error, FileExistsError) else error
            raise UsageError(f"--data-dir {options.data_dir} cannot be used: {what}") from error
        raise


def exposure_warning(
    host: str, security: ListenerSecurity | None, *, has_credentials: bool = False
) -> str | None:
    """Return a warning if other machines can connect to the cluster, otherwise None."""
    try:
        # a name may have several addresses, and one that is not local is enough
        addresses = {found[4][0] for found in socket.getaddrinfo(host, None)}
    except OSError:
        addresses = {host}
    if all(_is_loopback(str(address)) for address in addresses):
        return None
    who = "any client"
    if security is not None and security.sasl:
        who = "every user of --set users"
    elif has_credentials:
        who = "every client with a credential of --set tokens or users"
    return f"warning: other machines can connect to --host {host}: {who} can read and write all topics"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _address_in_use(options: argparse.Namespace) -> str:
    """Return the first of the nodes' addresses that is in use."""
    for number in node_ports(options) or ():
        if not is_free(options.host, number):
            return f"{options.host}:{number}"
    return f"one of the ports of {options.host} from {options.port} on"


def is_free(host: str, port: int) -> bool:
    """Return whether a listener could use an address now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # as the listener does: a port of a connection that has just ended is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
