"""The names of OpenTelemetry's semantic conventions for messaging, one table for each version of their schema.

Each scope says which version its names are of (`schema_url`), so that a backend can translate them. The names are those of the
registry's groups `messaging` and `messaging.kafka`; a test compares them with the package opentelemetry-semantic-conventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["CURRENT", "NAMES", "SCOPE", "SemanticNames", "system_of"]

SCOPE: Final = "asyncgroup"
"""The name of the instrumentation scope of tracers and meters."""


@dataclass(frozen=True, slots=True)
class SemanticNames:
    """The names of one version of the schema."""

    schema_url: str
    system: str = "messaging.system"
    operation_name: str = "messaging.operation.name"
    operation_type: str = "messaging.operation.type"
    destination: str = "messaging.destination.name"
    partition: str = "messaging.destination.partition.id"
    group: str = "messaging.consumer.group.name"
    subscription: str = "messaging.destination.subscription.name"
    message_id: str = "messaging.message.id"
    batch_count: str = "messaging.batch.message_count"
    offset: str = "messaging.kafka.offset"
    tombstone: str = "messaging.kafka.message.tombstone"
    error_type: str = "error.type"
    # metrics
    client_duration: str = "messaging.client.operation.duration"
    process_duration: str = "messaging.process.duration"
    sent_messages: str = "messaging.client.sent.messages"
    consumed_messages: str = "messaging.client.consumed.messages"


NAMES: Final = MappingProxyType({"1.44.0": SemanticNames("https://opentelemetry.io/schemas/1.44.0")})
"""The names by version of the schema."""

CURRENT: Final = NAMES["1.44.0"]
"""The version that is written."""


def system_of(topic: str) -> str:
    """Return the value of `messaging.system` for a topic: complete names of Pulsar have a scheme, which Kafka's cannot have."""
    return "pulsar" if "://" in topic else "kafka"
