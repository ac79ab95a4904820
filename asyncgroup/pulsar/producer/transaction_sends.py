"""TransactionSends: messages of a producer that are parts of transactions.

Before its first message to a partition, a transaction has the partition added by its coordinator, which takes a request. The messages
of other callers are not delayed by that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from asyncgroup.checks import wrong_type
from asyncgroup.errors import UsageError
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
        self._check(core, transaction)
        send = TransactionSend(transaction.operations, future)
        promise: SendPromise | None = None
        try:
            promise = self._promise(given, send)
            if promise is not None:
                given = promise.record[1:]
            message = outgoing_message(*given, self._clock, base64_keys=self._base64_keys)
            message.receiver = promise or send
            message.transaction = transaction.txn_id
            partition = self._partition_of(message, given)
            is_written = await self._accept(transaction, partition, message, is_awaited=future is not None)
        except BaseException as error:
            send.withdraw()
            if promise is not None:
                promise.refuse(error)
            raise
        if is_written and future is None:
            # as in `enqueue`
            await asyncio.sleep(0)
            await partition.drain()

    async def _accept(
        self,
        transaction: PulsarTransaction,
        partition: PartitionProducer,
        message: OutgoingMessage,
        *,
        is_awaited: bool,
    ) -> bool:
        partition.check_open()
        transaction.join(partition, partition.timers.close_batch)
        await transaction.add_partition(str(partition.topic))
        is_written = partition.try_send(message, is_awaited=is_awaited)
        if is_written is None:
            await partition.send_waiting(message, is_awaited=is_awaited)
        if transaction.is_ending:
            partition.timers.close_batch()
        return bool(is_written)

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
