"""MessageSends: from the arguments of a call to the partition that takes the message; `transaction_sends` has those in transactions."""

from __future__ import annotations

import asyncio

from asyncgroup.errors import ClosedError
from asyncgroup.hooks import Hooks
from asyncgroup.model import MillisClock
from asyncgroup.pulsar.producer.interceptors import PulsarInterceptors, PulsarProducerRecord, SendPromise
from asyncgroup.pulsar.producer.outgoing import OutgoingMessage, SendArguments, outgoing_message
from asyncgroup.pulsar.producer.partition_producer import OnLost, PartitionProducer
from asyncgroup.pulsar.producer.topic_partitions import TopicPartitions
from asyncgroup.pulsar.send_receiver import SendReceiver
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["MessageSends", "refuse_message"]


class MessageSends:
    """The messages of one producer; `on_lost` is called for a message with interceptors that has failed without a caller."""

    def __init__(
        self,
        topic: TopicName,
        interceptors: PulsarInterceptors,
        clock: MillisClock,
        partitions: TopicPartitions,
        on_lost: OnLost,
        *,
        base64_keys: bool,
    ) -> None:
        self.is_closed = False
        """Whether it accepts no more messages."""
        self.hooks: Hooks | None = None
        """Those of the client, if they listen to each message."""
        self._topic = topic
        self._name = str(topic)
        self._interceptors = interceptors
        self._has_interceptors = bool(interceptors)
        self._clock = clock
        self._partitions = partitions
        self._on_lost = on_lost
        self._base64_keys = base64_keys

    def __repr__(self) -> str:
        return f"<MessageSends to {self._topic}: {'closed' if self.is_closed else 'not closed'}>"

    def check_open(self) -> None:
        """Raise ClosedError before the producer is entered, and when it is closed."""
        if self.is_closed:
            raise self.closed_error()
        if not self._partitions.producers:
            raise ClosedError(f"producer of {self._topic}: enter it first: `async with`")

    def closed_error(self) -> ClosedError:
        """Return the error for a call after `aclose`."""
        return ClosedError(f"producer of {self._topic}: it is closed")

    def offer(
        self, given: SendArguments, future: asyncio.Future[MessageId] | None, *, is_awaited: bool = False
    ) -> tuple[OutgoingMessage, PartitionProducer, bool | None]:
        """Give a message with these arguments to its partition.

        Return the message, the partition, and what its `try_send` has returned: None if there is no room.
        """
        receiver: SendReceiver | None = future
        promise: SendPromise | None = None
        if self._has_interceptors or self.hooks is not None:
            record = self._interceptors.on_send(PulsarProducerRecord(self._name, *given))
            given = record[1:]
            promise = SendPromise(record, self._interceptors, future, self._on_silent, self.hooks)
            receiver = promise
        try:
            message = outgoing_message(*given, self._clock, base64_keys=self._base64_keys)
            message.receiver = receiver
            partition = self.partition_of(message, given)
            return message, partition, partition.try_send(message, is_awaited=is_awaited)
        except BaseException as error:
            if promise is not None:
                promise.refuse(error)
            raise

    def promise(self, given: SendArguments, caller: SendReceiver) -> SendPromise | None:
        """Return what receives the result for interceptors and hooks, and then for this caller; None without any."""
        if not self._has_interceptors and self.hooks is None:
            return None
        record = self._interceptors.on_send(PulsarProducerRecord(self._name, *given))
        return SendPromise(record, self._interceptors, caller, self._on_silent, self.hooks)

    def partition_of(self, message: OutgoingMessage, given: SendArguments) -> PartitionProducer:
        """Return the partition of a message with these arguments. Raises ClosedError, InvalidRecordError."""
        partitions = self._partitions
        if partitions.count > 1 and not self.is_closed:
            return partitions.route(message, given)
        self.check_open()
        return partitions.producers[0]

    def _on_silent(self, error: Exception) -> None:
        """A message with interceptors has failed, and no caller waits; which partition it was for is in the text."""
        self._on_lost(self._topic, 1, error)


def refuse_message(message: OutgoingMessage, error: BaseException) -> None:
    """End a message that was not accepted, for its interceptors and hooks."""
    if isinstance(message.receiver, SendPromise):
        message.receiver.refuse(error)
