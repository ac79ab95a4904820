"""`asyncgroup dlq replay` on Pulsar: send dead letters to their origin topics again.

Two passes, as on Kafka: the first one makes the plan and checks it, the second one writes, one message after another. With --group
both read the durable subscription of this name: a message is acknowledged in it when its copy is stored, so that the next replay
continues after it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Final, NamedTuple

from asyncgroup.cli.common import stop_signals
from asyncgroup.cli.pulsar_dead_letters import (
    PulsarDeadLetterRow,
    ends_of,
    message_place,
    place_of,
    read_messages,
    short_name,
    stored_topic,
    subscribed,
)
from asyncgroup.cli.replaying import (
    ReplayProgress,
    ReplayStep,
    ReplayStopped,
    check_replay_options,
    exit_code_before_writing,
    gone_since_the_plan,
    not_written,
)
from asyncgroup.errors import AsyncGroupError, ConfigError, UsageError
from asyncgroup.escaping import printable
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.workqueue.copies import user_headers

__all__ = ["MessageReplay", "PlannedMessage", "replay_messages"]

_HINT: Final = "choose a topic with --to, or other records with --offsets or --match"


class PlannedMessage(NamedTuple):
    """Where a dead letter is written."""

    topic: TopicName
    partition: int
    """The partition that it came from; -1 if it is unknown or the topic has none: then the key determines it."""

    @property
    def target(self) -> TopicName:
        """The topic or the partition to write to."""
        return self.topic if self.partition < 0 else self.topic.of_partition(self.partition)


Plan = dict[MessageId, PlannedMessage]
"""By the id of the dead letter, in the order of reading."""


async def replay_messages(options: argparse.Namespace, service_url: str, config: PulsarConfig) -> int:
    """Send dead letters back; return 0 if all of them were written.

    Raises UsageError for messages that cannot be sent back, before anything is written; ReplayStopped; PulsarServerError for an
    unknown topic; and as `PulsarTopicConsumer.receive`.
    """
    name = TopicName.parse(options.topic)
    check_replay_options(
        options, to_itself=options.to is not None and TopicName.parse(options.to).whole == name.whole
    )
    async with PulsarClient(service_url, config) as client:
        topic, _ = await stored_topic(client, options.topic)
        async with subscribed(client, topic, options.group) as consumer:
            ends = await ends_of(consumer)
            plan = await _plan(options, consumer, ends)
        plan = await _with_existing_topics(client, topic, plan)
        steps = [
            ReplayStep(
                f"{short_name(str(topic))}@{each}",
                short_name(str(planned.topic)),
                short_name(str(planned.target)),
            )
            for each, planned in plan.items()
        ]
        if (code := await exit_code_before_writing(options, steps)) is not None:
            return code
        # the question may take long, in which the subscription is free for others
        async with subscribed(client, topic, options.group) as consumer:
            return await _write(options, client, consumer, ends, plan)


# --- the plan ---------------------------------------------------------------------------------------------------------


async def _plan(
    options: argparse.Namespace, consumer: PulsarTopicConsumer, ends: Mapping[int, MessageId]
) -> Plan:
    """Read the dead letters, and return where each is written. Raises UsageError for one that cannot be."""
    plan: Plan = {}
    wanted = set(options.offsets or ())
    missing = set(wanted)
    async with aclosing(read_messages(consumer, ends, warns=options.group is None)) as messages:
        async for message in messages:
            place = place_of(message)
            missing.discard(place)
            if wanted and place not in wanted:
                continue
            row = PulsarDeadLetterRow.of(message)
            if options.match is None or options.match in (row.reason or ""):
                plan[place] = _planned(message, row, options.to)
    if missing:
        raise UsageError(f"{options.topic}: no message has the id {', '.join(map(str, sorted(missing)))}")
    return plan


def _planned(message: PulsarMessage, row: PulsarDeadLetterRow, to: str | None) -> PlannedMessage:
    if to is not None:
        return PlannedMessage(TopicName.parse(to), -1)
    place = message_place(message)
    if row.origin_topic is None:
        raise UsageError(f"{place} has no property with its origin topic: {_HINT}")
    try:
        topic = TopicName.parse(row.origin_topic).whole
    except ConfigError:
        topic = None
    if topic is None or topic == TopicName.parse(message.topic).whole:
        name = printable(row.origin_topic, 260)
        raise UsageError(f"{place} has the origin topic {name!r}, which it cannot be sent to: {_HINT}")
    return PlannedMessage(topic, _partition(row.origin_message_id))


def _partition(origin_message_id: str | None) -> int:
    try:
        return -1 if origin_message_id is None else MessageId.parse(origin_message_id).partition
    except ConfigError:
        return -1  # of another form


async def _with_existing_topics(client: PulsarClient, topic: TopicName, plan: Plan) -> Plan:
    """Check that the topics exist, and create none; messages whose partitions do not exist have none."""
    found: dict[TopicName, int] = {}
    for place, planned in plan.items():
        if planned.topic not in found:
            try:
                found[planned.topic] = await client.partitions(str(planned.topic))
            except AsyncGroupError as error:
                what = f"{short_name(str(topic))}@{place} cannot be sent to {short_name(str(planned.topic))}"
                raise UsageError(f"{what}: {error}") from error
    return {
        place: planned if planned.partition < found[planned.topic] else planned._replace(partition=-1)
        for place, planned in plan.items()
    }


# --- writing ----------------------------------------------------------------------------------------------------------


class MessageReplay:
    """Writes planned messages one after another, and acknowledges each in the subscription of --group."""

    def __init__(
        self, client: PulsarClient, consumer: PulsarTopicConsumer, plan: Plan, stack: AsyncExitStack
    ) -> None:
        """`stack` closes the producers."""
        self._client = client
        self._consumer = consumer
        self._plan = dict(plan)
        self._stack = stack
        self._producers: dict[TopicName, PulsarProducer] = {}
        self.progress = ReplayProgress(len(plan))

    async def write(self, message: PulsarMessage) -> None:
        """Write a message if it is in the plan, and print where it is. Raises ReplayStopped, BrokenPipeError."""
        # it may come a second time, after a reconnect
        planned = self._plan.pop(place_of(message), None)
        if planned is None:
            return
        place, target = message_place(message), short_name(str(planned.target))
        try:
            stored = await self._send(message, planned.target)
        except AsyncGroupError as error:
            raise not_written(place, target, error) from error
        self.progress.done(place, f"{short_name(str(planned.topic))}@{stored}")
        if not self._consumer.config.durable:
            return
        self._consumer.ack(message)
        try:
            await self._consumer.flush()
        except AsyncGroupError as error:
            raise ReplayStopped(f"{place} was written, but not acknowledged: {error}") from error

    @property
    def is_done(self) -> bool:
        """Whether all messages of the plan are written."""
        return not self._plan

    async def _send(self, message: PulsarMessage, target: TopicName) -> MessageId:
        producer = self._producers.get(target)
        if producer is None:
            config = PulsarProducerConfig(batching=False, chunking=target.is_persistent)
            producer = await self._stack.enter_async_context(
                PulsarProducer(self._client, str(target), config)
            )
            self._producers[target] = producer
        return await producer.send(
            message.value,
            key=message.key,
            properties=_properties(message),
            ordering_key=message.ordering_key,
            event_time=message.event_time,
        )


def _properties(message: PulsarMessage) -> dict[str, str]:
    """Return the properties without those of retries and dead letters: also later ones of KIP-1191."""
    kept = {name for name, _ in user_headers(message) if not name.startswith("__dlq.")}
    return {name: value for name, value in message.properties.items() if name in kept}


async def _write(
    options: argparse.Namespace,
    client: PulsarClient,
    consumer: PulsarTopicConsumer,
    ends: Mapping[int, MessageId],
    plan: Plan,
) -> int:
    with stop_signals() as stop:
        async with AsyncExitStack() as stack:
            replayed = MessageReplay(client, consumer, plan, stack)
            try:
                async with aclosing(read_messages(consumer, ends)) as messages:
                    async for message in messages:
                        await replayed.write(message)
                        if stop.is_set():
                            return stop.exit_code
                        if replayed.is_done:
                            break
            finally:
                replayed.progress.report()
    if not replayed.is_done:
        raise gone_since_the_plan(options.topic, len(plan) - replayed.progress.written)
    return 0
