"""The options of the pytest marker `kafka`, checked before a cluster is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from asyncgroup.broker import ClusterOptions, EmbeddedCluster
from asyncgroup.broker.arguments import check_names
from asyncgroup.errors import ConfigError
from asyncgroup.testing.fault_options import is_number, make_fault

__all__ = ["MarkerOptions", "check_kit_options", "is_duration", "listed_faults", "slow_by_node"]

_CLUSTER_OPTIONS: Final = frozenset(each.name for each in fields(ClusterOptions))
_OWN_OPTIONS: Final = frozenset({"faults", "slow", "max_virtual_time", "unknown_topics"})
"""Options of the marker that EmbeddedCluster does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerOptions:
    """The options of one marker."""

    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    faults: Sequence[Mapping[str, Any]] = ()
    """Arguments of `make_fault`, one mapping for each fault."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """The delay of every request in seconds, by node id."""
    unknown_topics: bool = False
    """Whether clients may request topics that do not exist."""

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Self:
        """Return the options for a marker's keyword arguments. Raises ConfigError for unknown or wrong ones."""
        check_names(options, {*_CLUSTER_OPTIONS, *_OWN_OPTIONS}, "@pytest.mark.kafka")
        check_kit_options(options)
        return cls(
            cluster=ClusterOptions(**{n: value for n, value in options.items() if n in _CLUSTER_OPTIONS}),
            faults=listed_faults(options.get("faults", ()), "[{'api': 'Fetch', 'nth': 2, 'delay': 1.0}]"),
            slow=slow_by_node(options.get("slow", {}), "node"),
            unknown_topics=options.get("unknown_topics", False),
        )

    def apply_faults(self, cluster: EmbeddedCluster) -> None:
        """Create the faults in a cluster that has just started."""
        for node_id, delay in self.slow.items():
            cluster.slow_node(node_id, delay)
        for fault in self.faults:
            make_fault(cluster.faults, **fault)


def check_kit_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for wrong values of options that are those of the kit, for any broker."""
    if not isinstance(allowed := options.get("unknown_topics", False), bool):
        raise ConfigError("unknown_topics", allowed, "True or False")
    limit = options.get("max_virtual_time")
    if limit is not None and not is_duration(limit):
        raise ConfigError("max_virtual_time", limit, "a number of seconds, more than 0")


def listed_faults(given: object, example: str) -> Sequence[Mapping[str, Any]]:
    """Return the arguments of each fault. Raises ConfigError, with an example."""
    listed = [given] if isinstance(given, Mapping) else given
    if not isinstance(listed, Sequence) or not all(isinstance(fault, Mapping) for fault in listed):
        raise ConfigError("faults", given, f"a list such as {example}")
    return list(listed)


def slow_by_node(given: object, what: str) -> Mapping[int, float]:
    """Return the delays by the number of a node, or `what` it is called. Raises ConfigError."""
    if not isinstance(given, Mapping) or not all(
        is_number(node_id, whole=True) and is_number(delay) for node_id, delay in given.items()
    ):
        raise ConfigError("slow", given, f"seconds by {what}, such as {{2: 0.1}}")
    return given


def is_duration(value: object) -> bool:
    """Whether `value` is a number of seconds above 0."""
    return isinstance(value, int | float) and is_number(value) and value > 0
