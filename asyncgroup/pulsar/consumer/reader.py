"""PulsarReader: reads topics from a position, without a subscription that stays (Pulsar's `ReaderImpl` and `MultiTopicsReaderImpl`)."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.multi_topics_consumer import consumer_class
from asyncgroup.pulsar.consumer.partition.backlog import end_of_backlog
from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.consumer.partition.seeking import seek
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.read_positions import ReaderTarget, ReadPosition, read_position
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.consumer.topics.partition_calls import call_each
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId, TopicMessageId

__all__ = ["PulsarReader"]

_TOPIC_IDS: Final = "TopicMessageIds for several topics: an id alone names none of them"


class PulsarReader:
    """A reader of one or several topics, an async context manager; made by `PulsarClient.reader`.

        async with client.reader("orders", "earliest") as reader:
            while await reader.has_message_available():
                message = await reader.read()

    Several readers of a topic know nothing of each other. After a reconnect a reader goes on after the last message that it
    has returned. A start that is a time is that of publication. Partitions, and topics of a pattern, that are created later are read
    from their first message on.
    """

    def __init__(
        self,
        core: Callable[[], ClientCore],
        topic: str | Collection[str] | re.Pattern[str],
        start: ReaderTarget,
        config: PulsarConsumerConfig,
        *,
        inclusive: bool,
    ) -> None:
        """`core` returns what an open client shares."""
        kind = consumer_class(topic)
        self._is_single = kind is PulsarTopicConsumer
        self._is_pattern = isinstance(topic, re.Pattern)
        self._inclusive = inclusive
        self._is_open = False
        self._start: ReadPosition | None = read_position("start", start)
        initial: str | MessageId = "earliest"
        if _is_all(self._start):
            initial = "earliest" if self._start == EARLIEST else "latest"
            self._start = None
        elif self._is_single and isinstance(self._start, MessageId):
            initial = self._start
        own = replace(
            config, durable=False, initial_position=initial, start_inclusive=inclusive, start_paused=False
        )
        name = f"reader-{uuid4().hex[:10]}"
        self._consumer = kind(core, topic, name, SubscriptionType.EXCLUSIVE, own)
        self._topic = str(self._consumer.topic.whole) if self._is_single else ""
        self._check_topics("start", self._start)
        # by topic and partition, the last message that was returned
        self._read: defaultdict[str, dict[int, MessageId]] = defaultdict(dict)

    def __repr__(self) -> str:
        return f"<PulsarReader {self._consumer!r}>"

    async def __aenter__(self) -> Self:
        """Connect to all partitions. Raises PulsarServerError, TransportError, AuthenticationError.

        Raises UsageError if it begins at a single message id, and there are several partitions; ConfigError for an id of another topic.
        """
        await self._consumer.__aenter__()
        self._is_open = True
        try:
            if isinstance(self._consumer.config.initial_position, MessageId):
                self._check_single()
                if not self._inclusive:
                    self._count_as_read(self._consumer.partitions, self._consumer.config.initial_position)
            elif self._start is not None:
                await self._move("start", self._start, inclusive=self._inclusive)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the brokers. Safe to call twice."""
        self._is_open = False
        await self._consumer.aclose()

    @property
    def topics(self) -> list[str]:
        """The names of the topics, of a pattern those that there are now."""
        return self._consumer.topics

    # --- messages -------------------------------------------------------------------------------------------------------

    async def read(self) -> PulsarMessage:
        """Return the next message; wait for one. Cancelling the call loses no message.

        Raises ClosedError, and the error with which the broker has ended the reader.
        """
        message = await self._consumer.receive()
        self._was_read([message])
        return message

    async def read_batch(
        self, max_messages: int | None = None, max_bytes: int | None = 10 << 20, max_wait: float | None = 0.1
    ) -> list[PulsarMessage]:
        """Return several messages, see `PulsarTopicConsumer.receive_batch`."""
        messages = await self._consumer.receive_batch(max_messages, max_bytes, max_wait)
        self._was_read(messages)
        return messages

    def _was_read(self, messages: list[PulsarMessage]) -> None:
        for message in messages:
            self._read[message.topic][message.partition] = message.message_id
        self._consumer.ack_read(messages)

    def __aiter__(self) -> Self:
        """Iterate over messages until the reader is closed."""
        return self

    async def __anext__(self) -> PulsarMessage:
        """Return the next message. Raises StopAsyncIteration when the reader is closed."""
        message = await anext(self._consumer)
        self._was_read([message])
        return message

    async def has_message_available(self) -> bool:
        """Whether there is a message to read now, here or at a broker. Raises PulsarServerError, TransportError, ClosedError."""
        if self._consumer.queued:
            return True
        asked = list(self._consumer.partitions)
        ends = await asyncio.gather(*map(end_of_backlog, asked), return_exceptions=True)
        failures = list[BaseException]()
        for consumer, end in zip(asked, ends, strict=True):
            if isinstance(end, BaseException):
                if consumer in self._consumer.partitions:  # else its topic was deleted
                    failures.append(end)
            elif end is not None and not self._has_read(consumer, end):
                return True
        if failures:
            raise failures[0]
        return False

    def _has_read(self, consumer: PulsarConsumer, end: MessageId) -> bool:
        read = self._read[str(consumer.topic.whole)].get(consumer.partition)
        return read is not None and read >= end

    @property
    def is_at_end(self) -> bool:
        """Whether all topics were terminated and all of their messages have arrived; never of a pattern."""
        return self._consumer.is_at_end

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of each partition, of several topics a TopicMessageId; its entry is -1 in an empty one."""
        return await self._consumer.last_message_ids()

    # --- positions ------------------------------------------------------------------------------------------------------

    async def seek(self, target: ReaderTarget, *, inclusive: bool = True) -> None:
        """Go on elsewhere: at `earliest`, `latest`, or a time of publication; or at messages (or after them), one for each partition.

        The messages are a list of ids, of several topics TopicMessageIds; partitions without one stay where they are. A single id is
        enough if there is one partition. A partition that cannot be moved stops no other: the error is raised when all have ended.
        Raises PulsarServerError, TransportError, UsageError during another seek, ConfigError for another target.
        """
        position = read_position("target", target)
        if isinstance(position, MessageId) and self._is_single and not _is_all(position):
            self._check_single()
        self._check_topics("target", position)
        await self._move("target", position, inclusive=inclusive)

    async def _move(self, key: str, position: ReadPosition, *, inclusive: bool) -> None:
        if not self._is_open:
            raise ClosedError(f"{self._consumer.name}: the reader is not open")
        if isinstance(position, list):
            ids = position
        elif isinstance(position, int) or _is_all(position):
            self._read.clear()
            await self._consumer.seek(position, inclusive=inclusive)
            return
        else:
            ids = [position]
        moved = self._by_partition(key, ids)
        await call_each(
            lambda each: self._move_one(each, moved[each], inclusive),
            moved,
            lambda: self._is_pattern and self._is_open,
        )

    async def _move_one(self, consumer: PulsarConsumer, target: MessageId, inclusive: bool) -> None:
        self._read[str(consumer.topic.whole)].pop(consumer.partition, None)
        await seek(consumer, target, inclusive=inclusive)
        if not inclusive:
            self._count_as_read([consumer], target)

    def _count_as_read(self, consumers: Iterable[PulsarConsumer], start: MessageId) -> None:
        """The message after which a partition begins counts as read."""
        for consumer in consumers:
            read = MessageId(*start[:2], consumer.partition, start.batch_index)
            self._read[str(consumer.topic.whole)][consumer.partition] = read

    def _by_partition(self, key: str, ids: Iterable[MessageId]) -> dict[PulsarConsumer, MessageId]:
        """Return the consumers of the partitions of these messages. Raises ConfigError."""
        consumers = {(str(each.topic.whole), each.partition): each for each in self._consumer.partitions}
        only = next(iter(consumers)) if self._is_single and len(consumers) == 1 else None
        found: dict[PulsarConsumer, MessageId] = {}
        for each in ids:
            if isinstance(each, TopicMessageId):
                place = (each.topic, each.partition)
            else:
                place = only or (self._topic, each.partition)
            consumer = consumers.get(place)
            if consumer is None and not self._is_pattern:
                raise ConfigError(
                    key, each, f"an id of a partition that is read, not {place[1]} of {place[0]}"
                )
            if consumer in found:
                raise ConfigError(key, each, "one id for each partition")
            if consumer is not None:  # else the topic of the pattern was deleted since
                found[consumer] = each
        return found

    def _check_topics(self, key: str, position: ReadPosition | None) -> None:
        """Raise ConfigError for ids without a topic, if there are several topics, and those of another topic."""
        if position is None or isinstance(position, int) or _is_all(position):
            return
        for each in position if isinstance(position, list) else [position]:
            if isinstance(each, TopicMessageId):
                if self._is_single and each.topic != self._topic:
                    raise ConfigError(key, each, f"an id of {self._topic}")
            elif not self._is_single:
                raise ConfigError(key, str(each), _TOPIC_IDS)

    def _check_single(self) -> None:
        if len(list(self._consumer.partitions)) > 1:
            raise UsageError(
                "a message id is of one partition: give a list with an id for each partition, or a time"
            )


def _is_all(position: ReadPosition | None) -> bool:
    """Whether it is the first or the last message of all partitions."""
    return position in (EARLIEST, LATEST) and not isinstance(position, TopicMessageId)
