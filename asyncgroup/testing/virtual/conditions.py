"""How the in-memory network treats traffic: window, chunk size, latencies, and the faults that a test has set.

A fault or a latency is set for an address pattern: an ip with a port, or an ip with None for all of its ports. It applies to a
connection if **either** end matches the pattern.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TypeAlias

from asyncgroup.testing.virtual.addresses import Address

__all__ = ["AddressPattern", "NetworkConditions", "NetworkFault", "patterns_of"]

AddressPattern: TypeAlias = tuple[str, int | None]
"""An ip and a port; None stands for all ports of the ip."""


class NetworkFault(enum.Enum):
    """A fault of an address; the values are the words that error messages use."""

    REFUSE = "refuse"
    HANG = "blackhole (connects hang)"
    SILENT = "blackhole (connects succeed)"


class NetworkConditions:
    """At most one fault and one latency for each address pattern. Plain state, without I/O.

    `latency` applies where no other is set; `window` and `chunk_size` are described by `Network`.
    """

    def __init__(
        self, *, latency: float = 0.0, window: int = 256 * 1024, chunk_size: int = 256 * 1024
    ) -> None:
        self.latency = latency  # seconds, in one direction
        self.window = window  # bytes in transit in one direction
        self.chunk_size = chunk_size  # bytes for one call of a protocol
        self._faults: dict[AddressPattern, NetworkFault] = {}
        self._latencies: dict[AddressPattern, float] = {}  # seconds, in one direction

    def __repr__(self) -> str:
        return f"<NetworkConditions: {len(self._faults)} faults, {len(self._latencies)} latencies>"

    @property
    def faults(self) -> int:
        """The number of address patterns that have a fault."""
        return len(self._faults)

    def set_fault(self, ips: Iterable[str], port: int | None, fault: NetworkFault) -> None:
        """Set a fault; it replaces an earlier one of the same pattern."""
        for ip in ips:
            self._faults[ip, port] = fault

    def heal(self, ips: Iterable[str] | None, port: int | None) -> None:
        """Remove the faults of one address, of every port of an ip (`port` None), or all (`ips` None)."""
        wanted = None if ips is None else set(ips)
        for pattern in list(self._faults):
            if (wanted is None or pattern[0] in wanted) and (port is None or pattern[1] == port):
                del self._faults[pattern]

    def set_latency(self, ips: Iterable[str], port: int | None, seconds: float) -> None:
        """Set the seconds that bytes take in one direction, from or to these addresses."""
        for ip in ips:
            self._latencies[ip, port] = seconds

    def faults_between(self, one: Address, other: Address) -> set[NetworkFault]:
        """Return the faults of either address."""
        if not self._faults:
            return set()
        patterns = patterns_of(one, other)
        return {fault for pattern, fault in self._faults.items() if pattern in patterns}

    def is_blackholed(self, one: Address, other: Address) -> bool:
        """True while a black hole stops delivery between these addresses."""
        return any(fault is not NetworkFault.REFUSE for fault in self.faults_between(one, other))

    def latency_between(self, one: Address, other: Address) -> float:
        """Return the seconds in one direction: the largest set for either address, or `latency`."""
        if not self._latencies:
            return self.latency
        patterns = patterns_of(one, other)
        set_for_them = (seconds for pattern, seconds in self._latencies.items() if pattern in patterns)
        return max(set_for_them, default=self.latency)

    def describe(self) -> list[str]:
        """Describe each fault in effect, for error messages."""
        return [
            f"{fault.value} {ip}:{'*' if port is None else port}"
            for (ip, port), fault in self._faults.items()
        ]


def patterns_of(*addresses: Address) -> set[AddressPattern]:
    """Return every pattern that matches one of these addresses."""
    return {pattern for ip, port in addresses for pattern in ((ip, port), (ip, None))}
