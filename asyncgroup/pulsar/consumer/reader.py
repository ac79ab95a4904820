"""PulsarReader: reads a topic from a position of its own, without a subscription that stays (Pulsar's `ReaderImpl`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.partition.backlog import end_of_backlog
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId

__all__ = ["PulsarReader"]

_POSITIONS: Final = {"earliest": EARLIEST, "latest": LATEST}
_START: Final = "'earliest', 'latest', a MessageId, or a datetime with a time zone"


class PulsarReader:
    """A reader of a topic, an async context manager; made by `PulsarClient.reader`.

        async with client.reader("orders", "earliest") as reader:
            while await reader.has_message_available():
                message = await reader.read()

    Several readers of a topic know nothing of each other. After a reconnect a reader goes on after the last message that it
    has returned. A start that is a time is that of publication.
    """

    def __init__(
        self,
        core: Callable[[], ClientCore],
        topic: str,
        start: str | MessageId | datetime,
        config: PulsarConsumerConfig,
        *,
        inclusive: bool,
    ) -> None:
        """`core` returns what an open client shares."""
        self._time: int | None = None
        position: str | MessageId
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise ConfigError("start", start, _START)
            self._time, position = round(start.timestamp() * 1000), "earliest"
        elif isinstance(start, MessageId):
            position = "earliest" if start == EARLIEST else "latest" if start == LATEST else start
        elif isinstance(start, str) and start in _POSITIONS:
            position = start
        else:
            raise ConfigError("start", start, _START)
        own = replace(config, durable=False, initial_position=position, start_inclusive=inclusive)
        name = f"reader-{uuid4().hex[:10]}"
        self._consumer = PulsarTopicConsumer(core, topic, name, SubscriptionType.EXCLUSIVE, own)
        self._read: dict[int, MessageId] = {}  # by partition, the last message that was returned

    def __repr__(self) -> str:
        return f"<PulsarReader {self._consumer!r}>"

    async def __aenter__(self) -> Self:
        """Connect to all partitions. Raises PulsarServerError, TransportError, AuthenticationError.

        Raises UsageError if it begins at a message id of a topic with several partitions.
        """
        await self._consumer.__aenter__()
        try:
            if isinstance(start := self._consumer.config.initial_position, MessageId):
                self._check_single()
                self._begin_at(start, inclusive=self._consumer.config.start_inclusive)
            if self._time is not None:
                await self._consumer.seek(self._time)
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
        await self._consumer.aclose()

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
            self._read[message.partition] = message.message_id
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
        for consumer in self._consumer.partitions:
            last = await end_of_backlog(consumer)
            read = self._read.get(consumer.partition)
            if last is not None and (read is None or read < last):
                return True
        return False

    @property
    def is_at_end(self) -> bool:
        """Whether the topic was terminated and all of its messages have arrived."""
        return self._consumer.is_at_end

    async def seek(self, target: str | MessageId | datetime, *, inclusive: bool = True) -> None:
        """Go on elsewhere: at `earliest`, `latest`, a message of a topic without partitions (or after it), or a time of publication.

        Raises PulsarServerError, TransportError, UsageError during another seek, ConfigError for another target.
        """
        position: MessageId | int
        if isinstance(target, datetime) and target.tzinfo is not None:
            position = round(target.timestamp() * 1000)
        elif isinstance(target, MessageId):
            position = target
        elif isinstance(target, str) and target in _POSITIONS:
            position = _POSITIONS[target]
        else:
            raise ConfigError("target", target, _START)
        is_message = isinstance(position, MessageId) and position not in (EARLIEST, LATEST)
        if is_message:
            self._check_single()
        self._read.clear()
        await self._consumer.seek(position, inclusive=inclusive)
        if isinstance(position, MessageId) and is_message:
            self._begin_at(position, inclusive=inclusive)

    def _begin_at(self, start: MessageId, *, inclusive: bool) -> None:
        """The message at which it begins counts as read, unless it is to be read itself."""
        if not inclusive:
            for consumer in self._consumer.partitions:
                self._read[consumer.partition] = MessageId(*start[:2], consumer.partition, start.batch_index)

    def _check_single(self) -> None:
        if len(list(self._consumer.partitions)) > 1:
            raise UsageError("a message id is of one partition: read that partition, or seek to a time")

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of each partition; its entry is -1 in an empty one."""
        return await self._consumer.last_message_ids()
