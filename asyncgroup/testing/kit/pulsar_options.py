"""The options of the pytest marker `pulsar`, checked before an embedded Pulsar is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from asyncgroup.pulsar_broker.control.options import PulsarOptions
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.pulsar_broker.foreign_names import FOREIGN_OPTIONS
from asyncgroup.testing.kit.kit_options import KitOptions, parse_kit_options
from asyncgroup.testing.pulsar_fault_options import make_pulsar_fault

__all__ = ["PulsarMarkerOptions"]

_PULSAR_OPTIONS: Final = frozenset(each.name for each in fields(PulsarOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarMarkerOptions(KitOptions):
    """The options of one marker. Other topics than those given are created only with `auto_create_topics=True`."""

    pulsar: PulsarOptions = field(default_factory=PulsarOptions)

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Self:
        """Return the options for a marker's keyword arguments. Raises ConfigError for unknown or wrong ones."""
        own = parse_kit_options(options, _PULSAR_OPTIONS, "pulsar", "Send", "broker", FOREIGN_OPTIONS)
        given = {name: value for name, value in options.items() if name in _PULSAR_OPTIONS}
        return cls(pulsar=PulsarOptions(**{"auto_create_topics": False, **given}), **own)

    def apply_faults(self, pulsar: EmbeddedPulsar) -> None:
        """Create the faults in an EmbeddedPulsar that has just started."""
        for broker, delay in self.slow.items():
            pulsar.slow_broker(broker, delay)
        for fault in self.faults:
            make_pulsar_fault(pulsar.faults, **fault)
