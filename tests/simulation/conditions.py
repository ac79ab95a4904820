"""The network of a simulation: random latencies by seed, and disturbances that begin and end independently."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeAlias

from asyncgroup.testing import Network
from asyncgroup.testing.virtual.addresses import Address
from asyncgroup.testing.virtual.conditions import NetworkConditions, NetworkFault
from asyncgroup.testing.virtual.network import stack_of

__all__ = ["LATENCY_PROFILES", "DisturbedConditions", "NetworkDisturbance", "SimulatedNetwork"]

Draw: TypeAlias = Callable[[random.Random], float]

LATENCY_PROFILES: Final[dict[str, Draw]] = {
    "still": lambda _: 0.0,
    "near": lambda rng: rng.uniform(0.0002, 0.002),
    "far": lambda rng: rng.uniform(0.01, 0.06),
    "gusty": lambda rng: rng.uniform(0.0005, 0.003) if rng.random() < 0.97 else rng.uniform(0.05, 0.6),
}
"""Seconds that a chunk of bytes needs in one direction, drawn for each chunk. Connections may overtake each other; within a
connection the order is kept, as in TCP."""


class NetworkDisturbance:
    """A fault, a latency, or both, on some connections: those between addresses for which `affects(one, other)` is true."""

    def __init__(
        self,
        name: str,
        affects: Callable[[Address, Address], bool],
        fault: NetworkFault | None = None,
        latency: float = 0.0,
    ) -> None:
        self.name = name
        self.affects = affects
        self.fault = fault
        self.latency = latency  # seconds

    def __repr__(self) -> str:
        return f"<NetworkDisturbance {self.name}>"


class DisturbedConditions(NetworkConditions):
    """The disturbances in effect, in the order of their beginning, and the latencies; no latency before `is_on` is set."""

    def __init__(self, rng: random.Random, latency_profile: str) -> None:
        super().__init__()
        self.severed: set[tuple[Address, Address]] = set()
        """The ends of half-open connections, (client, server)."""
        self.dead_hosts: dict[str, str] = {}
        """Hosts that never answer again, by ip, each with the name of what was on it."""
        self._rng = rng
        self._draw = LATENCY_PROFILES[latency_profile]
        self.disturbances: list[NetworkDisturbance] = []
        self.is_on = False

    @property
    def faults(self) -> int:
        return len(self.disturbances) + len(self.dead_hosts)

    def faults_between(self, one: Address, other: Address) -> set[NetworkFault]:
        dead = self.dead_hosts
        found = {NetworkFault.HANG} if one[0] in dead or other[0] in dead else set()
        if not self.disturbances:
            return found
        return found | {
            disturbance.fault
            for disturbance in self.disturbances
            if disturbance.fault is not None and disturbance.affects(one, other)
        }

    def is_blackholed(self, one: Address, other: Address) -> bool:
        return (one, other) in self.severed or super().is_blackholed(one, other)

    def latency_between(self, one: Address, other: Address) -> float:
        if not self.is_on:
            return self.latency
        slow = [
            disturbance.latency
            for disturbance in self.disturbances
            if disturbance.latency and disturbance.affects(one, other)
        ]
        return (
            self.latency + self._draw(self._rng) + (max(slow) * self._rng.uniform(0.5, 1.5) if slow else 0.0)
        )

    def describe(self) -> list[str]:
        dead = [f"{name} is dead" for name in self.dead_hosts.values()]
        return [*dead, *(disturbance.name for disturbance in self.disturbances)]


class SimulatedNetwork(Network):
    """A network with `DisturbedConditions`; connections can also be made half-open or closed by the server."""

    def __init__(self, conditions: DisturbedConditions, chunk_size: int) -> None:
        super().__init__()
        self.conditions = stack_of(self).conditions = conditions
        self.chunk_size = chunk_size

    def begin(self, disturbance: NetworkDisturbance) -> None:
        """Begin a disturbance."""
        self.conditions.disturbances.append(disturbance)

    def kill(self, host: str, name: str) -> None:
        """From now on nothing that is sent from or to a host arrives; `end_all` does not end this."""
        self.conditions.dead_hosts[host] = name

    def end(self, disturbance: NetworkDisturbance) -> None:
        """End a disturbance: delayed bytes arrive now."""
        if disturbance in self.conditions.disturbances:
            self.conditions.disturbances.remove(disturbance)
            self.heal()

    def end_all(self) -> None:
        """End all disturbances; half-open connections stay so, as both ends have to detect it."""
        self.conditions.disturbances.clear()
        self.heal()

    def half_open(self, host: str, port: int | None = None) -> int:
        """Make the open connections of an address half-open for good, as after a host lost its power: they carry no more
        bytes, though both ends believe that they are open. Return their number."""
        links = self.connections(host, port)
        # the port of an ended connection may be used again
        self.conditions.severed &= {(link.client, link.server) for link in self.connections()}
        self.conditions.severed |= {(link.client, link.server) for link in links}
        return len(links)

    def close_connections(self, host: str, port: int | None = None) -> int:
        """Let the servers close the open connections of an address: what they have sent arrives, followed by FIN. Return the
        number of connections.
        """
        links = self.connections(host, port)
        for link in links:
            for end in link.open_ends():
                if end.get_extra_info("sockname")[:2] == link.server:
                    end.close()
        return len(links)
