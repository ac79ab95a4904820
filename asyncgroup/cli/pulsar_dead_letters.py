"""Read the messages of a dead letter topic of Pulsar, and show them as rows.

A message is addressed by its id as Pulsar prints it, `ledger:entry:partition` and in a batch its index; a value in chunks by the id
of its first chunk, from which it can be read. Reading leaves no trace: the subscription is not durable, and ends with the command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from asyncgroup.cli.dead_letter_rows import DeadLetterFields, causes_of
from asyncgroup.cli.tables import ABSENT
from asyncgroup.errors import UsageError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.partition.backlog import end_of_backlog
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.workqueue.copies import ORIGIN_MESSAGE_ID

__all__ = [
    "PulsarDeadLetterRow",
    "ends_of",
    "message_place",
    "parse_message_ids",
    "place_of",
    "read_message",
    "read_messages",
    "read_rows",
    "short_name",
    "stored_topic",
    "subscribed",
]

_log = logging.getLogger("asyncgroup.pulsar")

BATCH_MESSAGES: Final = 500
BATCH_WAIT: Final = 0.02
"""Seconds after the first message in which others may come."""
QUIET_INTERVAL: Final = 5.0
"""Seconds without a message after which the rest is not waited for: a value in chunks may be incomplete at the end of a topic, and
of a subscription the last message may be acknowledged."""


def short_name(topic: str) -> str:
    """Return the shortest name of a topic: without the domain `persistent`, tenant and namespace if they are the default ones."""
    return topic.removeprefix("persistent://").removeprefix("public/default/")


def place_of(message: PulsarMessage) -> MessageId:
    """Return the id from which a message can be read: of a value in chunks that of the first one."""
    return message.first_chunk_id or message.message_id


def message_place(message: PulsarMessage) -> str:
    """Return `topic@id` of a message."""
    return f"{short_name(message.topic)}@{place_of(message)}"


@dataclass(frozen=True, slots=True)
class PulsarDeadLetterRow(DeadLetterFields):
    """A dead letter on Pulsar with what its properties say; the time is that of its publication."""

    message_id: MessageId
    timestamp: int
    origin_topic: str | None
    origin_message_id: str | None
    group: str | None
    deliveries: int | None
    reason: str | None
    key: bytes | None

    @classmethod
    def of(cls, message: PulsarMessage) -> PulsarDeadLetterRow:
        """Read the properties of Java's client and those that work queues add."""
        causes = causes_of(message)
        return cls(
            place_of(message),
            message.timestamp,
            causes.topic,
            message.properties.get(ORIGIN_MESSAGE_ID) or None,
            causes.group,
            causes.deliveries,
            causes.reason,
            message.key,
        )

    @property
    def place(self) -> str:
        """The message id, as the arguments of `show` and `replay`."""
        return str(self.message_id)

    @property
    def origin(self) -> str:
        """`topic@id` of the original; the topic only, or `-`, if no more is known."""
        if self.origin_topic is None:
            return ABSENT
        topic = short_name(self.origin_topic)
        return topic if self.origin_message_id is None else f"{topic}@{self.origin_message_id}"

    def named(self, topic: str) -> str:
        """Return `topic@id`."""
        return f"{short_name(topic)}@{self.place}"

    def place_fields(self) -> dict[str, Any]:
        """Return partition and id for JSON."""
        return {"partition": self.message_id.partition, "message_id": self.place}

    def origin_fields(self) -> dict[str, Any]:
        """Return the id of the original for JSON."""
        return {"origin_message_id": self.origin_message_id}


# --- reading ----------------------------------------------------------------------------------------------------------


async def stored_topic(client: PulsarClient, name: str) -> tuple[TopicName, int]:
    """Return a topic that exists, and the number of its partitions, 0 without any; it is not created.

    Raises UsageError for one whose messages are not stored, PulsarServerError for one that does not exist.
    """
    topic = TopicName.parse(name)
    if not topic.is_persistent:
        raise UsageError(
            f"{topic} has no dead letters to read: messages of a non-persistent topic are not stored"
        )
    return topic, await client.partitions(name)


@asynccontextmanager
async def subscribed(
    client: PulsarClient, topic: TopicName, group: str | None, start: str | MessageId = "earliest"
) -> AsyncIterator[PulsarTopicConsumer]:
    """Yield a consumer of a topic: of the durable subscription `group`, else of one that ends with it."""
    config = PulsarConsumerConfig(
        initial_position=start,
        start_inclusive=True,
        durable=group is not None,
        ack_group_time=0.0,
        consumer_name="asyncgroup-dlq",
    )
    name = group or f"asyncgroup-dlq-{uuid4().hex[:8]}"
    async with client.subscribe(str(topic), name, type="exclusive", config=config) as consumer:
        yield consumer


async def ends_of(consumer: PulsarTopicConsumer) -> dict[int, MessageId]:
    """Return the last message now of each partition that the subscription has not read completely."""
    parts = list(consumer.partitions)
    ends = await asyncio.gather(*map(end_of_backlog, parts))
    return {part.partition: end for part, end in zip(parts, ends, strict=True) if end is not None}


async def read_messages(
    consumer: PulsarTopicConsumer, ends: Mapping[int, MessageId], *, warns: bool = False
) -> AsyncGenerator[PulsarMessage, None]:
    """Yield the messages up to `ends`, of each partition in order. Close the iterator, as with `aclosing`, if it is left early.

    `warns`: log a warning if the last ones do not come. Raises as `PulsarTopicConsumer.receive`.
    """
    left = dict(ends)
    while left:
        try:
            async with asyncio.timeout(QUIET_INTERVAL):
                messages = await consumer.receive_batch(BATCH_MESSAGES, max_wait=BATCH_WAIT)
        except TimeoutError:
            if consumer.errors():
                continue  # it connects again
            if warns:
                _warn_of_rest(consumer.topic, left)
            return
        if not consumer.config.durable:
            consumer.ack_read(messages)
        for message in messages:
            end = left.get(message.partition)
            if end is None:
                continue  # it came after `ends`
            if _is_last(message, end):
                del left[message.partition]
            if message.message_id[:2] <= end[:2]:
                yield message


def _is_last(message: PulsarMessage, end: MessageId) -> bool:
    """Whether no other message up to `end` follows in its partition; brokers do not always name the last one of a batch."""
    if message.message_id[:2] != end[:2]:
        return message.message_id[:2] > end[:2]
    return message.message_id >= end and message.index == message.entry.count - 1


def _warn_of_rest(topic: TopicName, left: Mapping[int, MessageId]) -> None:
    ids = ", ".join(map(str, left.values()))
    _log.warning(
        "%s: nothing came for %g s before the last message (%s): it may be an incomplete value in chunks, or encrypted",
        short_name(str(topic)),
        QUIET_INTERVAL,
        ids,
    )


async def read_rows(
    service_url: str, config: PulsarConfig, name: str
) -> AsyncGenerator[PulsarDeadLetterRow, None]:
    """Yield the rows of all messages up to the end of the topic as it is now. Raises as `stored_topic` and `read_messages`."""
    async with PulsarClient(service_url, config) as client:
        topic, _ = await stored_topic(client, name)
        async with (
            subscribed(client, topic, None) as consumer,
            aclosing(read_messages(consumer, await ends_of(consumer), warns=True)) as messages,
        ):
            async for message in messages:
                yield PulsarDeadLetterRow.of(message)


async def read_message(client: PulsarClient, name: str, wanted: MessageId) -> PulsarMessage:
    """Return the message with an id. Raises UsageError if there is none, and as `stored_topic` and `read_messages`."""
    topic, count = await stored_topic(client, name)
    shown = f"{short_name(str(topic))}@{wanted}"
    if count:
        if not 0 <= wanted.partition < count:
            raise UsageError(f"{shown}: there is no partition {wanted.partition}; {name} {_having(count)}")
        topic = topic.of_partition(wanted.partition)
    elif wanted.partition != topic.partition:
        raise UsageError(f"{shown}: ids of messages in {name} end with {topic.partition}, their partition")
    async with subscribed(client, topic, None, wanted) as consumer:
        (end,) = (await ends_of(consumer)).values() or (None,)
        if end is not None and wanted[:2] <= end[:2]:
            async with aclosing(read_messages(consumer, {topic.partition: end})) as messages:
                async for message in messages:
                    if place_of(message) == wanted:
                        return message
                    raise UsageError(f"{shown}: no message has this id; the next one is {place_of(message)}")
    raise UsageError(f"{shown}: no message has this id, and none follows")


def _having(count: int) -> str:
    return "has partition 0" if count == 1 else f"has partitions 0 to {count - 1}"


def parse_message_ids(text: str) -> list[MessageId]:
    """Return the ids in a text such as `12:0:-1,12:7:-1`. Raises ConfigError."""
    return [MessageId.parse(part.strip()) for part in text.split(",")]
