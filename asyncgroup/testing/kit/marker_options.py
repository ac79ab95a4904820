"""The options of the pytest marker `kafka`, checked before a cluster is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from asyncgroup.broker import ClusterOptions, EmbeddedCluster
from asyncgroup.testing.fault_options import make_fault
from asyncgroup.testing.kit.kit_options import KitOptions, parse_kit_options

__all__ = ["MarkerOptions"]

_CLUSTER_OPTIONS: Final = frozenset(each.name for each in fields(ClusterOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerOptions(KitOptions):
    """The options of one marker."""

    cluster: ClusterOptions = field(default_factory=ClusterOptions)

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Self:
        """Return the options for a marker's keyword arguments. Raises ConfigError for unknown or wrong ones."""
        own = parse_kit_options(options, _CLUSTER_OPTIONS, "kafka", "Fetch", "node")
        given = {name: value for name, value in options.items() if name in _CLUSTER_OPTIONS}
        return cls(cluster=ClusterOptions(**given), **own)

    def apply_faults(self, cluster: EmbeddedCluster) -> None:
        """Create the faults in a cluster that has just started."""
        for node_id, delay in self.slow.items():
            cluster.slow_node(node_id, delay)
        for fault in self.faults:
            make_fault(cluster.faults, **fault)
