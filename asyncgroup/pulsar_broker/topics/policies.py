"""Policies of a namespace or topic, as far as brokers act on them (Pulsar's `Policies`, `TopicPolicies`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from asyncgroup.pulsar_broker.schemas.schema_registry import SchemaStrategy

__all__ = ["BacklogQuota", "Policies", "RetentionPolicies", "TopicPolicies"]


class BacklogQuota(NamedTuple):
    """A limit of what is not acknowledged; negative numbers are none."""

    limit_size: int
    """Bytes (`destination_storage`)."""
    limit_time: int
    """Seconds (`message_age`)."""
    policy: str
    """`producer_request_hold`, `producer_exception` or `consumer_backlog_eviction`."""


class RetentionPolicies(NamedTuple):
    """What a topic keeps of that which all subscriptions have acknowledged; None is no limit."""

    time: float | None
    """Seconds."""
    size: int | None
    """Bytes of the topic."""


@dataclass(slots=True)
class Policies:
    """Those of all brokers, of a namespace, or of one topic; None is no policy."""

    message_ttl: int | None = None
    """Seconds until messages count as acknowledged; 0: never."""
    backlog_quotas: dict[str, BacklogQuota] = field(default_factory=dict)
    """By type: `destination_storage` and `message_age`."""
    publish_rate: float | None = None
    """Messages per second that a topic takes; 0 or less: any number."""
    deduplication: bool | None = None
    """Whether messages whose sequence ids of their producer are stored are dropped."""
    retention: RetentionPolicies | None = None
    """What is kept after its acknowledgement; without a policy that is everything."""
    schema_strategy: SchemaStrategy | None = None
    """Which schemas may follow one another."""
    requires_schemas: bool = False
    """Whether producers without a schema are refused where a topic has one (`schemaValidationEnforced`)."""
    others: dict[str, Any] = field(default_factory=dict)
    """Policies that are kept, and change nothing."""


class TopicPolicies:
    """The policies of a topic: its own, else those of its namespace, else those of the brokers."""

    __slots__ = ("broker", "namespace", "own")

    def __init__(self, namespace: Policies, broker: Policies | None = None) -> None:
        self.own = Policies()
        self.namespace = namespace
        self.broker = broker if broker is not None else Policies()

    def __repr__(self) -> str:
        return f"<TopicPolicies {self.own}, {self.namespace}>"

    @property
    def message_ttl(self) -> int:
        """Seconds until messages count as acknowledged; 0: never."""
        own = self.own.message_ttl
        return (self.namespace.message_ttl or 0) if own is None else own

    @property
    def publish_rate(self) -> float:
        """Messages per second; 0: any number."""
        own = self.own.publish_rate
        return max((self.namespace.publish_rate or 0.0) if own is None else own, 0.0)

    @property
    def deduplication(self) -> bool:
        """Whether messages that are stored already are dropped."""
        found = (each.deduplication for each in (self.own, self.namespace, self.broker))
        return next((each for each in found if each is not None), False)

    @property
    def retention(self) -> RetentionPolicies | None:
        """What is kept after its acknowledgement; None is everything."""
        return self.own.retention or self.namespace.retention or self.broker.retention

    @property
    def schema_strategy(self) -> SchemaStrategy:
        """Which schemas may follow one another."""
        return self.own.schema_strategy or self.namespace.schema_strategy or SchemaStrategy.FULL

    @property
    def requires_schemas(self) -> bool:
        """Whether producers without a schema are refused where the topic has one."""
        return self.own.requires_schemas or self.namespace.requires_schemas

    def quota(self, kind: str) -> BacklogQuota | None:
        """Return the backlog quota of a type."""
        return self.own.backlog_quotas.get(kind) or self.namespace.backlog_quotas.get(kind)
