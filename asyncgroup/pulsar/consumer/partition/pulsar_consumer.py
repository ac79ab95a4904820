"""PulsarConsumer: a consumer of one partition, or of a topic without partitions (Pulsar's `ConsumerImpl`).

It keeps itself at the broker of its topic. What the broker pushes goes into a queue, from which `take` returns it; the permits
follow the queue. Everything here happens in callbacks of the event loop: the reader of the connection waits for no user.

A registration at a broker is an attachment. When it ends, the broker gives all messages that are not acknowledged to consumers
again: so the queue is emptied, and messages that were taken before may come again. Acknowledgements and negative ones are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from asyncgroup.errors import (
    AsyncGroupError,
    ClosedError,
    ConnectionLost,
    DecodeError,
    ProtocolError,
)
from asyncgroup.escaping import escaping_logger
from asyncgroup.log_events import log_fields
from asyncgroup.model import TopicPartition
from asyncgroup.pulsar.attach_history import AttachHistory
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.listeners import SendsCommands
from asyncgroup.pulsar.consumer.acks.ack_sender import AckFailure
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.partition.consumer_parts import ConsumerParts
from asyncgroup.pulsar.consumer.partition.identity import ConsumerIdentity
from asyncgroup.pulsar.consumer.partition.listener import PulsarConsumerListener
from asyncgroup.pulsar.consumer.partition.message_outcomes import MessageOutcomes
from asyncgroup.pulsar.consumer.partition.position import SubscriptionPosition
from asyncgroup.pulsar.consumer.partition.registration import Registration
from asyncgroup.pulsar.consumer.partition.transaction_acks import ConsumerTransactions
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.receiving.arrivals import permits_of
from asyncgroup.pulsar.consumer.receiving.permits import PermitLedger
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandFlow,
    CommandGetLastMessageId,
    CommandMessage,
    CommandSubscribe,
    CommandUnsubscribe,
)
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["PulsarConsumer"]

_log = escaping_logger("asyncgroup.pulsar")


class PulsarConsumer:
    """A consumer of one partition: `start`, then `wait_attached`; at the end `aclose`.

    `topic` is the name of the partition. `listener` is called when messages are queued, and when the state changes.
    """

    def __init__(
        self,
        core: ClientCore,
        topic: TopicName,
        subscription: str,
        kind: SubscriptionType,
        config: PulsarConsumerConfig,
        listener: PulsarConsumerListener,
        *,
        queue_size: int | None = None,
        overhead: int = 0,
        creates_topic: bool = True,
    ) -> None:
        """`overhead` is what a message counts for `receiver_queue_bytes` besides its own bytes.

        Without `creates_topic` it ends when the topic is deleted.
        """
        identity = ConsumerIdentity(core.new_id(), topic, subscription, kind, config)
        self.id = identity.id
        self.name = identity.name
        self.topic = topic
        self.partition = topic.partition
        self.subscription = subscription
        self.kind = kind
        self.config = config
        self.is_active = kind is not SubscriptionType.FAILOVER
        """Whether the broker pushes messages to this consumer; of a Failover subscription to the active one only."""
        self.last_error: Exception | None = None
        """The last failure since it was registered; None without one."""
        self._core = core
        self._listener = listener
        self._connection: PulsarConnection | None = None
        size = config.receiver_queue_size if queue_size is None else queue_size
        self.permits = PermitLedger(size, max_bytes=config.receiver_queue_bytes, overhead=overhead)
        """What the broker may push."""
        self.permits.is_paused = config.start_paused
        self._parts = parts = ConsumerParts(
            core, identity, self.permits, self.on_error, self._on_ack_error, creates_topic=creates_topic
        )
        self._queue = parts.queue
        self._arrivals = parts.arrivals
        self._on_received = parts.reports.received
        self._knows_sizes = False  # of messages: one has arrived
        self.outcomes = MessageOutcomes(identity, parts, self._flow, listener.on_restart)
        """Acknowledges its messages, or has them delivered again."""
        self.transactions = ConsumerTransactions(core, self, parts, is_durable=config.durable)
        """Acknowledges its messages in transactions."""
        self._registration = Registration(core, identity, self._subscribe, self)
        self.position = SubscriptionPosition(
            identity, parts, self.outcomes, self.history, self._flow, listener.on_restart
        )
        """Where it goes on, after a seek and after a reconnect."""

    def __repr__(self) -> str:
        return f"<PulsarConsumer {self.name}: {self._registration.state}, {self.permits!r}>"

    # --- life -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look for the broker."""
        self._core.consumers[self.id] = self
        self._registration.start()

    async def wait_attached(self) -> None:
        """Wait until it is registered. Raises the error that has ended it, ClosedError."""
        await self._registration.wait_attached()

    @property
    def is_attached(self) -> bool:
        """Whether it is registered at a broker."""
        return self._connection is not None

    @property
    def has_ended(self) -> bool:
        """Whether it was closed, or its broker has ended it."""
        return self._registration.has_ended

    @property
    def is_at_end(self) -> bool:
        """Whether the topic was terminated and all of its messages were pushed."""
        return self.position.is_at_end

    @property
    def open_permits(self) -> int:
        """The number of messages that the broker may push now."""
        return max(0, self.permits.open)

    @property
    def history(self) -> AttachHistory:
        """When it was registered, and when it was not."""
        return self._registration.history

    @property
    def ack_failure(self) -> AckFailure | None:
        """Since when acknowledgements fail; None if they do not."""
        return self._parts.acks.failure

    def _subscribe(self, request_id: int) -> CommandSubscribe:
        return self._parts.subscribing.command(request_id, self._parts.redelivery.epoch_to_subscribe())

    def check_broker(self, server_version: str) -> None:
        """Called before it is registered at a broker."""
        self._listener.check_broker(server_version)

    def on_registered(self, connection: PulsarConnection) -> None:
        """Ask for messages; called by the registration."""
        self._connection = connection
        self.last_error = None
        self.permits.connect(connection.max_message_size)
        self.outcomes.attach(connection)
        self._listener.on_attached()
        self._flow()
        self.outcomes.arm()
        self.position.attach(connection)

    def on_unregistered(self) -> None:
        """The attachment has ended, another one follows; called by the registration."""
        self._connection = None
        self.position.detach()
        self.outcomes.detach()
        self._parts.void()
        self.permits.disconnect()
        if self.kind is SubscriptionType.FAILOVER and self.is_active:
            self.on_active_change(False)
        self._listener.on_restart()

    def on_refused(self, error: Exception) -> None:
        """No attachment follows; called by the registration."""
        self._end(error)
        self._listener.on_failed(error)

    def _end(self, error: Exception) -> None:
        self._core.consumers.pop(self.id, None)
        self._connection = None
        self.outcomes.close(error)
        self._queue.clear()
        self.permits.disconnect()

    async def aclose(self) -> None:
        """Send the last acknowledgements, and leave the broker. Safe to call twice."""
        if self.outcomes.is_closing:
            return
        self.outcomes.is_closing = True
        try:
            await self._flush_at_close()
        finally:
            self._end(ClosedError(f"{self.name}: it is closed"))
            await self._registration.aclose()

    async def _flush_at_close(self) -> None:
        if self._connection is None or self.position.is_seeking:
            return
        try:
            async with asyncio.timeout(self.config.close_timeout):
                await self.transactions.flush()
                await self._parts.acks.flush()
        except (AsyncGroupError, TimeoutError) as error:
            _log.warning(
                "%s: messages may be delivered again, their acknowledgement failed: %s", self.name, error
            )

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription, and close. `force`: also if it has other consumers. Raises as `request` does."""
        await self._flush_at_close()
        await self.request(
            "UNSUBSCRIBE",
            lambda number: CommandUnsubscribe(consumer_id=self.id, request_id=number, force=force),
        )
        self.outcomes.is_closing = True
        self._end(ClosedError(f"{self.name}: it is closed"))
        self._registration.forget()
        await self._registration.aclose()

    async def request(self, about: str, make: Callable[[int], Command]) -> Any:
        """Send a request, again after failures that may pass, until `operation_timeout`.

        Raises PulsarServerError, TransportError, ClosedError.
        """
        return await self._registration.request(about, make)

    async def attached_connection(self, seconds: float | None = None) -> PulsarConnection:
        """Return the connection at which it is registered; wait for it, by default until `operation_timeout`.

        Raises RequestTimedOut, and why it has ended.
        """
        return await self._registration.attached_within(seconds)

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; its entry is -1 in an empty topic. Raises as `request` does."""
        answer = await self.request(
            "GET_LAST_MESSAGE_ID",
            lambda number: CommandGetLastMessageId(consumer_id=self.id, request_id=number),
        )
        return MessageId.of(answer.last_message_id, self.partition)

    # --- messages -------------------------------------------------------------------------------------------------------

    def on_message(
        self, connection: SendsCommands, command: CommandMessage, frame: bytes | bytearray, at: int
    ) -> None:
        """An entry has arrived; called by the connection."""
        if connection is not self._connection:
            return
        if self.position.is_seeking:
            self.permits.arrive(permits_of(command, frame, at), 0, 0)
            return
        try:
            arrived = self._arrivals.arrive(command, frame, at)
        except DecodeError as error:
            self._connection.close(ProtocolError(f"{self.name}: malformed message: {error}"))
            return
        self._queue.add(arrived.charged, arrived.messages)
        if self._on_received is not None:
            self._on_received(len(arrived.messages), len(frame))
        if arrived.messages:
            if not self._knows_sizes:  # the first permits were few, as for messages of the largest size
                self._knows_sizes = True
                self._flow()
            self._listener.on_messages()
        else:
            self._parts.rejections.react(arrived, self._connection)
            self.outcomes.arm()
            self._flow()

    @property
    def queued(self) -> int:
        """The number of messages that `take` can return."""
        return len(self._queue)

    def take(self, limit: int, max_bytes: float = inf, *, keeps_permits: bool = False) -> list[PulsarMessage]:
        """Remove and return messages from the queue, at most `limit`, and `max_bytes` unless the first is larger.

        With `keeps_permits` the broker pushes no others for them before `return_permits`.
        """
        found = self._queue.take(limit, max_bytes, keeps_permits=keeps_permits)
        if found and not self.config.durable:
            self.position.last_taken = found[-1].message_id
        self._flow()
        return found

    def take_one(self) -> PulsarMessage | None:
        """Remove and return the next message; None if there is none."""
        message = self._queue.take_one()
        if message is not None and not self.config.durable:
            self.position.last_taken = message.message_id
        self._flow()
        return message

    def set_limits(self, queue_size: int, max_bytes: int | None) -> None:
        """Change the size of the queue, as when the partitions of a topic share one and there are more."""
        self.permits.share(queue_size, max_bytes)
        self._flow()

    def return_permits(self, messages: Iterable[PulsarMessage]) -> None:
        """Messages that were taken with `keeps_permits` have made room; those of an earlier attachment took none."""
        for message in messages:
            if message.attachment == self.outcomes.attachment and self._connection is not None:
                self._queue.give_back(message)
        self._flow()

    def set_waiting(self, count: int) -> None:
        """Without a queue: the number of messages that receivers wait for."""
        self.permits.waiting = count
        self._flow()

    def pause(self) -> None:
        """Ask for no more messages; what was asked for still arrives."""
        self.permits.is_paused = True

    def resume(self) -> None:
        """Ask for messages again."""
        self.permits.is_paused = False
        self._flow()

    def _flow(self) -> None:
        connection = self._connection
        if connection is not None and not self.position.is_seeking and (due := self.permits.next_flow()):
            connection.send_command(CommandFlow(consumer_id=self.id, message_permits=due))

    def on_active_change(self, is_active: bool) -> None:
        """Called by the connection."""
        if self.kind is not SubscriptionType.FAILOVER:
            return
        if is_active == self.is_active:
            if is_active and self._connection is not None and not self.position.is_seeking:
                # another one was chosen and left before that took effect: everything comes again after what is queued
                # (`PersistentDispatcherSingleActiveConsumer.scheduleReadOnActiveConsumer`). It is asked for, since a broker also
                # repeats itself after a failed read, when nothing comes again (`scheduleReadEntriesWithDelay`)
                self.outcomes.redeliver_all()
            return
        self.is_active = is_active
        if not is_active and self._connection is not None:
            # the next active consumer gets what is not acknowledged, and this one again if it is that later
            self._parts.void()
            self.outcomes.drop_queue()
            self._listener.on_restart()
            self._flow()
        self._listener.on_active_change(is_active)

    def on_end_of_topic(self) -> None:
        """Called by the connection."""
        self.position.is_at_end = True
        self._listener.on_end_of_topic()

    def on_broker_close(self, connection: SendsCommands, assigned_url: str | None) -> None:
        """The broker has closed the consumer, as its topic moves or a seek begins; called by the connection."""
        self.position.closed_by_broker()
        self._registration.lost(
            connection, ConnectionLost(f"{self.name}: the broker has closed it"), assigned_url
        )

    def on_migrated(self, url: str) -> None:
        """The topic is in the cluster of a service URL from now on; called by the connection."""
        self._registration.migrate(url)

    def on_connection_lost(self, connection: SendsCommands, error: Exception) -> None:
        """Called by the connection."""
        self._registration.lost(connection, error)

    def on_error(self, error: Exception) -> None:
        """Something failed that is tried again."""
        if self.position.is_seeking and isinstance(error, ConnectionLost):
            return  # a broker closes the consumers of a subscription that it moves
        self.last_error = error
        self._listener.on_error(error)

    def _on_ack_error(self, error: Exception) -> None:
        """Acknowledgements were refused: they are sent again later; the first failure is logged."""
        failure = self._parts.acks.failure
        if failure is not None and failure.times == 1:
            tp = TopicPartition(str(self.topic.whole), self.partition)
            fields = log_fields("ack_failed", group=self.subscription, tp=tp, error=error)
            _log.warning("%s; acknowledgements are sent again", error, extra=fields)
        self.on_error(error)
        self.outcomes.arm()
