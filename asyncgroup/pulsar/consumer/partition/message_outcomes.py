"""MessageOutcomes: acknowledges the messages of a consumer, or has them delivered again, at once or later.

Messages that were taken before an attachment ended may come again. An acknowledgement of such a message counts, and takes it out
of the queue if it is there; after a seek it does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf

from asyncgroup.errors import ClosedError, UsageError
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.consumer.partition.consumer_parts import ConsumerParts
from asyncgroup.pulsar.consumer.partition.identity import ConsumerIdentity
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["MessageOutcomes"]


class MessageOutcomes:
    """The outcomes of one consumer's messages.

    `flow` asks for messages if there is room, `on_restart` is called when everything comes again.
    """

    def __init__(
        self,
        identity: ConsumerIdentity,
        parts: ConsumerParts,
        flow: Callable[[], None],
        on_restart: Callable[[], None],
    ) -> None:
        self.name = identity.name
        self.kind = identity.kind
        self.attachment = 0
        """The number of the last registration at a broker, or other event that made all messages come again."""
        self.connection: PulsarConnection | None = None
        """The one at which the consumer is registered."""
        self.is_closing = False
        """Whether it accepts no outcome any more."""
        self._nack_delay = identity.config.nack_delay
        self._parts = parts
        self._queue = parts.queue
        self._unacked = parts.unacked
        self._acks = parts.acks
        self._nacks = parts.nacks
        self._chunks = parts.chunks
        self._flow = flow
        self._on_restart = on_restart
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._oldest_attachment = (
            0  # that of the last seek: outcomes of messages of earlier ones do not count
        )
        self._given_back = 0  # messages that are asked for with the next request

    def __repr__(self) -> str:
        return f"<MessageOutcomes of {self.name}: {self._unacked!r}, {self._nacks!r}>"

    # --- attachments ----------------------------------------------------------------------------------------------------

    def attach(self, connection: PulsarConnection) -> None:
        """The consumer is registered: all messages come again, and acknowledgements can be sent."""
        self.begin_attachment()
        self.connection = connection
        self._acks.attach(connection)
        self._parts.redelivery.attach(connection)

    def detach(self) -> None:
        """The consumer is not registered any more; what is to be sent waits."""
        self.connection = None
        self._acks.detach()

    def begin_attachment(self) -> None:
        """All messages come again from now on."""
        self.attachment += 1
        self._nacks.restart()
        self._parts.arrivals.attachment = self.attachment

    def begin_after_seek(self) -> None:
        """As `begin_attachment`, and outcomes of messages of before do not count."""
        self.begin_attachment()
        self._oldest_attachment = self.attachment

    def drop_queue(self) -> None:
        """Drop the queued messages, and those that were taken with their permits."""
        self._queue.drop()
        self.begin_attachment()

    def close(self, error: Exception) -> None:
        """Nothing is sent any more; who waits for a confirmation gets the error."""
        self.connection = None
        self._acks.close(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- acknowledgements -----------------------------------------------------------------------------------------------

    def ack(self, message: PulsarMessage | MessageId) -> None:
        """Acknowledge a message. A message of before the last seek is not acknowledged: it is delivered again.

        An id of a batch's message has no effect if this consumer has not delivered it, or acknowledged it before.
        """
        if (found := self.current_id(message)) is not None:
            if self._nacks:
                self._nacks.discard(found)
            if (acked := self._unacked.ack(found)) is not None and self._acks.add(acked):
                self.arm()
            if self._may_be_queued(message):
                self._drop_queued(lambda queued: queued.message_id == found)

    def ack_cumulative(self, message: PulsarMessage | MessageId) -> None:
        """Acknowledge a message and all before it. Raises UsageError in Shared and Key_Shared subscriptions."""
        self.check_cumulative()
        if (found := self.current_id(message)) is not None:
            self._nacks.discard_up_to(found)
            if self._acks.add(self._unacked.ack_cumulative(found), cumulative=True):
                self.arm()
            if self._may_be_queued(message):
                self._drop_queued(lambda queued: queued.message_id <= found)

    def check_cumulative(self) -> None:
        """Raise UsageError unless messages arrive in order."""
        if not self.kind.in_order:
            raise UsageError(
                f"{self.name}: in {self.kind.name} subscriptions messages are acknowledged one by one"
            )

    def settle_in_transaction(
        self, message: PulsarMessage | MessageId, found: MessageId, *, cumulative: bool
    ) -> bool:
        """A transaction has acknowledged a message with this id: deliver it no more, unless the broker pushes it again.

        Return whether a newer copy was queued.
        """
        if cumulative:
            self._nacks.discard_up_to(found)
        else:
            self._nacks.discard(found)
        return self._may_be_queued(message) and self._drop_queued(
            lambda queued: queued.message_id <= found if cumulative else queued.message_id == found
        )

    def drop_queued(self, acked: Iterable[MessageId]) -> None:
        """The broker has acknowledgements of these messages: deliver no copies that it has pushed before."""
        if found := set(acked):
            self._drop_queued(lambda queued: queued.message_id in found)

    def drop_queued_up_to(self, acked: MessageId) -> None:
        """As `drop_queued`, for all messages up to one."""
        self._drop_queued(lambda queued: queued.message_id <= acked)

    def _may_be_queued(self, message: PulsarMessage | MessageId) -> bool:
        """Whether it has come again since it was taken, so that it is acknowledged while it is queued."""
        return isinstance(message, PulsarMessage) and message.attachment != self.attachment

    def _drop_queued(self, is_acked: Callable[[PulsarMessage], bool]) -> bool:
        """Return whether there was one."""
        before = len(self._queue)
        self._queue.discard(is_acked)
        self._flow()
        return len(self._queue) < before

    def current_id(self, message: PulsarMessage | MessageId) -> MessageId | None:
        """Return the id of a message; None for a message of before the last seek. Raises ClosedError."""
        if self.is_closing:
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
        if (found := self.current_id(message)) is not None:
            if self._may_be_queued(message):
                self._drop_queued(lambda queued: queued.message_id == found)
            self._parts.redelivery.add([found], self._nack_delay if delay is None else delay)
            self.arm()

    def repeat(self, taken: Iterable[tuple[MessageId, int]]) -> None:
        """Have messages delivered again now that were taken in these attachments; those of earlier ones come without that."""
        messages = [message for message, attachment in taken if attachment == self.attachment]
        if messages and not self.is_closing:
            self.drop_queued(messages)
            self._parts.redelivery.add(messages, 0.0)
            self.arm()

    def give_back(self, message: PulsarMessage) -> bool:
        """Have a message delivered again now, by any consumer of a Shared subscription; return False if that is not possible.

        It is not without a connection, and for a message of a batch of which others are not acknowledged: they would come again
        as well. A permit for it is granted as soon as the queue has room, before half of the queue is free.
        """
        found = self.current_id(message)
        if found is None or self.connection is None or not self._unacked.is_alone(found):
            return False
        self._parts.redelivery.add([found], 0.0)
        self._given_back += 1
        self.arm()
        return True

    @property
    def is_hurried(self) -> bool:
        """Whether messages that were given back may come again, and wait for permits."""
        return bool(self._given_back or self._parts.permits.hurried)

    def send_given_back(self) -> None:
        """Ask now for the messages that were given back, and for the others whose time has come."""
        everything = self._parts.redelivery.send_due(self.connection)
        count, self._given_back = self._given_back, 0
        if everything:
            self.redeliver_all()
        elif count:
            self._parts.permits.hurried += count
            self._flow()  # after the request: the broker uses permits for messages that come again first

    def redeliver_all(self) -> None:
        """Have everything delivered again that is not acknowledged."""
        self._parts.void()
        self.drop_queue()
        self._parts.redelivery.send_all(self.connection)
        self._on_restart()
        self._flow()

    # --- timers ---------------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Have `_on_timer` called at the earliest time that something is due."""
        at = min(self._acks.due_at, self._nacks.due_at, self._chunks.expires_at)
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = None if at == inf or self.is_closing else self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._nacks.due_at <= now:
            self.send_given_back()
        if self._acks.due_at <= now:
            self._acks.send()
        if self._chunks.expires_at <= now:
            self._chunks.expire(now)
            self._parts.rejections.react_to_chunks()
        self.arm()
