"""PulsarTopicConsumer: the consumer of a topic with all of its partitions (Pulsar's `MultiTopicsConsumerImpl`).

Each partition has a PulsarConsumer with its own queue and permits, so that a partition whose messages are not taken delays no
other. `receive` returns the messages of the partitions in turn. A message is removed from its queue without an await before
it is returned: a receive that is cancelled loses nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from types import TracebackType
from typing import Self, cast

from asyncgroup.checks import check_count, check_duration_or_zero, wrong_type
from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.escaping import printable
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.lifecycle import BackgroundTasks, copy_error
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.foreign_names import PULSAR_CONSUMER
from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.consumer.partition.seeking import seek
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topics.consumed_topics import ConsumedTopics, NamedTopics
from asyncgroup.pulsar.consumer.topics.consumer_partitions import ConsumedPartition, ConsumerPartitions
from asyncgroup.pulsar.consumer.topics.partition_calls import call_each
from asyncgroup.pulsar.consumer.topics.partition_turns import PartitionTurns
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar.wire.varint import is_encodable

__all__ = ["PulsarTopicConsumer"]


class PulsarTopicConsumer:
    """A consumer of a topic, an async context manager; made by `PulsarClient.subscribe`.

        async with client.subscribe("orders", "billing", type="shared") as consumer:
            async for message in consumer:
                print(message.key, message.value)
                consumer.ack(message)

    Messages arrive in the order of their partition. One that is neither acknowledged nor negatively acknowledged comes again
    after a reconnect, or with another consumer of the subscription.
    """

    def __init__(
        self,
        core: Callable[[], ClientCore],
        topic: str | Collection[str] | re.Pattern[str],
        subscription: str,
        kind: SubscriptionType,
        config: PulsarConsumerConfig,
    ) -> None:
        """`core` returns what an open client shares."""
        config.check_type(kind)
        if not isinstance(subscription, str) or not subscription or not is_encodable(subscription):
            raise ConfigError("subscription", subscription, "a string, not empty, of Unicode text")
        self._core_of = core
        self.subscription = subscription
        self.kind = kind
        self.config = config
        self._names: Sequence[TopicName] = ()
        self.name = f"consumer of {self._choose(topic)} in {subscription}"
        self._partitions = ConsumerPartitions(
            subscription, kind, config, self._on_messages, self._on_end, creates_topics=self._creates_topics
        )
        self._parts = self._partitions.parts
        self._topics = self._consumed_topics()
        single = str(self._names[0].whole) if len(self._names) == 1 else ""
        self._by_number = self._partitions.of_topic(single)
        self._turns = PartitionTurns()
        self._ready = self._turns.ready
        self._changed = asyncio.Event()
        self._waiting = 0
        self._failure: Exception | None = None
        self._tasks = BackgroundTasks(self.name)
        self._is_open = self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._is_open else "not open"
        parts = len(self._parts)
        return (
            f"<PulsarTopicConsumer {printable(self.name)}: {state}, {parts} partitions, {self.queued} queued>"
        )

    _creates_topics = True

    def _choose(self, topic: str | Collection[str] | re.Pattern[str]) -> str:
        """Keep the names of the topics; return a text for them. Raises ConfigError."""
        name = TopicName.parse(cast("str", topic))
        self._names = [name]
        return str(name)

    def _consumed_topics(self) -> ConsumedTopics:
        return NamedTopics(self._names, self._partitions, self.config)

    @property
    def topic(self) -> TopicName:
        """The topic. Raises UsageError for several."""
        if len(self._names) != 1:
            raise UsageError(f"{self.name}: it has several topics: `topics`")
        return self._names[0]

    @property
    def topics(self) -> list[str]:
        """The names of the topics, also of those by a pattern that there are now."""
        return [str(name) for name in self._names]

    # --- life -----------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Subscribe to all partitions. Raises PulsarServerError, TransportError, AuthenticationError."""
        if self._is_open or self._is_closed:
            raise UsageError(f"{self.name} was entered before: create a new one")
        core = self._core_of()
        self._loop = core.loop
        await self._tasks.start()
        try:
            has_more = await self._topics.open(core)
        except BaseException:
            await self.aclose()
            raise
        self._is_open = True
        if has_more:
            self._tasks.spawn(self._topics.watch, core, self.name)
        core.hooks.emit("on_open", self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send the last acknowledgements, and leave."""
        await self.aclose()

    async def aclose(self) -> None:
        """Send the last acknowledgements, and leave. Safe to call twice."""
        self._is_closed = True
        self._changed.set()
        try:
            await self._tasks.stop()
        finally:
            await self._partitions.aclose()

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription, and close. `force`: also if it has other consumers.

        A partition that refuses it stops no other, and is asked alone by the next call. Raises PulsarServerError, TransportError.
        """
        self._check_open()
        left = [each for each in self.partitions if not each.has_ended]
        await call_each(lambda each: each.unsubscribe(force=force), left, self._outlives_topics)
        await self.aclose()  # not before: after a refusal also the search for new partitions goes on

    def _check_open(self) -> None:
        if self._failure is not None:
            raise copy_error(self._failure)
        if self._is_closed or not self._is_open:
            raise ClosedError(
                f"{self.name}: it is {'closed' if self._is_closed else 'not open: `async with`'}"
            )

    def _on_end(self, part: ConsumedPartition, error: Exception) -> None:  # noqa: ARG002  of several topics
        self._failure = self._failure or error
        self._changed.set()

    def errors(self) -> dict[str, Exception]:
        """Return for each partition that is not connected the last error."""
        return {
            str(each.topic): each.last_error
            for each in self.partitions
            if each.last_error is not None and not each.is_attached
        }

    # --- messages -------------------------------------------------------------------------------------------------------

    def _on_messages(self, part: ConsumedPartition) -> None:
        if not part.is_ready:
            part.is_ready = True
            self._ready.append(part)
        self._changed.set()

    @property
    def queued(self) -> int:
        """The number of messages that have arrived and were not received."""
        return sum(part.consumer.queued for part in self._parts.values())

    @property
    def partitions(self) -> Iterable[PulsarConsumer]:
        """The consumers of the partitions."""
        return list(self._partitions)

    def _outlives_topics(self) -> bool:
        return False

    @property
    def is_at_end(self) -> bool:
        """Whether the topic was terminated and all of its messages have arrived."""
        return all(part.consumer.is_at_end for part in self._parts.values())

    async def receive(self) -> PulsarMessage:
        """Return the next message. Cancelling the call loses no message.

        Raises ClosedError, and the error with which the broker has ended the consumer.
        """
        while True:
            self._check_open()
            if (message := self._turns.take_one()) is not None:
                return message
            await self._wait(1)

    def __aiter__(self) -> Self:
        """Iterate over messages until the consumer is closed. After a `break` or a cancellation it can go on."""
        return self

    async def __anext__(self) -> PulsarMessage:
        """Return the next message, as `receive`. Raises StopAsyncIteration when the consumer is closed."""
        is_open = self._failure is None and not self._is_closed
        if is_open and self._ready and (message := self._turns.take_one()) is not None:
            return message  # without another coroutine
        try:
            return await self.receive()
        except ClosedError:
            raise StopAsyncIteration from None

    async def receive_batch(
        self, max_messages: int | None = None, max_bytes: int | None = 10 << 20, max_wait: float | None = 0.1
    ) -> list[PulsarMessage]:
        """Return several messages: as soon as there are `max_messages` or `max_bytes`, or `max_wait` seconds after the first.

        None means without limit, but a full queue is returned. Cancelling the call loses no message. Raises as `receive`,
        and ConfigError.
        """
        if max_messages is not None:
            check_count("max_messages", max_messages)
        if max_bytes is not None:
            check_count("max_bytes", max_bytes)
        if max_wait is not None:
            check_duration_or_zero("max_wait", max_wait)
        most = inf if max_messages is None else max_messages
        most_bytes = inf if max_bytes is None else max_bytes
        while True:
            self._check_open()
            if self.queued:
                await self._wait_for_more(most, most_bytes, max_wait)
                self._check_open()
                if found := self._turns.take(most, most_bytes):
                    return found
            else:
                await self._wait(1)

    async def _wait_for_more(self, most: float, most_bytes: float, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not self._is_enough(most, most_bytes) and self._failure is None and not self._is_closed:
                    await self._wait(most)
        except TimeoutError:
            pass

    def _is_enough(self, most: float, most_bytes: float) -> bool:
        permits = [part.consumer.permits for part in self._parts.values()]
        if sum(each.queued for each in permits) >= most or sum(each.bytes for each in permits) >= most_bytes:
            return True
        is_full = all(each.open <= 0 for each in permits if each.queued)
        return is_full and bool(self.config.receiver_queue_size)

    async def _wait(self, count: float) -> None:
        """Wait for an event; without queues the partitions ask for `count` messages."""
        if asyncio.get_running_loop() is not self._loop:  # else it would wait without end
            raise UsageError(f"{self.name}: it belongs to another event loop, perhaps of another thread")
        number = min(int(min(count, 1000)), 1000)
        self._changed.clear()
        self._ask(number)
        try:
            await self._changed.wait()
        finally:
            self._ask(-number)

    def _ask(self, change: int) -> None:
        self._waiting += change
        if not self.config.receiver_queue_size:
            self._partitions.ask(self._waiting)

    def pause(self) -> None:
        """Ask for no more messages, also of partitions that are added later; what was asked for is still received."""
        self._partitions.pause(paused=True)

    def resume(self) -> None:
        """Ask for messages again."""
        self._partitions.pause(paused=False)

    # --- acknowledgements -----------------------------------------------------------------------------------------------

    def _of(self, message: PulsarMessage | MessageId) -> PulsarConsumer:
        try:
            part = self._by_number.get(message.partition)
        except AttributeError:  # not checked before: that would take time for each message
            part = None
        if part is None:
            if not isinstance(message, PulsarMessage | MessageId):
                raise wrong_type("message", message, "a PulsarMessage or its MessageId")
            self._check_open()
            shown = message if isinstance(message, PulsarMessage) else str(message)
            raise ConfigError("message", shown, f"one of a partition of {self.topic}")
        return part.consumer

    def ack(
        self, message: PulsarMessage | MessageId, *, transaction: PulsarTransaction | None = None
    ) -> None:
        """Acknowledge a message; it is sent with others within `ack_group_time`. Raises ClosedError.

        In a `transaction` it counts when that is committed, see PulsarTransaction; it is sent at once, and the end of the
        transaction waits for the answer. Raises then also NoTransactionError after the transaction's end,
        PulsarTransactionAborted if it can only be aborted, and PulsarTransactionConflict for a message that it has acknowledged
        before: a message may be delivered twice, and what is made of both counts twice.
        """
        if transaction is None:
            self._of(message).outcomes.ack(message)
        else:
            self._of(message).transactions.ack(transaction, message)

    def ack_cumulative(
        self, message: PulsarMessage | MessageId, *, transaction: PulsarTransaction | None = None
    ) -> None:
        """Acknowledge a message and all before it in its partition, in a `transaction` as with `ack`.

        Raises UsageError in Shared and Key_Shared subscriptions, ClosedError.
        """
        if transaction is None:
            self._of(message).outcomes.ack_cumulative(message)
        else:
            self._of(message).transactions.ack(transaction, message, cumulative=True)

    def ack_read(self, messages: Iterable[PulsarMessage]) -> None:
        """Acknowledge all up to the last message of each partition, for a subscription that is not durable.

        Its position ends with it; but the state of batches would be kept here until then (as Java's `ReaderImpl`).
        """
        for message in {each.partition: each for each in messages}.values():
            self.ack_cumulative(message)

    def nack(self, message: PulsarMessage | MessageId, delay: float | None = None) -> None:
        """Have a message delivered again after `delay` seconds; None is `nack_delay`. Raises ClosedError.

        In Exclusive and Failover subscriptions all messages of its partition come again that are not acknowledged, in order.
        """
        if delay is not None:
            check_duration_or_zero("delay", delay)
        self._of(message).outcomes.nack(message, delay)

    async def flush(self) -> None:
        """Return when the broker has confirmed all acknowledgements that were made before.

        Raises PulsarServerError and RequestTimedOut; they are sent again nevertheless. Raises ClosedError.
        """
        parts = [part.consumer for part in self._parts.values()]
        await call_each(lambda each: each.outcomes.flush(), parts, self._outlives_topics)

    def redeliver_all(self) -> None:
        """Have everything delivered again that is not acknowledged.

        In Shared and Key_Shared subscriptions messages that are on their way may arrive before older ones, and once more after them.
        """
        for part in self._parts.values():
            part.consumer.outcomes.redeliver_all()

    # --- positions ------------------------------------------------------------------------------------------------------

    async def seek(self, target: MessageId | PulsarMessage | int, *, inclusive: bool = True) -> None:
        """Move the subscription: to a message of one partition, or all to EARLIEST, LATEST or a publish time in ms.

        Nothing of before is received afterwards. A partition that cannot be moved stops no other: the error is raised when all have
        ended. Raises PulsarServerError, TransportError, UsageError during another seek, ConfigError for another target.
        """
        self._check_open()
        if isinstance(target, PulsarMessage) or (
            isinstance(target, MessageId) and target[:2] not in (EARLIEST[:2], LATEST[:2])
        ):
            await seek(self._of(target), target, inclusive=inclusive)
            return
        parts = self.partitions
        await call_each(lambda each: seek(each, target, inclusive=inclusive), parts, self._outlives_topics)

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of each partition; its entry is -1 in an empty one.

        Raises PulsarServerError, TransportError.
        """
        self._check_open()
        found = await call_each(PulsarConsumer.last_message_id, self.partitions, self._outlives_topics)
        return list(found.values())


add_foreign_names(PulsarTopicConsumer, PULSAR_CONSUMER)
