"""ConsumerIdentity: id, partition, subscription and configuration of one consumer."""

from __future__ import annotations

from dataclasses import dataclass

from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["ConsumerIdentity"]


@dataclass(frozen=True, slots=True)
class ConsumerIdentity:
    """The facts of a consumer that do not change; its parts share them."""

    id: int
    """Unique among the consumers of the client."""
    topic: TopicName
    """The name of the partition."""
    subscription: str
    kind: SubscriptionType
    config: PulsarConsumerConfig

    @property
    def name(self) -> str:
        """The name in logs and errors."""
        return f"consumer {self.id} of {self.topic} in {self.subscription}"
