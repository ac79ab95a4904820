"""The consumer of several topics, named ones or those of a pattern (Pulsar's `MultiTopicsConsumerImpl`)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from asyncgroup.checks import check_duration_or_zero, wrong_type
from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.consumer.topics.consumed_topics import ConsumedTopics
from asyncgroup.pulsar.consumer.topics.consumer_partitions import ConsumedPartition, ConsumerPartitions
from asyncgroup.pulsar.consumer.topics.partition_calls import call_each
from asyncgroup.pulsar.consumer.topics.topic_discovery import TopicDiscovery
from asyncgroup.pulsar.consumer.topics_pattern import TopicsPattern
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction
from asyncgroup.pulsar.wire.message_id import MessageId, TopicMessageId
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["PulsarMultiTopicsConsumer", "consumer_class"]


class _Members:
    """The partitions of a consumer, as TopicDiscovery sees them."""

    def __init__(self, partitions: ConsumerPartitions, config: PulsarConsumerConfig) -> None:
        self._partitions = partitions
        self._config = config
        self._later = replace(config, initial_position="earliest")

    def names(self) -> Collection[TopicName]:
        return self._partitions.parts.keys()

    def start(self, core: ClientCore, names: Iterable[TopicName], *, is_new: bool) -> None:
        self._partitions.start(core, names, self._later if is_new else self._config)

    async def wait(self, names: Iterable[TopicName]) -> None:
        waits = [self._partitions.parts[name].consumer.wait_attached() for name in names]
        await asyncio.gather(*waits, return_exceptions=True)

    async def remove(self, names: Iterable[TopicName]) -> None:
        await self._partitions.remove(names)


class PulsarMultiTopicsConsumer(PulsarTopicConsumer):
    """A consumer of several topics, which share its limits.

    Messages are acknowledged as messages, or by a TopicMessageId: an id alone names no topic.
    """

    _pattern: TopicDiscovery | None = None
    _topics_pattern: TopicsPattern | None = None

    def _choose(self, topic: str | Collection[str] | re.Pattern[str]) -> str:
        position = self.config.initial_position
        if isinstance(position, MessageId):
            raise ConfigError("initial_position", position, "'latest' or 'earliest' for several topics")
        if isinstance(topic, re.Pattern):
            self._topics_pattern = TopicsPattern(topic, self.config.regex_subscription_mode)
            self._creates_topics = False  # a topic that was deleted would be created again by its consumer
            return f"topics {self._topics_pattern}"
        self._names = names = list(dict.fromkeys(TopicName.parse(each) for each in topic))
        if not names:
            raise ConfigError("topic", topic, "one name at least")
        others = len(names) - 3
        return ", ".join(map(str, names[:3])) + (f" and {others} others" if others > 0 else "")

    def _consumed_topics(self) -> ConsumedTopics:
        if self._topics_pattern is None:
            return super()._consumed_topics()
        members = _Members(self._partitions, self.config)
        period = self.config.pattern_auto_discovery_period
        self._pattern = TopicDiscovery(self._topics_pattern, members, period)
        return self._pattern

    @property
    def topics(self) -> list[str]:
        """The names of the topics, of a pattern those that there are now."""
        if self._pattern is None:
            return super().topics
        return sorted({str(name.whole) for name in self._parts})

    def _outlives_topics(self) -> bool:
        return self._pattern is not None and not self._is_closed

    @property
    def is_at_end(self) -> bool:
        """Whether all topics were terminated and all of their messages have arrived; never of a pattern."""
        return self._pattern is None and super().is_at_end

    def errors(self) -> dict[str, Exception]:
        """Return for each partition that is not connected the last error, and why topics of a pattern are not consumed."""
        return super().errors() | ({} if self._pattern is None else self._pattern.errors)

    def _on_end(self, part: ConsumedPartition, error: Exception) -> None:
        if self._pattern is None:
            super()._on_end(part, error)
        else:
            self._pattern.on_end(part.consumer.topic, error)

    # --- outcomes ---------------------------------------------------------------------------------------------------------

    def _find(self, message: PulsarMessage | MessageId) -> PulsarConsumer | None:
        """Return the consumer of a message; None for one of a topic that was deleted since."""
        if not isinstance(message, PulsarMessage | TopicMessageId):
            if isinstance(message, MessageId):
                allowed = "the message, or a TopicMessageId: an id names none of several topics"
                raise ConfigError("message", str(message), allowed)
            raise wrong_type("message", message, "a PulsarMessage or a TopicMessageId")
        found = self._partitions.find(message.topic, message.partition)
        if found is not None:
            return found.consumer
        self._check_open()
        if self._pattern is not None and self._pattern.matches(message.topic):
            return None
        raise ConfigError("message", message, f"one of the topics of this {self.name}")

    def _of(self, message: PulsarMessage | MessageId) -> PulsarConsumer:
        found = self._find(message)
        if found is None:
            raise ConfigError("message", message, "one of a topic that was not deleted")
        return found

    def ack(
        self, message: PulsarMessage | MessageId, *, transaction: PulsarTransaction | None = None
    ) -> None:
        """Acknowledge a message, perhaps in a transaction; one of a topic that was deleted since has no effect.

        Raises as that of a PulsarTopicConsumer.
        """
        if (consumer := self._find(message)) is None:
            return
        if transaction is None:
            consumer.outcomes.ack(message)
        else:
            consumer.transactions.ack(transaction, message)

    def ack_cumulative(
        self, message: PulsarMessage | MessageId, *, transaction: PulsarTransaction | None = None
    ) -> None:
        """Acknowledge a message and all before it in its partition, perhaps in a transaction. Raises as `ack`, and UsageError."""
        if (consumer := self._find(message)) is None:
            return
        if transaction is None:
            consumer.outcomes.ack_cumulative(message)
        else:
            consumer.transactions.ack(transaction, message, cumulative=True)

    def ack_read(self, messages: Iterable[PulsarMessage]) -> None:
        """Acknowledge all up to the last message of each partition, for a subscription that is not durable."""
        for message in {(each.topic, each.partition): each for each in messages}.values():
            self.ack_cumulative(message)

    def nack(self, message: PulsarMessage | MessageId, delay: float | None = None) -> None:
        """Have a message delivered again after `delay` seconds; None is `nack_delay`. Raises ClosedError."""
        if delay is not None:
            check_duration_or_zero("delay", delay)
        if (consumer := self._find(message)) is not None:
            consumer.outcomes.nack(message, delay)

    async def last_message_ids(self) -> list[MessageId]:
        """Return the TopicMessageId of the last message of each partition; its entry is -1 in an empty one.

        Raises PulsarServerError, TransportError.
        """
        self._check_open()
        found = await call_each(PulsarConsumer.last_message_id, self.partitions, self._outlives_topics)
        return [TopicMessageId(str(consumer.topic), last) for consumer, last in found.items()]


def consumer_class(topic: object) -> type[PulsarTopicConsumer]:
    """Return the class of a consumer of one topic, or of several or a pattern."""
    is_several = isinstance(topic, re.Pattern) or (
        isinstance(topic, Collection) and not isinstance(topic, str | bytes | Mapping)
    )
    return PulsarMultiTopicsConsumer if is_several else PulsarTopicConsumer
