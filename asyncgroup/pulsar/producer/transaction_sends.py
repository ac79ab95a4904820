"""TransactionSends: messages of a producer that are parts of transactions.

Before its first message to a partition, a transaction has the partition added by its coordinator, which takes a request. The messages
of other callers are not delayed by that. A message of `send_nowait` has room during the request, and is sent after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from asyncgroup.checks import wrong_type
from asyncgroup.errors import ClosedError, UsageError
from asyncgroup.lifecycle import await_shared, copy_error
from asyncgroup.model import MillisClock
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.producer.interceptors import SendPromise
from asyncgroup.pulsar.producer.outgoing import OutgoingMessage, SendArguments, outgoing_message
from asyncgroup.pulsar.producer.partition_producer import PartitionProducer
from asyncgroup.pulsar.send_receiver import SendReceiver
from asyncgroup.pulsar.transactions.operations import TransactionSend
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["TransactionSends"]

Promise: TypeAlias = Callable[[SendArguments, SendReceiver], "SendPromise | None"]
"""Returns what receives the result for interceptors and hooks, and then for this caller; None without any."""


class TransactionSends:
    """The messages of one producer; `partition_of` returns the partition of a message with these arguments."""

    def __init__(
        self,
        topic: TopicName,
        clock: MillisClock,
        promise: Promise,
        partition_of: Callable[[OutgoingMessage, SendArguments], PartitionProducer],
        *,
        base64_keys: bool,
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._promise = promise
        self._partition_of = partition_of
        self._base64_keys = base64_keys
        self._enlisting: set[asyncio.Task[None]] = set()
        self.reserved = 0
        """Messages that wait until the coordinator has added their partition; there is room for them."""

    def __repr__(self) -> str:
        return f"<TransactionSends to {self._topic}>"

    async def offer(
        self,
        core: ClientCore,
        transaction: PulsarTransaction,
        given: SendArguments,
        future: asyncio.Future[MessageId] | None,
    ) -> None:
        """Give a message with these arguments to its partition; `future` gets its result, without one it waits for room only.

        Raises what `PulsarProducer.send` raises before the message is accepted.
        """
        is_awaited = future is not None
        message, partition = self._message(core, transaction, given, future)
        try:
            await await_shared(_enlist(transaction, partition))
            is_written = partition.try_send(message, is_awaited=is_awaited)
            if is_written is None:
                await partition.send_waiting(message, is_awaited=is_awaited)
        except BaseException as error:
            _withdraw(message, error)
            raise
        if transaction.is_ending:
            partition.timers.close_batch()
        if is_written and future is None:
            # as in `enqueue`
            await asyncio.sleep(0)
            await partition.drain()

    def offer_nowait(
        self,
        core: ClientCore,
        transaction: PulsarTransaction,
        given: SendArguments,
        future: asyncio.Future[MessageId],
    ) -> None:
        """As `offer`, without waiting: before the coordinator has added the partition, the message gets room only.

        Raises what `PulsarProducer.send_nowait` raises.
        """
        message, partition = self._message(core, transaction, given, future)
        try:
            enlisted = _enlist(transaction, partition)
            if not enlisted.done():
                self._reserve(transaction, partition, message, enlisted)
            elif partition.try_send(message) is None:
                raise partition.no_room(message)
        except BaseException as error:
            _withdraw(message, error)
            raise

    def _reserve(
        self,
        transaction: PulsarTransaction,
        partition: PartitionProducer,
        message: OutgoingMessage,
        enlisted: asyncio.Task[None],
    ) -> None:
        chunks = partition.try_reserve(message)
        if chunks is None:
            raise partition.no_room(message)
        self.reserved += 1
        self._enlisting.add(enlisted)
        # callers of `offer` that come later continue later, so that the order of messages is kept
        enlisted.add_done_callback(partial(self._send_reserved, transaction, partition, message, chunks))

    def _send_reserved(
        self,
        transaction: PulsarTransaction,
        partition: PartitionProducer,
        message: OutgoingMessage,
        chunks: int,
        enlisted: asyncio.Task[None],
    ) -> None:
        """The coordinator has added the partition, or has not."""
        self.reserved -= 1
        self._enlisting.discard(enlisted)
        failure = ClosedError("the event loop ends") if enlisted.cancelled() else enlisted.exception()
        try:
            if failure is not None:
                partition.release(message, chunks)
                raise copy_error(failure)
            partition.send_reserved(message, chunks)
        except Exception as error:  # noqa: BLE001  the future gets it
            if message.receiver is not None:
                message.receiver.set_exception(error)
            return
        if transaction.is_ending:
            # after the others that have waited, which are in the same batch
            asyncio.get_running_loop().call_soon(partition.timers.close_batch)

    async def wait_enlisted(self, timeout: float | None = None) -> None:
        """Return when the messages that had room before have been given to their partitions, or have failed."""
        if self._enlisting:
            await asyncio.wait(self._enlisting, timeout=timeout)

    def _message(
        self,
        core: ClientCore,
        transaction: PulsarTransaction,
        given: SendArguments,
        future: asyncio.Future[MessageId] | None,
    ) -> tuple[OutgoingMessage, PartitionProducer]:
        """Return a message for whose end the transaction waits, and its partition."""
        self._check(core, transaction)
        send = TransactionSend(transaction.enlisted.operations, future)
        promise: SendPromise | None = None
        try:
            promise = self._promise(given, send)
            if promise is not None:
                given = promise.record[1:]
            message = outgoing_message(*given, self._clock, base64_keys=self._base64_keys)
            message.receiver = promise or send
            message.transaction = transaction.txn_id
            partition = self._partition_of(message, given)
            partition.check_open()
        except BaseException as error:
            send.withdraw()
            if promise is not None:
                promise.refuse(error)
            raise
        return message, partition

    def _check(self, core: ClientCore, transaction: PulsarTransaction) -> None:
        if not isinstance(transaction, PulsarTransaction):
            raise wrong_type(
                "transaction", transaction, "None or a PulsarTransaction, of client.transaction()"
            )
        transaction.check_open(core)
        if not self._topic.is_persistent:
            raise UsageError(
                f"{self._topic} is not persistent: its messages cannot be parts of a transaction"
            )


def _enlist(transaction: PulsarTransaction, partition: PartitionProducer) -> asyncio.Task[None]:
    transaction.enlisted.flush_before_end(partition, partition.timers.close_batch)
    return transaction.enlisted.topic(str(partition.topic))


def _withdraw(message: OutgoingMessage, error: BaseException) -> None:
    """A message was not accepted: its transaction does not wait for it."""
    receiver: object = message.receiver
    if isinstance(receiver, SendPromise):
        receiver.refuse(error)
        receiver = receiver.caller
    if isinstance(receiver, TransactionSend):
        receiver.withdraw()
