"""Acknowledgements of a consumer that are parts of transactions.

They are sent as soon as the coordinator has added the subscription to the transaction, one command at a time: those that are made
until its answer go together with the next one. A command that got no answer is not sent again, as the broker would refuse it
as a conflict if it has the first one (`PendingAckHandleImpl` of Pulsar): its transaction is aborted.

A broker delivers the messages of an aborted transaction again. In Exclusive and Failover subscriptions it begins again at the first
message that is not acknowledged, without a new epoch. So nothing is delivered there from before the abort until after it, and
then the consumer asks for everything again. In the others the consumer asks for the messages whose acknowledgement was refused
or not sent: for the broker these are still in process here. The exception are those that were refused together because one of
them conflicts, see `_send_alone`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final, Protocol

from asyncgroup.checks import wrong_type
from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.lifecycle import await_shared, mark_retrieved, start_task
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.consumer.acks.pending_acks import MAX_IDS
from asyncgroup.pulsar.consumer.acks.unacked import EntryKey
from asyncgroup.pulsar.consumer.partition.acked_in_transaction import AckedInTransaction, id_of, ids_of
from asyncgroup.pulsar.consumer.partition.consumer_parts import ConsumerParts
from asyncgroup.pulsar.consumer.partition.message_outcomes import MessageOutcomes
from asyncgroup.pulsar.consumer.partition.position import SubscriptionPosition
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.transactions.errors import PulsarTransactionConflict
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction
from asyncgroup.pulsar.wire.ack_set import full_set, indexes_of
from asyncgroup.pulsar.wire.commands import CommandAck, MessageIdData
from asyncgroup.pulsar.wire.enums import AckType
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["ConsumerTransactions", "TransactionalConsumer"]

_CONFLICT: Final = ServerError.TRANSACTION_CONFLICT


class TransactionalConsumer(Protocol):
    """The consumer of one partition, as the acknowledgements in its transactions see it."""

    id: int
    name: str
    topic: TopicName
    subscription: str
    outcomes: MessageOutcomes
    position: SubscriptionPosition

    async def attached_connection(self, seconds: float) -> PulsarConnection:
        """Return the connection at which it is registered. Raises RequestTimedOut, and why it has ended."""
        ...


class ConsumerTransactions:
    """The transactions in which one consumer acknowledges."""

    def __init__(
        self, core: ClientCore, consumer: TransactionalConsumer, parts: ConsumerParts, *, is_durable: bool
    ) -> None:
        self._core = core
        self._consumer = consumer
        self._parts = parts
        self._is_durable = is_durable
        self._open: dict[PulsarTransaction, _TransactionAcks] = {}
        self._aborts = 0  # that are under way
        self._is_held = False  # nothing is delivered until they have ended

    def __repr__(self) -> str:
        return f"<ConsumerTransactions of {self._consumer.name}: {len(self._open)} open>"

    def ack(
        self, transaction: PulsarTransaction, message: PulsarMessage | MessageId, *, cumulative: bool = False
    ) -> None:
        """Acknowledge a message, or all up to it, when the transaction is committed.

        Raises as `PulsarTransaction.check_open`; PulsarTransactionConflict for a message that it has acknowledged before; UsageError for a
        message of before the last seek, and where transactions or cumulative acknowledgements are not possible; ConfigError for the id of a message in a batch without the batch's size.
        """
        self._check(transaction)
        outcomes = self._consumer.outcomes
        if cumulative:
            outcomes.check_cumulative()
        found = outcomes.current_id(message)
        if found is None:
            raise UsageError(
                f"{self._consumer.name}: {message} was received before a seek, so it is no part of a transaction"
            )
        size = found.batch_size if found.batch_index >= 0 else 0
        if size is None:
            raise ConfigError(
                "message",
                str(found),
                "a message, or its message_id: a parsed id of a batch has no batch_size",
            )
        attachment = message.attachment if isinstance(message, PulsarMessage) else outcomes.attachment
        acks = self._of(transaction)
        acks.add(found, size, attachment, cumulative=cumulative)
        if outcomes.settle_in_transaction(message, found, cumulative=cumulative):
            acks.dropped_copy(found)

    def _check(self, transaction: PulsarTransaction) -> None:
        if not isinstance(transaction, PulsarTransaction):
            raise wrong_type(
                "transaction", transaction, "None or a PulsarTransaction, of client.transaction()"
            )
        transaction.check_open(self._core)
        consumer = self._consumer
        if not consumer.topic.is_persistent:
            raise UsageError(f"{consumer.name}: transactions need a persistent topic")
        if not self._is_durable:
            raise UsageError(f"{consumer.name}: transactions need a durable subscription")

    def _of(self, transaction: PulsarTransaction) -> _TransactionAcks:
        acks = self._open.get(transaction)
        if acks is None:
            acks = self._open[transaction] = _TransactionAcks(
                self._core, transaction, self._consumer, self._parts, self
            )
            consumer = self._consumer
            transaction.enlisted.add_participant(str(consumer.topic), consumer.subscription, acks)
        return acks

    def begin_abort(self) -> None:
        """The broker is going to begin again at the first message that is not acknowledged: deliver nothing until `end_abort`."""
        self._aborts += 1
        if not self._consumer.position.is_seeking and not self._consumer.outcomes.is_closing:
            self._is_held = True
            self._consumer.position.begin_seek()

    def end_abort(self) -> None:
        """It has done that: ask for everything again."""
        self._aborts -= 1
        if self._is_held and not self._aborts:
            self._is_held = False
            self._consumer.position.give_up_seek()

    def forget(self, transaction: PulsarTransaction) -> None:
        """The transaction has ended."""
        self._open.pop(transaction, None)

    async def flush(self) -> None:
        """Return when all are answered, or have failed."""
        waiting = [acks.task for acks in self._open.values() if acks.task is not None]
        if waiting:
            await asyncio.wait(waiting)


class _TransactionAcks:
    """The acknowledgements of one transaction: a TransactionParticipant."""

    def __init__(
        self,
        core: ClientCore,
        transaction: PulsarTransaction,
        consumer: TransactionalConsumer,
        parts: ConsumerParts,
        of_consumer: ConsumerTransactions,
    ) -> None:
        self._core = core
        self._transaction = transaction
        self._consumer = consumer
        self._parts = parts
        self._of_consumer = of_consumer
        self._next: dict[EntryKey, AckedInTransaction] = {}  # not sent yet
        self._all: dict[EntryKey, AckedInTransaction] = {}
        self._failed: list[AckedInTransaction] = []  # the broker does not deliver these again at an abort
        self._cumulative: MessageId | None = None
        self._unsent_cumulative: tuple[MessageId, int, int] | None = None
        self._is_aborting = False
        self._has_ended = False  # perhaps before all was answered
        self.task: asyncio.Task[None] | None = None
        """Sends what is not sent yet."""

    def __repr__(self) -> str:
        return f"<_TransactionAcks {self._transaction!r}: {len(self._all)} entries>"

    def add(self, message: MessageId, size: int, attachment: int, *, cumulative: bool) -> None:
        """Add an acknowledgement; `size` is that of its batch, 0 without one; `attachment` that in which it has arrived.

        Raises PulsarTransactionConflict for a message that it has acknowledged before, as brokers do. An abort and a lost connection may
        both bring a message again, and what is made of its copies would count twice.
        """
        before = self._all.get(message[:2])
        if (
            before is not None
            and not cumulative
            and (message.batch_index < 0 or before.messages >> message.batch_index & 1)
        ):
            conflict = PulsarTransactionConflict(
                self._transaction.txn_id, f"it is aborted, as it has acknowledged {message} before"
            )
            self._transaction.enlisted.operations.fail(conflict)
            raise conflict
        if cumulative:
            self._cumulative = message
            self._unsent_cumulative = message, size, attachment
        elif message.batch_index < 0:
            for key in self._parts.unacked.entries_of(message):
                self._all[key] = self._next[key] = AckedInTransaction(0, attachment)
            self._all[message[:2]].ids.append(message)
        else:
            key, bit = message[:2], 1 << message.batch_index
            for found in (self._next, self._all):
                acked = found.setdefault(key, AckedInTransaction(size, attachment))
                acked.messages |= bit
                acked.ids.append(message)
            self._parts.unacked.add_to_transaction(key, bit)
        if self.task is None:
            self._transaction.enlisted.operations.begin()
            self.task = start_task(
                self._send_all(), name=f"{self._consumer.name}: ACK in {self._transaction!r}"
            )
            self.task.add_done_callback(mark_retrieved)

    def dropped_copy(self, message: MessageId) -> None:
        """A newer copy of a message was queued, and is dropped."""
        for found in (self._next, self._all):
            if (acked := found.get(message[:2])) is not None:
                acked.copied_in = self._consumer.outcomes.attachment

    async def _send_all(self) -> None:
        failure: Exception | None = None
        try:
            consumer = self._consumer
            enlisted = self._transaction.enlisted
            await await_shared(enlisted.subscription(str(consumer.topic), consumer.subscription))
            while not self._has_ended and (self._next or self._unsent_cumulative is not None):
                await self._send_some()
        except Exception as error:  # noqa: BLE001  without the acknowledgement it cannot be committed
            failure = error
        except asyncio.CancelledError:
            failure = ClosedError(f"{self._consumer.name}: its event loop ends")
            raise
        finally:
            self._give_up()
            self.task = None
            self._transaction.enlisted.operations.end(failure)

    async def _send_some(self) -> None:
        self._parts.acks.send()  # ordinary ones of before, so that the broker finds a conflict with them
        outcomes = self._consumer.outcomes
        cumulative, self._unsent_cumulative = self._unsent_cumulative, None
        if cumulative is not None:
            message, size, attachment = cumulative
            unacked = full_set(size) & ~full_set(message.batch_index + 1) if size else 0
            ids = [id_of(message[:2], unacked, size)]

            def accepted() -> None:
                if attachment != outcomes.attachment:
                    outcomes.drop_queued_up_to(message)

            await self._request(AckType.CUMULATIVE, ids, accepted)
            return
        sent = {key: self._next.pop(key) for key in list(islice(self._next, MAX_IDS))}
        try:
            await self._request(AckType.INDIVIDUAL, list(ids_of(sent)), partial(self._accepted, sent))
        except BaseException as error:
            is_shared = not outcomes.kind.in_order
            if is_shared and isinstance(error, PulsarServerError) and error.code == _CONFLICT:
                for key, acked in sent.items():  # the broker has taken these from the consumer as well
                    acked.add_all(self._next.pop(key, None))
                self._failed += await self._send_alone(sent)
            else:
                self._failed += sent.values()
            self._release(sent)
            raise

    def _accepted(self, entries: dict[EntryKey, AckedInTransaction]) -> None:
        """The broker has these acknowledgements: what it pushes from now on comes again by an abort, perhaps of the coordinator alone."""
        self._release(entries)
        outcomes = self._consumer.outcomes
        # the copies that the broker has pushed before it had their acknowledgement
        late = (acked for acked in entries.values() if acked.attachment != outcomes.attachment)
        outcomes.drop_queued(each for acked in late for each in acked.ids)

    async def _send_alone(self, entries: dict[EntryKey, AckedInTransaction]) -> list[AckedInTransaction]:
        """Send one acknowledgement for each message of a command that was refused, as one of them conflicts; return the refused ones.

        A broker has taken all of them from the consumer, and none is in the transaction (`Consumer.individualAckWithTransaction`):
        it would deliver them again only when the topic is loaded again. Those that it accepts now are delivered again at the abort. So are
        the other messages of their batches that are left here, which it has taken as well: they take part in this transaction now.
        """
        parts = [(key, each) for key, acked in entries.items() for each in acked.alone()]
        others = [(key, each) for key, acked in entries.items() for each in self._taken_with(key, acked)]
        answers = await asyncio.gather(
            *(
                self._request(AckType.INDIVIDUAL, list(ids_of({key: each})), None, is_last_chance=True)
                for key, each in (*parts, *others)
            ),
            return_exceptions=True,
        )
        return [each for (_, each), answer in zip(parts, answers, strict=False) if answer is not None]

    def _taken_with(self, key: EntryKey, acked: AckedInTransaction) -> list[AckedInTransaction]:
        """Return the other messages of a batch that are left here, each alone: the broker has taken the whole entry."""
        left = self._parts.unacked.left_in(key) & ~acked.messages if acked.size else 0
        found = []
        for index in indexes_of(left):
            one = AckedInTransaction(acked.size, acked.attachment)
            one.messages = 1 << index
            found.append(one)
        return found

    async def _request(
        self,
        kind: AckType,
        ids: list[MessageIdData],
        on_answer: Callable[[], object] | None,
        *,
        is_last_chance: bool = False,
    ) -> None:
        """Send an acknowledgement; after the timeout only with `is_last_chance`, as it would come after the end."""
        consumer, most, least = self._consumer, *self._transaction.txn_id
        retry = RetryLoop(self._core.new_backoff(), timeout=self._core.config.operation_timeout)
        while True:
            connection = await consumer.attached_connection(retry.left)
            if not is_last_chance:
                self._transaction.check_time()
            try:
                await connection.request(
                    f"{consumer.name}: ACK in transaction {self._transaction.txn_id}",
                    lambda number: CommandAck(
                        consumer_id=consumer.id,
                        ack_type=kind,
                        message_id=ids,
                        txnid_most_bits=most,
                        txnid_least_bits=least,
                        request_id=number,
                    ),
                    timeout=max(retry.left, 0.001),
                    on_answer=on_answer,
                )
            except PulsarServerError as error:
                if error.code != ServerError.SERVICE_NOT_READY:  # this one is not processed
                    raise
                await retry.pause(error)
            else:
                return

    def _release(self, entries: dict[EntryKey, AckedInTransaction]) -> None:
        for key, acked in entries.items():
            if acked.messages:
                self._parts.unacked.release_in_transaction(key, acked.messages)

    def _give_up(self) -> None:
        """Send no more; after an abort ask for what is not in the transaction, as it was not sent or was refused."""
        self._release(self._next)
        self._failed += self._next.values()
        self._next = {}
        if self._has_ended and not self._is_aborting:
            failed, self._failed = self._failed, []
            self._consumer.outcomes.repeat((each, acked.copied_in) for acked in failed for each in acked.ids)

    # --- called by the transaction --------------------------------------------------------------------------------------

    def abort_begins(self) -> None:
        """The broker delivers the messages again."""
        if self._consumer.outcomes.kind.in_order:
            self._is_aborting = True
            self._of_consumer.begin_abort()

    def late_abort_begins(self) -> None:
        """The broker delivers messages again whose acknowledgements have come after the end."""
        if self._consumer.outcomes.kind.in_order:
            self._of_consumer.begin_abort()

    def late_abort_ends(self) -> None:
        """It has been asked to."""
        if self._consumer.outcomes.kind.in_order:
            self._of_consumer.end_abort()

    def ended(self, *, is_committed: bool) -> None:
        """The transaction has ended, or its outcome is not known."""
        self._of_consumer.forget(self._transaction)
        unacked = self._parts.unacked
        for key, acked in self._all.items():
            unacked.end_transaction(key, acked.messages, is_committed=is_committed)
        if is_committed and self._cumulative is not None:
            unacked.ack_cumulative(self._cumulative)
        self._has_ended = True
        if self._is_aborting:
            self._of_consumer.end_abort()
        elif not is_committed:
            self._give_up()
