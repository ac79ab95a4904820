"""ConsumerPartitions: the consumers of all partitions of a topic: their shares of the limits, and those that are added later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

from asyncgroup.errors import AsyncGroupError
from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import wait_shielded
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.listener import PulsarConsumerListener
from asyncgroup.pulsar.consumer.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["ConsumedPartition", "ConsumerPartitions"]

_log = escaping_logger("asyncgroup.pulsar")


class ConsumedPartition(PulsarConsumerListener):
    """The consumer of one partition, and whether it is queued for its messages."""

    def __init__(
        self,
        on_arrival: Callable[[ConsumedPartition], object],
        on_end: Callable[[Exception], object],
    ) -> None:
        self.is_ready = False
        self.is_attached = False
        """Whether it was registered once; until then it is the caller of `add` that gets its failure."""
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
        if self.is_attached:
            self._on_end(error)


class ConsumerPartitions:
    """The partitions of a topic, by number; -1 is a topic without any.

    `on_arrival(partition)` is called when one has messages, `on_end(error)` when the broker has ended one.
    """

    def __init__(
        self,
        topic: TopicName,
        subscription: str,
        kind: SubscriptionType,
        config: PulsarConsumerConfig,
        on_arrival: Callable[[ConsumedPartition], object],
        on_end: Callable[[Exception], object],
    ) -> None:
        self._topic = topic
        self._subscription = subscription
        self._kind = kind
        self._config = config
        self._on_arrival = on_arrival
        self._on_end = on_end
        self._waiting = 0  # messages that receivers wait for
        self.by_number: dict[int, ConsumedPartition] = {}
        """The partitions that have a consumer."""

    def __repr__(self) -> str:
        return f"<ConsumerPartitions of {self._topic}: {sorted(self.by_number)}>"

    def __iter__(self) -> Iterator[PulsarConsumer]:
        """Yield the consumers, in the order of the partitions."""
        return iter([self.by_number[number].consumer for number in sorted(self.by_number)])

    def __len__(self) -> int:
        return len(self.by_number)

    async def open(self, core: ClientCore) -> int:
        """Subscribe to all partitions; return their number, 0 for a topic without any.

        Raises PulsarServerError, TransportError, AuthenticationError.
        """
        count = await core.lookup.partitions_of(self._topic)
        await self._add(core, self._missing(count), self._config)
        return count

    def _missing(self, count: int) -> list[TopicName]:
        """Return the topics of the partitions that have no consumer yet."""
        if not count:
            return [self._topic]
        return [self._topic.of_partition(number) for number in range(count) if number not in self.by_number]

    async def _add(self, core: ClientCore, topics: list[TopicName], config: PulsarConsumerConfig) -> None:
        size, max_bytes = self._share(len(self.by_number) + len(topics))
        for part in self.by_number.values():
            part.consumer.set_limits(size, max_bytes)
        for topic in topics:
            part = ConsumedPartition(self._on_arrival, self._on_end)
            part.consumer = PulsarConsumer(
                core, topic, self._subscription, self._kind, config, part, queue_size=size
            )
            part.consumer.set_limits(size, max_bytes)
            self.by_number[topic.partition] = part
            part.consumer.set_waiting(self._waiting)
            part.consumer.start()
        try:
            for topic in topics:
                await self.by_number[topic.partition].consumer.wait_attached()
        except BaseException:
            failed = [
                self.by_number.pop(topic.partition)
                for topic in topics
                if not self.by_number[topic.partition].is_attached
            ]
            await wait_shielded(asyncio.gather(*(part.consumer.aclose() for part in failed)))
            raise

    def _share(self, partitions: int) -> tuple[int, int | None]:
        """Return the messages and bytes that each partition may queue, of this number."""
        config = self._config
        size = min(config.receiver_queue_size, config.max_total_receiver_queue_size // partitions)
        max_bytes = config.receiver_queue_bytes
        least = min(1, config.receiver_queue_size)
        return max(size, least), None if max_bytes is None else max(1, max_bytes // partitions)

    def ask(self, count: int) -> None:
        """Without queues: each partition asks for as many messages as receivers wait for."""
        self._waiting = count
        for part in self.by_number.values():
            part.consumer.set_waiting(count)

    async def watch(self, core: ClientCore, name: str) -> None:
        """Subscribe to partitions that are added to the topic, from their first message on; `name` is that of the consumer."""
        config = replace(self._config, initial_position="earliest")
        while True:
            await asyncio.sleep(core.config.partitions_update_interval)
            try:
                count = await core.lookup.partitions_of(self._topic, create=False)
                if topics := self._missing(count):
                    await self._add(core, topics, config)
            except AsyncGroupError as error:
                _log.warning("%s: no consumer of new partitions, it is tried again: %s", name, error)

    async def aclose(self) -> None:
        """Send the last acknowledgements, and leave."""
        closes = [part.consumer.aclose() for part in self.by_number.values()]
        await wait_shielded(asyncio.gather(*closes))
