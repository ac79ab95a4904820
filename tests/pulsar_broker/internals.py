"""The one way into the private state of an embedded Pulsar, for tests of what its public methods do not show."""

from __future__ import annotations

from asyncgroup.pulsar_broker.control.runtime import PulsarRuntime
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar

__all__ = ["runtime_of"]


def runtime_of(pulsar: EmbeddedPulsar) -> PulsarRuntime:
    """Return its brokers, topics and subscriptions as they are."""
    return pulsar._runtime
