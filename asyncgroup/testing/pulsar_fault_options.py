"""Create a fault of an embedded Pulsar from keyword options in one call, as `fault_options` does for Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict, Unpack

from asyncgroup.broker.traffic.injection import Cut
from asyncgroup.pulsar_broker.traffic import PulsarExchange, PulsarFault, PulsarFaults
from asyncgroup.testing.fault_options import create_fault

__all__ = ["PulsarFaultOptions", "make_pulsar_fault"]


class PulsarFaultOptions(TypedDict, total=False):
    """The options of a fault: which requests it hits, and what happens to them.

    `broker` to `times` select requests, as for `PulsarFaults.on`; the others are `PulsarFault`'s methods. `error` is a code or
    its name, `delay` is in seconds; `hold`, `drop` and `optional` are True or omitted.
    """

    broker: int | None
    topic: str | None
    subscription: str | None
    client_id: str | None
    where: Callable[[Any], object] | None
    nth: int
    times: int | None
    error: int | str
    delay: float
    disconnect: Cut
    answer: Callable[[Any], Any]
    mutate: Callable[[Any], Any]
    observe: Callable[[PulsarExchange], object]
    hold: bool
    drop: bool
    optional: bool


def make_pulsar_fault(
    faults: PulsarFaults, api: str | None = None, **options: Unpack[PulsarFaultOptions]
) -> PulsarFault:
    """Add a fault to `faults`, fully configured before the next request. Raise ConfigError for an unknown option."""
    fault: PulsarFault = create_fault(faults.on, api, {**options}, PulsarFaultOptions.__annotations__)
    return fault
