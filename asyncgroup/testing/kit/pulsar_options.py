"""The options of the pytest marker `pulsar`, checked before an embedded Pulsar is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from asyncgroup.broker.arguments import check_names
from asyncgroup.pulsar_broker.control.options import PulsarOptions
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.pulsar_broker.foreign_names import FOREIGN_OPTIONS
from asyncgroup.testing.kit.marker_options import check_kit_options, listed_faults, slow_by_node
from asyncgroup.testing.pulsar_fault_options import make_pulsar_fault

__all__ = ["PulsarMarkerOptions"]

_PULSAR_OPTIONS: Final = frozenset(each.name for each in fields(PulsarOptions))
_OWN_OPTIONS: Final = frozenset({"faults", "slow", "max_virtual_time", "unknown_topics"})
"""Options of the marker that EmbeddedPulsar does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarMarkerOptions:
    """The options of one marker. Other topics than those given are created only with `auto_create_topics=True`."""

    pulsar: PulsarOptions = field(default_factory=PulsarOptions)
    faults: Sequence[Mapping[str, Any]] = ()
    """Arguments of `make_pulsar_fault`, one mapping for each fault."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """The delay of every request in seconds, by broker."""
    unknown_topics: bool = False
    """Whether clients may use topics that do not exist."""

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Self:
        """Return the options for a marker's keyword arguments. Raises ConfigError for unknown or wrong ones."""
        check_names(options, {*_PULSAR_OPTIONS, *_OWN_OPTIONS}, "@pytest.mark.pulsar", FOREIGN_OPTIONS)
        check_kit_options(options)
        given = {name: value for name, value in options.items() if name in _PULSAR_OPTIONS}
        return cls(
            pulsar=PulsarOptions(**{"auto_create_topics": False, **given}),
            faults=listed_faults(options.get("faults", ()), "[{'api': 'Send', 'nth': 2, 'delay': 1.0}]"),
            slow=slow_by_node(options.get("slow", {}), "broker"),
            unknown_topics=options.get("unknown_topics", False),
        )

    def apply_faults(self, pulsar: EmbeddedPulsar) -> None:
        """Create the faults in an EmbeddedPulsar that has just started."""
        for broker, delay in self.slow.items():
            pulsar.slow_broker(broker, delay)
        for fault in self.faults:
            make_pulsar_fault(pulsar.faults, **fault)
