"""TopicPartitions: the producers of a topic's partitions, those that are added later, and which one a message goes to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

from asyncgroup.errors import AsyncGroupError, InvalidRecordError
from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import start_task, wait_shielded
from asyncgroup.model import MillisClock
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.interceptors import PulsarProducerRecord
from asyncgroup.pulsar.producer.outgoing import OutgoingMessage, SendArguments
from asyncgroup.pulsar.producer.partition_producer import OnLost, PartitionProducer
from asyncgroup.pulsar.producer.routing import MessageRouter, message_router
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["TopicPartitions"]

_log = escaping_logger("asyncgroup.pulsar")


class TopicPartitions:
    """One producer for each partition, or for a topic without."""

    def __init__(
        self,
        topic: TopicName,
        config: PulsarProducerConfig,
        clock: MillisClock,
        rng: random.Random,
        on_lost: OnLost,
    ) -> None:
        self.producers: list[PartitionProducer] = []
        """Empty until it is open."""
        self.count = 0
        """Number of partitions; 0 for a topic without."""
        self._topic = topic
        self._config = config
        self._clock = clock
        self._random = rng
        self._on_lost = on_lost
        self._router: MessageRouter | None = None
        given = config.routing
        self._custom: Callable[[PulsarProducerRecord, int], int] | None = given if callable(given) else None

    def __repr__(self) -> str:
        return f"<TopicPartitions {self._topic}: {self.count}>"

    @property
    def name(self) -> str | None:
        """The configured name of the producer or, once it is open, the one that the broker has chosen."""
        return self.producers[0].name if self.producers else self._config.producer_name

    async def open(self, core: ClientCore) -> None:
        """Look the topic up, and register at the brokers of all partitions."""
        count = await core.clusters.partitions_of(self._topic)
        await self._add(core, count)
        config = self._config
        interval = config.batching_max_delay * config.routing_switch_frequency if config.batching else 0.0
        if isinstance(config.routing, str):
            clock = asyncio.get_running_loop().time
            self._router = message_router(
                config.routing, config.hashing, interval, count, clock, self._random
            )

    async def watch(self, core: ClientCore) -> None:
        """Ask for the number of partitions now and then, and use those that were added."""
        while True:
            await asyncio.sleep(core.config.partitions_update_interval)
            try:
                count = await core.clusters.partitions_of(self._topic, create=False)
                if count > self.count:
                    await self._add(core, count)
            except AsyncGroupError as error:
                _log.warning("%s: new partitions are not used yet: %s", self._topic, error)

    async def _add(self, core: ClientCore, count: int) -> None:
        """Open the producers of partitions up to `count`; they are used when all of them are ready."""
        topics = [self._topic.of_partition(number) for number in range(self.count, count)] or [self._topic]
        limit = self._config.pending_limit(count)
        added: list[PartitionProducer] = []
        name = self.name
        try:
            for topic in topics:
                each = PartitionProducer(
                    core, topic, self._config, self._clock, self._on_lost, name=name, limit=limit
                )
                added.append(each)
                each.start()
                if name is None:  # all partitions have the name that the broker chooses for the first one
                    await each.wait_ready()
                    name = each.name
            for each in added:
                await each.wait_ready()
        except BaseException:
            await wait_shielded(start_task(_close_each(added, "it could not be opened")))
            raise
        self.producers += added
        self.count = count

    async def aclose(self, why: str) -> None:
        """Close all at the same time."""
        await _close_each(self.producers, why)

    def route(self, message: OutgoingMessage, given: SendArguments) -> PartitionProducer:
        """Return the producer of the partition, of several, that a message with these arguments goes to."""
        count = self.count
        if self._router is not None:
            return self.producers[self._router(message.key, count)]
        assert self._custom is not None
        number = self._custom(PulsarProducerRecord(str(self._topic), *given), count)
        if type(number) is not int or not 0 <= number < count:
            raise InvalidRecordError("routing", number, f"a partition from 0 to {count - 1}")
        return self.producers[number]


async def _close_each(producers: Iterable[PartitionProducer], why: str) -> None:
    await asyncio.gather(*(each.aclose(why) for each in producers))
