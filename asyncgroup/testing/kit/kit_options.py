"""KitOptions: the options of a pytest marker that are the kit's own, for any broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from asyncgroup.broker.arguments import check_names
from asyncgroup.errors import ConfigError
from asyncgroup.testing.fault_options import is_number

__all__ = ["KitOptions", "is_duration", "parse_kit_options"]

_OWN_OPTIONS: Final = frozenset({"faults", "slow", "max_virtual_time", "unknown_topics"})
"""Options of the markers that an embedded broker does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KitOptions:
    """The options of one marker, without those of the broker."""

    faults: Sequence[Mapping[str, Any]] = ()
    """The options of each fault."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """The delay of every request in seconds, by broker."""
    unknown_topics: bool = False
    """Whether clients may use topics that do not exist."""

    def apply_faults(self, cluster: Any) -> None:
        """Create the faults in a cluster that has just started."""
        raise NotImplementedError


def parse_kit_options(
    options: Mapping[str, Any],
    known: Collection[str],
    marker: str,
    api: str,
    node: str,
    foreign: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the fields of KitOptions for a marker's keyword arguments. Raises ConfigError for unknown or wrong ones.

    `known` are the options of the broker; errors name an `api` as an example, and `node`, as users call a broker.
    """
    check_names(options, {*known, *_OWN_OPTIONS}, f"@pytest.mark.{marker}", foreign)
    if not isinstance(allowed := options.get("unknown_topics", False), bool):
        raise ConfigError("unknown_topics", allowed, "True or False")
    limit = options.get("max_virtual_time")
    if limit is not None and not is_duration(limit):
        raise ConfigError("max_virtual_time", limit, "a number of seconds, more than 0")
    return {
        "faults": _listed_faults(options.get("faults", ()), api),
        "slow": _slow_by_node(options.get("slow", {}), node),
        "unknown_topics": allowed,
    }


def _listed_faults(given: object, api: str) -> Sequence[Mapping[str, Any]]:
    listed = [given] if isinstance(given, Mapping) else given
    if not isinstance(listed, Sequence) or not all(isinstance(fault, Mapping) for fault in listed):
        example = {"api": api, "nth": 2, "delay": 1.0}
        raise ConfigError("faults", given, f"a list such as [{example}]")
    return list(listed)


def _slow_by_node(given: object, node: str) -> Mapping[int, float]:
    if not isinstance(given, Mapping) or not all(
        is_number(number, whole=True) and is_number(delay) for number, delay in given.items()
    ):
        raise ConfigError("slow", given, f"seconds by {node}, such as {{2: 0.1}}")
    return given


def is_duration(value: object) -> bool:
    """Whether `value` is a number of seconds above 0."""
    return isinstance(value, int | float) and is_number(value) and value > 0
