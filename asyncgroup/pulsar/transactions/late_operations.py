"""LateOperations: ends messages and acknowledgements that reach a broker after the end of their transaction.

A topic or a subscription that has nothing of a transaction when it ends does not remember the end. It takes what comes late, on a slow
or a lost connection: such acknowledgements keep their messages from all consumers, such messages keep all later ones of their topic
from readers. They end only with a later transaction of the same coordinator that has messages or acknowledgements there as well, if
the coordinator has no older one that is open then (the low water mark of `PendingAckHandleImpl` and `TopicTransactionBuffer` of Pulsar).

So a topic or subscription is asked to abort the transaction once more, as a coordinator does that: as soon as it has ended here, and
after its timeout. Where authorization is enabled only superusers may do that: others wait for later transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.pulsar.transactions.coordinators import PulsarCoordinators
from asyncgroup.pulsar.transactions.enlistments import TransactionEnlistments, TransactionParticipant
from asyncgroup.pulsar.transactions.txn_id import TxnId
from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandEndTxnOnPartition,
    CommandEndTxnOnSubscription,
    SubscriptionOfTxn,
)
from asyncgroup.pulsar.wire.enums import TxnAction
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["LateOperations"]

_log = escaping_logger("asyncgroup.pulsar")

_RETRIES: Final = 10
"""Further attempts at a topic or subscription."""

_NO_LOW_WATER_MARK: Final = (1 << 64) - 1
"""-1 as a broker reads it: other transactions are not concerned."""


class LateOperations:
    """What may come late of one transaction with this timeout in seconds, if anything of it may."""

    def __init__(
        self,
        coordinators: PulsarCoordinators,
        txn_id: TxnId,
        enlisted: TransactionEnlistments,
        timeout: float,
    ) -> None:
        self._coordinators = coordinators
        self._id = txn_id
        self._topics = enlisted.topics
        self._subscriptions = enlisted.subscriptions
        self._is_possible = enlisted.operations.may_be_late
        self._timeout = timeout
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<LateOperations of {self._id}>"

    def start(self) -> None:
        """The transaction has ended, and was not committed."""
        if not self._coordinators.is_closed and self._is_possible and (self._topics or self._subscriptions):
            self._coordinators.open.add(self)
            self._task = start_task(self._run(), name=f"late operations of transaction {self._id}")

    async def close(self) -> None:
        """End nothing more: its client closes."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def _run(self) -> None:
        places = [(topic, self._command_for_topic(topic), ()) for topic in self._topics]
        subscriptions = (
            (topic, self._command_for_subscription(topic, name), participants)
            for (topic, name), participants in self._subscriptions.items()
        )
        try:
            # each by itself: a topic without a broker holds up no other
            ended = await asyncio.gather(
                *(self._end_twice(*place) for place in (*places, *subscriptions)), return_exceptions=True
            )
        finally:
            self._coordinators.open.discard(self)
        for error in ended:
            if isinstance(error, AsyncGroupError):
                _log.warning(
                    "transaction %s: what reaches a broker after its end may wait there for another transaction: %s",
                    self._id,
                    error,
                )
                break
            if error is not None:
                raise error

    async def _end_twice(
        self, topic: str, command: Callable[[int], Command], participants: Sequence[TransactionParticipant]
    ) -> None:
        await self._end(topic, command, participants)
        await asyncio.sleep(self._timeout)
        await self._end(topic, command, participants)

    def _command_for_topic(self, topic: str) -> Callable[[int], Command]:
        most, least = self._id
        return lambda number: CommandEndTxnOnPartition(
            request_id=number,
            txnid_most_bits=most,
            txnid_least_bits=least,
            topic=topic,
            txn_action=TxnAction.ABORT,
            txnid_least_bits_of_low_watermark=_NO_LOW_WATER_MARK,
        )

    def _command_for_subscription(self, topic: str, subscription: str) -> Callable[[int], Command]:
        most, least = self._id
        return lambda number: CommandEndTxnOnSubscription(
            request_id=number,
            txnid_most_bits=most,
            txnid_least_bits=least,
            subscription=SubscriptionOfTxn(topic=topic, subscription=subscription),
            txn_action=TxnAction.ABORT,
            txnid_least_bits_of_low_watermark=_NO_LOW_WATER_MARK,
        )

    async def _end(
        self, topic: str, command: Callable[[int], Command], participants: Sequence[TransactionParticipant]
    ) -> None:
        """End what is there, at the broker of a topic. Raises why that was not possible."""
        core = self._coordinators.core
        retry = RetryLoop(core.new_backoff(), retries=_RETRIES)
        while True:
            try:
                connection = await core.connection_to(TopicName.parse(topic))
                for participant in participants:
                    participant.late_abort_begins()
                try:
                    await connection.request(
                        f"{topic}: abort of transaction {self._id}",
                        command,
                        timeout=core.config.operation_timeout,
                    )
                finally:
                    for participant in participants:
                        participant.late_abort_ends()
            except AsyncGroupError as error:
                if not error.retriable:
                    raise
                await retry.pause(error)
            else:
                return
