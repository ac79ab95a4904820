"""TransactionOutput: writes the output of a transform function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, TypeVar, Unpack

from asyncgroup.errors import (
    BrokerError,
    DeliveryFailedError,
    TransactionAbortedError,
    TransactionError,
    TransportError,
    UsageError,
)
from asyncgroup.group.transactions.shared import SharedTransactions, Ticket
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import RecordMetadata
from asyncgroup.producer import Producer
from asyncgroup.producer.arguments import RecordFields, SendOptions

__all__ = ["TransactionOutput"]

F = TypeVar("F", bound=Callable[..., Any])

FAILURES: Final = (BrokerError, TransportError, TransactionError, DeliveryFailedError)
"""Errors of a producer that abort the transaction. Others, as an InvalidRecordError, are the caller's, and raised as they are."""


def _like(method: Callable[..., object]) -> Callable[[F], F]:
    """Show the signature of a producer's method, whose arguments the decorated one passes on."""

    def decorate(own: F) -> F:
        own.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
        return own

    return decorate


class TransactionOutput:
    """Writes records in the transaction that also commits the offsets of a batch.

    The methods are those of `Producer`, with the same arguments. It is valid until the transform function returns. When the
    transaction has to be aborted, they raise TransactionAbortedError; the batch is then read again, so the function should
    let that error pass.
    """

    __slots__ = ("_calls", "_producer")

    def __init__(self, producer: Producer, state: SharedTransactions, ticket: Ticket) -> None:
        self._producer = producer
        self._calls = _ProducerCalls(state, ticket, producer.config.transactional_id or "")

    def __repr__(self) -> str:
        return f"<TransactionOutput of {self._calls!r}>"

    @_like(Producer.enqueue)
    async def enqueue(self, topic: str, value: bytes | None, **options: Unpack[SendOptions]) -> None:
        """Write a record, waiting only for buffer memory; the commit waits for the acknowledgement.

        As `Producer.enqueue`: the fastest way to write many records. Raises InvalidRecordError,
        TransactionAbortedError, UsageError after the function has returned.
        """
        with self._calls:
            await self._producer.enqueue(topic, value, **options)

    async def enqueue_all(self, records: Iterable[RecordFields]) -> None:
        """Write records as `enqueue` does, with one call: `Producer.enqueue_all`. Raises as `enqueue`."""
        with self._calls:
            await self._producer.enqueue_all(records)

    @_like(Producer.send)
    async def send(self, topic: str, value: bytes | None, **options: Unpack[SendOptions]) -> RecordMetadata:
        """Write a record and wait until it is acknowledged, as `Producer.send`; it is not committed yet. Raises as `enqueue`."""
        with self._calls:
            return await self._producer.send(topic, value, **options)

    @_like(Producer.send_nowait)
    def send_nowait(
        self, topic: str, value: bytes | None, **options: Unpack[SendOptions]
    ) -> asyncio.Future[RecordMetadata]:
        """Write a record and return a future, as `Producer.send_nowait`. Raises QueueFull, and as `enqueue`."""
        with self._calls:
            future = self._producer.send_nowait(topic, value, **options)
        # called before a task that waits for the future: the error is the producer's, also if the function raises it
        future.add_done_callback(self._calls.on_done)
        return future


class _ProducerCalls:
    """The calls of the producer for one batch: each is a `with` block, and several may be open.

    The next transaction begins after their end; otherwise a call that waits for buffer memory could write its record in the
    next one. A failure of the producer aborts the transaction.
    """

    __slots__ = ("_state", "_ticket", "_transactional_id")

    def __init__(self, state: SharedTransactions, ticket: Ticket, transactional_id: str) -> None:
        self._state = state
        self._ticket = ticket
        self._transactional_id = transactional_id

    def __repr__(self) -> str:
        return f"{self._ticket.batch!r}: {self._ticket.transaction!r}"

    def __enter__(self) -> None:
        """Begin a call. Raises UsageError after the transform function, TransactionAbortedError after a failure."""
        ticket = self._ticket
        if not ticket.is_open:
            raise UsageError(f"<TransactionOutput of {self!r}> was used after its function had returned")
        if (failure := ticket.transaction.failure) is not None:
            raise TransactionAbortedError(self._transactional_id, describe_error(failure)) from failure
        ticket.transaction.calls += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fail(error)
        self._state.end_call(self._ticket.transaction)

    def on_done(self, future: asyncio.Future[RecordMetadata]) -> None:
        """The record of `send_nowait` is acknowledged or has failed."""
        if not future.cancelled():
            self._fail(future.exception())

    def _fail(self, error: BaseException | None) -> None:
        if isinstance(error, FAILURES):
            self._state.fail(self._ticket.transaction, error, by_producer=True)
