"""What stands between the addresses of an in-memory network: faults and latencies, each set for one place.

A place is an ip with a port, or with None for every port of it. It concerns a connection if **either** end is there.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TypeAlias

from asyncgroup.testing.addresses import Address

__all__ = ["AddressPattern", "NetworkConditions", "NetworkFault", "patterns_of"]

AddressPattern: TypeAlias = tuple[str, int | None]
"""An ip and a port, None for all of its ports."""


class NetworkFault(enum.Enum):
    """What is wrong with a place, in the words of error messages."""

    REFUSE = "refuse"
    HANG = "blackhole (connects hang)"
    SILENT = "blackhole (connects succeed)"


class NetworkConditions:
    """Plain state: at most one fault and one latency for each place."""

    def __init__(self) -> None:
        self._faults: dict[AddressPattern, NetworkFault] = {}
        self._latencies: dict[AddressPattern, float] = {}

    def __repr__(self) -> str:
        return f"<Conditions: {len(self._faults)} faults, {len(self._latencies)} latencies>"

    @property
    def faults(self) -> int:
        """How many places have a fault."""
        return len(self._faults)

    def set_fault(self, ips: Iterable[str], port: int | None, fault: NetworkFault) -> None:
        """The last fault set for a place counts."""
        for ip in ips:
            self._faults[ip, port] = fault

    def heal(self, ips: Iterable[str] | None, port: int | None) -> None:
        """Take faults back: of one address, of every port of an ip, or (None) all."""
        wanted = None if ips is None else set(ips)
        for place in list(self._faults):
            if (wanted is None or place[0] in wanted) and (port is None or place[1] == port):
                del self._faults[place]

    def set_latency(self, ips: Iterable[str], port: int | None, seconds: float) -> None:
        """Seconds that bytes need in one direction from or to a place."""
        for ip in ips:
            self._latencies[ip, port] = seconds

    def faults_between(self, one: Address, other: Address) -> set[NetworkFault]:
        """The faults of either address."""
        if not self._faults:
            return set()
        places = patterns_of(one, other)
        return {fault for place, fault in self._faults.items() if place in places}

    def latency_between(self, one: Address, other: Address, default: float) -> float:
        """The largest latency set for either address, or `default`."""
        if not self._latencies:
            return default
        places = patterns_of(one, other)
        return max((s for place, s in self._latencies.items() if place in places), default=default)

    def describe(self) -> list[str]:
        """The faults in effect, one readable text each."""
        return [
            f"{fault.value} {ip}:{'*' if port is None else port}"
            for (ip, port), fault in self._faults.items()
        ]


def patterns_of(*addresses: Address) -> set[AddressPattern]:
    """The places at which these addresses are."""
    return {place for ip, port in addresses for place in ((ip, port), (ip, None))}
