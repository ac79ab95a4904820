"""TransactionOutput: what a transform function writes with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from asyncgroup.errors import (
    BrokerError,
    DeliveryFailedError,
    TransactionAbortedError,
    TransactionError,
    TransportError,
    UsageError,
)
from asyncgroup.group.shared_transactions import SharedTransaction, SharedTransactions, Ticket
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import Header, RecordMetadata
from asyncgroup.producer import Producer

__all__ = ["TransactionOutput"]

FAILURES: Final = (BrokerError, TransportError, TransactionError, DeliveryFailedError)
"""Errors of a producer that abort the transaction; others are mistakes of the caller, and are raised as they are."""


class TransactionOutput:
    """Writes records in the transaction that also commits the offsets of a batch.

    The methods are those of `Producer`, with the same arguments. It is valid until the transform function returns. When the
    transaction has to be aborted, they raise TransactionAbortedError; the batch is then read again, so the function should
    let that error pass.
    """

    __slots__ = ("_producer", "_state", "_ticket")

    def __init__(self, producer: Producer, state: SharedTransactions, ticket: Ticket) -> None:
        self._producer = producer
        self._state = state
        self._ticket = ticket

    def __repr__(self) -> str:
        return f"<TransactionOutput of {self._ticket.batch!r}: {self._ticket.transaction!r}>"

    async def enqueue(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Write a record, waiting only for buffer memory; the commit waits for the acknowledgement.

        As `Producer.enqueue`: the fastest way to write many records. Raises ConfigError for invalid arguments,
        TransactionAbortedError, UsageError after the function has returned.
        """
        transaction = self._begin_call()
        try:
            await self._producer.enqueue(
                topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
            )
        except FAILURES as error:
            self._fail(error)
            raise
        finally:
            self._state.end_call(transaction)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Write a record and wait until it is acknowledged, as `Producer.send`; it is not committed yet. Raises as `enqueue`."""
        transaction = self._begin_call()
        try:
            return await self._producer.send(
                topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
            )
        except FAILURES as error:
            self._fail(error)
            raise
        finally:
            self._state.end_call(transaction)

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Write a record and return a future, as `Producer.send_nowait`. Raises QueueFull, and as `enqueue`."""
        self._check()
        try:
            future = self._producer.send_nowait(
                topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
            )
        except FAILURES as error:
            self._fail(error)
            raise
        # called before a task that waits for the future: the error is the producer's, also if the function raises it
        future.add_done_callback(self._on_done)
        return future

    def _on_done(self, future: asyncio.Future[RecordMetadata]) -> None:
        if not future.cancelled() and isinstance(error := future.exception(), FAILURES):
            self._fail(error)

    def _begin_call(self) -> SharedTransaction:
        """Check that the transaction is open, and count the call: the next transaction begins after its end.

        Otherwise a call that waits for buffer memory could write its record in the next transaction.
        """
        self._check()
        transaction = self._ticket.transaction
        transaction.calls += 1
        return transaction

    def _check(self) -> None:
        ticket = self._ticket
        if not ticket.is_open:
            raise UsageError(f"{self!r} was used after its function had returned")
        if (failure := ticket.transaction.failure) is not None:
            transactional_id = self._producer.config.transactional_id or ""
            raise TransactionAbortedError(transactional_id, describe_error(failure)) from failure

    def _fail(self, error: BaseException) -> None:
        self._state.fail(self._ticket.transaction, error, by_producer=True)
