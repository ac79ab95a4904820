"""ConsumerPartitions: the consumers of all partitions of one or several topics, and their shares of the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import wait_shielded
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.partition.listener import PulsarConsumerListener
from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["ConsumedPartition", "ConsumerPartitions"]

_log = escaping_logger("asyncgroup.pulsar")

MANY: Final = 64
"""Partitions from which on their number is rounded up by at most a sixteenth."""


class ConsumedPartition(PulsarConsumerListener):
    """The consumer of one partition, and whether it is queued for its messages."""

    def __init__(
        self,
        on_arrival: Callable[[ConsumedPartition], object],
        on_end: Callable[[ConsumedPartition, Exception], object],
    ) -> None:
        self.is_ready = False
        self.is_attached = False
        """Whether it was registered once."""
        self.is_awaited = False
        """Whether a caller of `wait` gets its failure, until it is registered once."""
        self.consumer: PulsarConsumer
        self._on_arrival = on_arrival
        self._on_end = on_end

    def __repr__(self) -> str:
        return f"<ConsumedPartition {self.consumer!r}>"

    def on_attached(self) -> None:
        """It is registered."""
        self.is_attached = True

    def on_messages(self) -> None:
        """It has messages."""
        self._on_arrival(self)

    def on_error(self, error: Exception) -> None:
        """Log what is tried again."""
        failure = self.consumer.ack_failure
        if error is self.consumer.history.error or (failure is not None and error is failure.error):
            return  # the first of these is logged by the consumer of the partition
        text = str(error)
        named = text.startswith(self.consumer.name)
        _log.warning("%s%s", "" if named else f"{self.consumer.name}: ", text)

    def on_failed(self, error: Exception) -> None:
        """The broker accepts it no longer."""
        if self.is_attached or not self.is_awaited:
            self._on_end(self, error)


class ConsumerPartitions:
    """The partitions of all topics of a consumer; a topic without any counts as one.

    `on_arrival(partition)` is called when one has messages, `on_end(partition, error)` when the broker has ended one. Without
    `creates_topics` a topic that was deleted is not created again by its consumer.
    """

    def __init__(
        self,
        subscription: str,
        kind: SubscriptionType,
        config: PulsarConsumerConfig,
        on_arrival: Callable[[ConsumedPartition], object],
        on_end: Callable[[ConsumedPartition, Exception], object],
        *,
        creates_topics: bool = True,
    ) -> None:
        self._subscription = subscription
        self._kind = kind
        self._config = config
        self._on_arrival = on_arrival
        self._on_end = on_end
        self._creates_topics = creates_topics
        self._waiting = 0  # messages that receivers wait for
        self._is_paused = config.start_paused
        self._limits: tuple[int, int | None] | None = None  # the messages and bytes that each queues
        self.parts: dict[TopicName, ConsumedPartition] = {}
        """The partitions that have a consumer."""
        self._by_topic: dict[str, dict[int, ConsumedPartition]] = {}

    def __repr__(self) -> str:
        return f"<ConsumerPartitions of {self._subscription}: {', '.join(map(str, self.parts))}>"

    def __iter__(self) -> Iterator[PulsarConsumer]:
        """Yield the consumers, in the order of topics and partitions."""
        names = sorted(self.parts, key=lambda name: (str(name.whole), name.partition))
        return iter([self.parts[name].consumer for name in names])

    def __len__(self) -> int:
        return len(self.parts)

    def of_topic(self, topic: str) -> dict[int, ConsumedPartition]:
        """Return the partitions of a topic by number, now and later; -1 is a topic without any."""
        return self._by_topic.setdefault(topic, {})

    def find(self, topic: str, partition: int) -> ConsumedPartition | None:
        """Return a partition of a topic; None if it has no consumer."""
        found = self._by_topic.get(topic)
        return None if found is None else found.get(partition)

    # --- members ----------------------------------------------------------------------------------------------------------

    def start(self, core: ClientCore, topics: Iterable[TopicName], config: PulsarConsumerConfig) -> None:
        """Begin to subscribe to topics without partitions, and to partitions, that have no consumer yet."""
        added = [topic for topic in topics if topic not in self.parts]
        size, max_bytes = self._divide(len(self.parts) + len(added))
        for topic in added:
            part = ConsumedPartition(self._on_arrival, self._on_end)
            part.consumer = PulsarConsumer(
                core,
                topic,
                self._subscription,
                self._kind,
                config,
                part,
                queue_size=size,
                creates_topic=self._creates_topics,
            )
            part.consumer.set_limits(size, max_bytes)
            self.parts[topic] = part
            self.of_topic(str(topic.whole))[topic.partition] = part
            part.consumer.set_waiting(self._waiting)
            self._pause(part.consumer)
            part.consumer.start()

    async def add(self, core: ClientCore, topics: list[TopicName], config: PulsarConsumerConfig) -> None:
        """Subscribe to topics and partitions, to all or none. Raises PulsarServerError, TransportError, AuthenticationError."""
        self.start(core, topics, config)
        for topic in topics:
            self.parts[topic].is_awaited = True
        try:
            for topic in topics:
                await self.parts[topic].consumer.wait_attached()
        except BaseException:
            await self.remove(topic for topic in topics if not self.parts[topic].is_attached)
            raise

    async def remove(self, topics: Iterable[TopicName]) -> None:
        """Leave topics and partitions; the others may queue more."""
        found = [self.parts.pop(topic) for topic in list(topics) if topic in self.parts]
        for part in found:
            name = part.consumer.topic
            self.of_topic(str(name.whole)).pop(name.partition, None)
        if self.parts and found:
            self._divide(len(self.parts))
        await wait_shielded(asyncio.gather(*(part.consumer.aclose() for part in found)))

    def _divide(self, count: int) -> tuple[int, int | None]:
        """Let each of `count` partitions queue its share; return its messages and bytes."""
        size, max_bytes = limits = self._share(count)
        if limits != self._limits:
            self._limits = limits
            for part in self.parts.values():
                part.consumer.set_limits(size, max_bytes)
        return limits

    def _share(self, partitions: int) -> tuple[int, int | None]:
        """Return the messages and bytes that each partition may queue, of this number."""
        config = self._config
        partitions = max(partitions, 1)
        if (
            partitions >= MANY
        ):  # rounded up: the shares of all do not change with each topic that a pattern gets
            step = 1 << partitions.bit_length() - 5
            partitions = -(-partitions // step) * step
        size = min(config.receiver_queue_size, config.max_total_receiver_queue_size // partitions)
        max_bytes = config.receiver_queue_bytes
        least = min(1, config.receiver_queue_size)
        return max(size, least), None if max_bytes is None else max(1, max_bytes // partitions)

    def ask(self, count: int) -> None:
        """Without queues: each partition asks for as many messages as receivers wait for."""
        self._waiting = count
        for part in self.parts.values():
            part.consumer.set_waiting(count)

    def pause(self, *, paused: bool) -> None:
        """Ask for no more messages, or ask again, also of partitions that are added later."""
        self._is_paused = paused
        for part in self.parts.values():
            self._pause(part.consumer)

    def _pause(self, consumer: PulsarConsumer) -> None:
        if self._is_paused:
            consumer.pause()
        else:
            consumer.resume()

    async def aclose(self) -> None:
        """Send the last acknowledgements, and leave."""
        closes = [part.consumer.aclose() for part in self.parts.values()]
        await wait_shielded(asyncio.gather(*closes))
