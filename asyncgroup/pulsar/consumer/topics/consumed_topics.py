"""The topics of a consumer: named ones, with the partitions that are added to them later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from asyncgroup.errors import AsyncGroupError
from asyncgroup.escaping import escaping_logger
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.topics.consumer_partitions import ConsumerPartitions
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["ConsumedTopics", "NamedTopics"]

_log = escaping_logger("asyncgroup.pulsar")


class ConsumedTopics(Protocol):
    """What decides about the topics and partitions of a consumer."""

    async def open(self, core: ClientCore) -> bool:
        """Subscribe to those that there are; return whether others may be added, which `watch` finds.

        Raises PulsarServerError, TransportError, AuthenticationError.
        """
        ...

    async def watch(self, core: ClientCore, name: str) -> None:
        """Subscribe to what is added, until it is cancelled; `name` is that of the consumer."""
        ...


class NamedTopics:
    """Topics that are named; all of them have to be there, or are created."""

    def __init__(
        self, topics: Sequence[TopicName], partitions: ConsumerPartitions, config: PulsarConsumerConfig
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._config = config
        self._growing: list[TopicName] = []  # those with partitions

    def __repr__(self) -> str:
        return f"<NamedTopics {', '.join(map(str, self._topics))}>"

    async def open(self, core: ClientCore) -> bool:
        """Subscribe to all partitions of all topics."""
        counts = await asyncio.gather(*(core.clusters.partitions_of(topic) for topic in self._topics))
        found = list[TopicName]()
        for topic, count in zip(self._topics, counts, strict=True):
            found += self._missing(topic, count)
            if count:
                self._growing.append(topic)
        await self._partitions.add(core, list(dict.fromkeys(found)), self._config)
        return bool(self._growing) and core.config.partitions_update_interval > 0

    def _missing(self, topic: TopicName, count: int) -> list[TopicName]:
        """Return the partitions that have no consumer yet."""
        if not count:
            return [topic]
        known = self._partitions.of_topic(str(topic.whole))
        return [topic.of_partition(number) for number in range(count) if number not in known]

    async def watch(self, core: ClientCore, name: str) -> None:
        """Subscribe to partitions that are added to the topics, from their first message on."""
        config = replace(self._config, initial_position="earliest")
        while True:
            await asyncio.sleep(core.config.partitions_update_interval)
            for topic in self._growing:
                try:
                    count = await core.clusters.partitions_of(topic, create=False)
                    if missing := self._missing(topic, count):
                        await self._partitions.add(core, missing, config)
                except AsyncGroupError as error:
                    _log.warning("%s: no consumer of new partitions, it is tried again: %s", name, error)
