"""The network of a virtual loop as a test sees it: host names, connections, latency, and faults that the test sets.

It behaves as TCP between two sockets of one machine does under asyncio, except that delivery takes exactly the
`latency` that the test sets, and that bandwidth is unlimited.

An address is the pair (ip, port). Where a method takes `host` and `port`, the host may be a name in `hosts` or an ip;
port None means all of its ports; and a connection is affected if **either** of its ends is at that address. So a fault
can be set for a broker, or for one client that connects from a separate address (see `source`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Generic, Literal, Self, TypeVar, overload

from asyncgroup.errors import UsageError
from asyncgroup.testing.virtual.addresses import Address
from asyncgroup.testing.virtual.conditions import NetworkConditions, NetworkFault, patterns_of
from asyncgroup.testing.virtual.connection import Link
from asyncgroup.testing.virtual.tcp_stack import TcpStack, source_ip

__all__ = ["Network", "stack_of"]


T = TypeVar("T")


class _Condition(Generic[T]):
    """A property of `Network` that is kept in the network's conditions, under the same name."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc
        self._name = ""

    def __set_name__(self, _owner: type[Network], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, network: None, owner: type[Network]) -> Self: ...

    @overload
    def __get__(self, network: Network, owner: type[Network]) -> T: ...

    def __get__(self, network: Network | None, owner: type[Network]) -> Self | T:
        if network is None:
            return self
        value: T = getattr(network._stack.conditions, self._name)
        return value

    def __set__(self, network: Network, value: T) -> None:
        setattr(network._stack.conditions, self._name, value)


class Network:
    """Hosts, listeners and connections of one virtual loop.

    `latency`: seconds of virtual time that bytes take in one direction; 0 delivers in the next iteration of the loop.
    `window`: bytes in transit in one direction before the sender has to buffer further ones itself (TCP's window).
    `chunk_size`: the maximum of bytes for one `data_received` or `buffer_updated`; 1 splits the stream at every byte.
    All three may be changed at any time. An address has at most one fault: the last one set.
    """

    def __init__(
        self, *, latency: float = 0.0, window: int = 256 * 1024, chunk_size: int = 256 * 1024
    ) -> None:
        if latency < 0 or window < 1 or chunk_size < 1:
            raise UsageError(
                f"latency={latency}, window={window}, chunk_size={chunk_size}: latency must be 0 or more, window and "
                "chunk_size at least 1"
            )
        self._stack = TcpStack(NetworkConditions(latency=latency, window=window, chunk_size=chunk_size))

    def __repr__(self) -> str:
        return (
            f"<Network {len(self._stack.listeners)} listeners, {len(self._stack.connections)} connections, "
            f"{self._stack.conditions.faults} faults, latency={self.latency:g}>"
        )

    # -- settings -----------------------------------------------------------------------------------------------------

    latency = _Condition[float]("Seconds of virtual time that bytes take in one direction.")
    window = _Condition[int](
        "Bytes in transit in one direction before the sender has to buffer further ones itself."
    )
    chunk_size = _Condition[int]("The maximum of bytes for one `data_received` or `buffer_updated`.")

    @property
    def hosts(self) -> dict[str, list[str]]:
        """The ips of each host name: `hosts["kafka"] = ["10.0.0.1", "10.0.0.2"]`. Numeric addresses need no entry."""
        return self._stack.hosts

    @hosts.setter
    def hosts(self, hosts: dict[str, list[str]]) -> None:
        self._stack.hosts = hosts

    # -- faults -------------------------------------------------------------------------------------------------------

    def refuse(self, host: str, port: int | None = None) -> None:
        """Refuse new connections (ConnectionRefusedError) even if there is a listener. Open connections stay open."""
        self._stack.conditions.set_fault(self._stack.ips(host), port, NetworkFault.REFUSE)

    def blackhole(
        self, host: str, port: int | None = None, *, connect: Literal["hang", "accept"] = "hang"
    ) -> None:
        """Stop delivery in both directions, on open connections and new ones.

        `connect="hang"`: new connections hang, as with a firewall that drops packets. `connect="accept"`: they succeed
        but get no answer, as with a stopped process; this also works without a listener. Bytes sent during the fault
        arrive after `heal`, as TCP would retransmit them; `cut` discards them.
        """
        fault = NetworkFault.HANG if connect == "hang" else NetworkFault.SILENT
        self._stack.conditions.set_fault(self._stack.ips(host), port, fault)

    def cut(self, host: str | None = None, port: int | None = None) -> int:
        """Abort open connections with ConnectionResetError at both ends, and return their number.

        It affects those of one address, of every port of a host, or (without host) all. Bytes in transit are lost.
        New connections are not affected (see `refuse`).
        """
        links = self.connections(host, port)
        for link in links:
            link.cut()
        return len(links)

    def heal(self, host: str | None = None, port: int | None = None) -> None:
        """Undo `refuse` and `blackhole` for one address, for every port of a host, or (without host) for all."""
        self._stack.conditions.heal(None if host is None else self._stack.ips(host), port)
        self._stack.resume()

    def set_latency(self, seconds: float, host: str, port: int | None = None) -> None:
        """Set the latency of one address, for bytes sent from now on; they never overtake earlier ones."""
        self._stack.conditions.set_latency(self._stack.ips(host), port, seconds)

    @contextlib.contextmanager
    def source(self, host: str) -> Iterator[None]:
        """Open the connections of this block, and of tasks started in it, from `host`.

        One client of several can then have a separate fault: `blackhole(host)`. Only the first ip of `host` is used.
        """
        token = source_ip.set(self._stack.first_ip(host))
        try:
            yield
        finally:
            source_ip.reset(token)

    # -- state --------------------------------------------------------------------------------------------------------

    def connections(self, host: str | None = None, port: int | None = None) -> tuple[Link, ...]:
        """The connections with at least one open end, oldest first; those of one address, or all."""
        links = [connection.link for connection in self._stack.connections if connection.open_ends()]
        if host is not None:
            patterns = {(ip, port) for ip in self._stack.ips(host)}
            links = [link for link in links if patterns & patterns_of(link.client, link.server)]
        return tuple(links)

    def listeners(self) -> tuple[Address, ...]:
        """The addresses with a listener, sorted."""
        return tuple(sorted(self._stack.listeners))

    def describe_faults(self) -> list[str]:
        """Describe each fault in effect, for error messages."""
        return self._stack.conditions.describe()


def stack_of(network: Network) -> TcpStack:
    """Return the listeners and connections behind a `Network`, for its loop."""
    return network._stack
