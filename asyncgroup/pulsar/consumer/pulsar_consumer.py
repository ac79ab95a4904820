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
    UsageError,
)
from asyncgroup.escaping import escaping_logger
from asyncgroup.log_events import log_fields
from asyncgroup.model import TopicPartition, clock_of_loop
from asyncgroup.pulsar.attach_history import AttachHistory
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.listeners import SendsCommands
from asyncgroup.pulsar.consumer.ack_sender import AckFailure, AckSender
from asyncgroup.pulsar.consumer.arrivals import Arrivals, StartPosition, permits_of
from asyncgroup.pulsar.consumer.chunk_assembly import ChunkAssembly, ChunkAssemblyLimits
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.listener import PulsarConsumerListener
from asyncgroup.pulsar.consumer.pending_acks import PendingAcks
from asyncgroup.pulsar.consumer.permits import PermitLedger
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.receiver_queue import ReceiverQueue
from asyncgroup.pulsar.consumer.redelivery import RedeliveryRequests
from asyncgroup.pulsar.consumer.registration import Registration
from asyncgroup.pulsar.consumer.rejections import Rejections
from asyncgroup.pulsar.consumer.reports import ConsumerReports
from asyncgroup.pulsar.consumer.subscribing import Subscribing
from asyncgroup.pulsar.consumer.unacked import EntryKey, UnackedEntries
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
    ) -> None:
        """`overhead` is what a message counts for `receiver_queue_bytes` besides its own bytes."""
        self.id = core.new_id()
        self.topic = topic
        self.partition = topic.partition
        self.subscription = subscription
        self.kind = kind
        self.config = config
        self.name = f"consumer {self.id} of {topic} in {subscription}"
        self.is_active = kind is not SubscriptionType.FAILOVER
        """Whether the broker pushes messages to this consumer; of a Failover subscription to the active one only."""
        self.is_at_end = False
        """Whether the topic was terminated and all of its messages were pushed."""
        self.attachment = 0
        """The number of the last registration at a broker, or other event that made all messages come again."""
        self.last_error: Exception | None = None
        """The last failure since it was registered; None without one."""
        self._core = core
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._connection: PulsarConnection | None = None
        size = config.receiver_queue_size if queue_size is None else queue_size
        self.permits = PermitLedger(size, max_bytes=config.receiver_queue_bytes, overhead=overhead)
        """What the broker may push."""
        self.permits.is_paused = config.start_paused
        self._unacked = UnackedEntries(index_acks=config.index_acks)
        pending = PendingAcks(config.ack_group_time, config.ack_group_size, index_acks=config.index_acks)
        reports = ConsumerReports(core.hooks, subscription, topic)
        self._on_received = reports.received
        self._acks = AckSender(
            self.id, self.name, pending, core.config.operation_timeout, self._on_ack_error, reports.acked
        )
        self._redelivery = RedeliveryRequests(self.id, kind, self._unacked, self._acks)
        self._nacks = self._redelivery.nacks
        self._queue = ReceiverQueue(self.permits, self._redelivery.epoch)
        limits = ChunkAssemblyLimits(
            config.max_pending_chunked,
            core.config.max_message_size,
            config.chunk_expiry,
            config.ack_oldest_chunked,
        )
        self._chunks = ChunkAssembly(limits, largest=core.config.max_message_size, in_order=kind.in_order)
        self._arrivals = Arrivals(
            str(topic.whole),
            self.partition,
            self._unacked,
            pending,
            self._nacks,
            self._redelivery.epoch,
            self._chunks,
            self._loop.time,
            clock_of_loop(),
            largest=core.config.max_message_size,
        )
        self._rejections = Rejections(
            self.id, self.name, self._unacked, self._acks, self._redelivery, self._chunks, self.on_error
        )
        self._subscribing = Subscribing(str(topic), subscription, kind, config, self.id)
        self._arrivals.start = self._subscribing.start
        self._registration = Registration(
            core, self.name, topic, self.id, self._subscribe, self, config.close_timeout, subscription
        )
        self._timer: asyncio.TimerHandle | None = None
        self._oldest_attachment = (
            0  # acknowledgements of messages of earlier ones do not count: there was a seek
        )
        self._last_taken: MessageId | None = (
            None  # of a subscription that is not durable, since the last seek
        )
        self._given_back = 0  # messages that are asked for with the next request
        self._knows_sizes = False  # of messages: one has arrived
        self._is_seeking = False
        self._is_closing = False

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
        return self._acks.failure

    def _subscribe(self, request_id: int) -> CommandSubscribe:
        return self._subscribing.command(request_id, self._redelivery.epoch.current)

    def check_broker(self, server_version: str) -> None:
        """Called before it is registered at a broker."""
        self._listener.check_broker(server_version)

    def on_registered(self, connection: PulsarConnection) -> None:
        """Ask for messages; called by the registration."""
        self._next_attachment()
        self._connection = connection
        self.last_error = None
        self.permits.connect(connection.max_message_size)
        self._acks.attach(connection)
        self._listener.on_attached()
        self._flow()
        self._arm()

    def _next_attachment(self) -> None:
        self.attachment += 1
        self._arrivals.attachment = self.attachment

    def on_unregistered(self) -> None:
        """The attachment has ended, another one follows; called by the registration."""
        self._connection = None
        if not self.config.durable and not self._is_seeking:
            self._start_again()
        self._acks.detach()
        self._void()
        self.permits.disconnect()
        if self.kind is SubscriptionType.FAILOVER and self.is_active:
            self.on_active_change(False)
        self._listener.on_restart()

    def _start_again(self) -> None:
        """The broker forgets a subscription that is not durable: continue after what was taken."""
        if self._last_taken is not None:
            position = StartPosition.at(self._last_taken, inclusive=False)
        elif self._queue:
            position = StartPosition.at(next(iter(self._queue)).message_id, inclusive=True)
        else:
            return
        self._subscribing.start = self._arrivals.start = position

    def _void(self) -> None:
        """What is not acknowledged comes again."""
        for message in self._queue:
            self._unacked.release(message.message_id)
        self._queue.clear()
        self._unacked.release_all()
        self._chunks.clear()

    def on_refused(self, error: Exception) -> None:
        """No attachment follows; called by the registration."""
        self._end(error)
        self._listener.on_failed(error)

    def _end(self, error: Exception) -> None:
        self._core.consumers.pop(self.id, None)
        self._connection = None
        self._acks.close(error)
        self._queue.clear()
        self.permits.disconnect()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def aclose(self) -> None:
        """Send the last acknowledgements, and leave the broker. Safe to call twice."""
        if self._is_closing:
            return
        self._is_closing = True
        try:
            await self._flush_at_close()
        finally:
            self._end(ClosedError(f"{self.name}: it is closed"))
            await self._registration.aclose()

    async def _flush_at_close(self) -> None:
        if self._connection is None or self._is_seeking:
            return
        try:
            async with asyncio.timeout(self.config.close_timeout):
                await self._acks.flush()
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
        self._is_closing = True
        self._end(ClosedError(f"{self.name}: it is closed"))
        self._registration.forget()
        await self._registration.aclose()

    async def request(self, about: str, make: Callable[[int], Command]) -> Any:
        """Send a request, again after failures that may pass, until `operation_timeout`.

        Raises PulsarServerError, TransportError, ClosedError.
        """
        return await self._registration.request(about, make)

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
        if self._is_seeking:
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
            self._rejections.react(arrived, self._connection)
            self._arm()
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
            self._last_taken = found[-1].message_id
        self._flow()
        return found

    def take_one(self) -> PulsarMessage | None:
        """Remove and return the next message; None if there is none."""
        message = self._queue.take_one()
        if message is not None and not self.config.durable:
            self._last_taken = message.message_id
        self._flow()
        return message

    def set_limits(self, queue_size: int, max_bytes: int | None) -> None:
        """Change the size of the queue, as when the partitions of a topic share one and there are more."""
        self.permits.share(queue_size, max_bytes)
        self._flow()

    def return_permits(self, messages: Iterable[PulsarMessage]) -> None:
        """Messages that were taken with `keeps_permits` have made room; those of an earlier attachment took none."""
        for message in messages:
            if message.attachment == self.attachment and self._connection is not None:
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
        if connection is not None and not self._is_seeking and (due := self.permits.next_flow()):
            connection.send_command(CommandFlow(consumer_id=self.id, message_permits=due))

    def on_active_change(self, is_active: bool) -> None:
        """Called by the connection."""
        if is_active == self.is_active or self.kind is not SubscriptionType.FAILOVER:
            return
        self.is_active = is_active
        if not is_active and self._connection is not None:
            # the next active consumer gets what is not acknowledged, and this one again if it is that later
            self._void()
            self._drop_queue()
            self._listener.on_restart()
            self._flow()
        self._listener.on_active_change(is_active)

    def on_end_of_topic(self) -> None:
        """Called by the connection."""
        self.is_at_end = True
        self._listener.on_end_of_topic()

    def on_broker_close(self, connection: SendsCommands, assigned_url: str | None) -> None:
        """The broker has closed the consumer, as its topic moves or a seek begins; called by the connection."""
        self._registration.lost(
            connection, ConnectionLost(f"{self.name}: the broker has closed it"), assigned_url
        )

    def on_connection_lost(self, connection: SendsCommands, error: Exception) -> None:
        """Called by the connection."""
        self._registration.lost(connection, error)

    # --- acknowledgements -----------------------------------------------------------------------------------------------

    def ack(self, message: PulsarMessage | MessageId) -> None:
        """Acknowledge a message. A message of before the last seek is not acknowledged: it is delivered again.

        An id of a batch's message has no effect if this consumer has not delivered it, or acknowledged it before.
        """
        if (found := self._current_id(message)) is not None:
            if self._nacks:
                self._nacks.discard(found)
            if (acked := self._unacked.ack(found)) is not None and self._acks.add(acked):
                self._arm()
            if self._may_be_queued(message):
                self._drop_queued(lambda queued: queued.message_id == found)

    def ack_cumulative(self, message: PulsarMessage | MessageId) -> None:
        """Acknowledge a message and all before it. Raises UsageError in Shared and Key_Shared subscriptions."""
        if not self.kind.in_order:
            raise UsageError(
                f"{self.name}: in {self.kind.name} subscriptions messages are acknowledged one by one"
            )
        if (found := self._current_id(message)) is not None:
            self._nacks.discard_up_to(found)
            if self._acks.add(self._unacked.ack_cumulative(found), cumulative=True):
                self._arm()
            if self._may_be_queued(message):
                self._drop_queued(lambda queued: queued.message_id <= found)

    def _may_be_queued(self, message: PulsarMessage | MessageId) -> bool:
        """Whether it has come again since it was taken, so that it is acknowledged while it is queued."""
        return isinstance(message, PulsarMessage) and message.attachment != self.attachment

    def _drop_queued(self, is_acked: Callable[[PulsarMessage], bool]) -> None:
        self._queue.discard(is_acked)
        self._flow()

    def _current_id(self, message: PulsarMessage | MessageId) -> MessageId | None:
        """Return the id of a message; None for a message of before the last seek. Raises ClosedError."""
        if self._is_closing:
            raise ClosedError(f"{self.name}: it is closed")
        if isinstance(message, MessageId):
            return message
        return message.message_id if message.attachment >= self._oldest_attachment else None

    async def flush(self) -> None:
        """Return when the broker has confirmed all acknowledgements that were made before.

        Raises PulsarServerError and RequestTimedOut; they are sent again nevertheless. Raises ClosedError.
        """
        await self._acks.flush()

    # --- redelivery -----------------------------------------------------------------------------------------------------

    def nack(self, message: PulsarMessage | MessageId, delay: float | None = None) -> None:
        """Have a message delivered again after `delay` seconds (None: `nack_delay`), never earlier.

        In Shared and Key_Shared subscriptions another consumer may get it. In the others all messages come again that are not
        acknowledged, in order.
        """
        if (found := self._current_id(message)) is not None:
            self._redelivery.add([found], self.config.nack_delay if delay is None else delay)
            self._arm()

    def give_back(self, message: PulsarMessage) -> bool:
        """Have a message delivered again now, by any consumer of a Shared subscription; return False if that is not possible.

        It is not without a connection, and for a message of a batch of which others are not acknowledged: they would come again
        as well. A permit for it is granted as soon as the queue has room, before half of the queue is free.
        """
        found = self._current_id(message)
        if found is None or self._connection is None or not self._unacked.is_alone(found):
            return False
        self._redelivery.add([found], 0.0)
        self._given_back += 1
        self._arm()
        return True

    @property
    def is_hurried(self) -> bool:
        """Whether messages that were given back may come again, and wait for permits."""
        return bool(self._given_back or self.permits.hurried)

    def send_given_back(self) -> None:
        """Ask now for the messages that were given back, and for the others whose time has come."""
        everything = self._redelivery.send_due(self._connection)
        count, self._given_back = self._given_back, 0
        if everything:
            self.redeliver_all()
        elif count:
            self.permits.hurried += count
            self._flow()  # after the request: the broker uses permits for messages that come again first

    def redeliver_all(self) -> None:
        """Have everything delivered again that is not acknowledged."""
        self._void()
        self._drop_queue()
        self._redelivery.send_all(self._connection)
        self._listener.on_restart()
        self._flow()

    def _drop_queue(self) -> None:
        """Drop the queued messages, and those that were taken with their permits."""
        self._queue.drop()
        self._next_attachment()

    def on_error(self, error: Exception) -> None:
        """Something failed that is tried again."""
        if self._is_seeking and isinstance(error, ConnectionLost):
            return  # a broker closes the consumers of a subscription that it moves
        self.last_error = error
        self._listener.on_error(error)

    def _on_ack_error(self, error: Exception) -> None:
        """Acknowledgements were refused: they are sent again later; the first failure is logged."""
        failure = self._acks.failure
        if failure is not None and failure.times == 1:
            tp = TopicPartition(str(self.topic.whole), self.partition)
            fields = log_fields("ack_failed", group=self.subscription, tp=tp, error=error)
            _log.warning("%s; acknowledgements are sent again", error, extra=fields)
        self.on_error(error)
        self._arm()

    # --- timers ---------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Have `_on_timer` called at the earliest time that something is due."""
        at = min(self._acks.due_at, self._nacks.due_at, self._chunks.expires_at)
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = None if at == inf or self._is_closing else self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._nacks.due_at <= now:
            self.send_given_back()
        if self._acks.due_at <= now:
            self._acks.send()
        if self._chunks.expires_at <= now:
            self._chunks.expire(now)
            self._rejections.react_to_chunks()
        self._arm()

    # --- seek -----------------------------------------------------------------------------------------------------------

    def begin_seek(self) -> None:
        """Deliver nothing from now on: see `seeking`. Raises UsageError during another seek."""
        if self._is_seeking:
            raise UsageError(f"{self.name}: it seeks already")
        self._is_seeking = self._acks.is_held = self.history.is_moving = True
        self._void()
        self._drop_queue()
        self._listener.on_restart()

    def end_seek(self, start: StartPosition | None, last: EntryKey) -> None:
        """The subscription was moved: forget all that was before. `last` is the last entry that may have been acknowledged."""
        self._next_attachment()
        self._oldest_attachment = self.attachment
        self._arrivals.start = start
        if not self.config.durable:
            self._subscribing.start = start
        self._last_taken = None
        self.is_at_end = False
        self._acks.clear()
        self._nacks.clear()
        self._chunks.clear()
        self._unacked.clear(last)
        self._resume_after_seek()

    def give_up_seek(self) -> None:
        """The subscription was not moved: what is not acknowledged comes again."""
        self._resume_after_seek()
        if self._connection is not None:
            self.redeliver_all()

    def _resume_after_seek(self) -> None:
        self._is_seeking = self._acks.is_held = self.history.is_moving = False
        self._acks.send()
        self._flow()
        self._arm()
