"""PulsarTransaction: messages and acknowledgements that become visible together, or not at all.

How a transaction ends: it accepts nothing more, open batches are sent, and it waits until the broker has answered all its
messages and acknowledgements. Then END_TXN is sent until it is answered. If one of them has failed, it can only be aborted.

A coordinator aborts a transaction that takes longer than its timeout. The timer here began before the coordinator's, so it knows
that first, and aborts the transaction itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from types import TracebackType
from typing import Final, Self

from asyncgroup.errors import AsyncGroupError, ClosedError, NoTransactionError, UsageError
from asyncgroup.escaping import escaping_logger
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.hooks import TransactionOutcome
from asyncgroup.lifecycle import add_note, start_task, wait_shielded
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.transactions.coordinator import SentRequests
from asyncgroup.pulsar.transactions.coordinators import PulsarCoordinators
from asyncgroup.pulsar.transactions.enlistments import TransactionEnlistments
from asyncgroup.pulsar.transactions.errors import (
    PulsarTransactionAborted,
    PulsarTransactionOutcomeUnknown,
    PulsarTransactionTimedOut,
    aborted_by,
    is_ended,
    timed_out,
)
from asyncgroup.pulsar.transactions.late_operations import LateOperations
from asyncgroup.pulsar.transactions.txn_id import TxnId

__all__ = ["PulsarTransaction", "PulsarTransactionState"]

_log = escaping_logger("asyncgroup.pulsar")

ABORT_LIMIT: Final = 5.0
"""Seconds for the abort of a transaction whose block has raised: without an answer its coordinator aborts it later."""


class PulsarTransactionState(Enum):
    """Where a transaction is (Java's `Transaction.State`)."""

    NOT_BEGUN = "not begun"
    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"
    TIMED_OUT = "timed out"
    """Its coordinator aborts it, if it has not yet."""
    UNKNOWN = "unknown"
    """It may be committed or not (Java's ERROR)."""


_State = PulsarTransactionState


_OUTCOMES: Final[Mapping[PulsarTransactionState, TransactionOutcome]] = {
    _State.COMMITTED: "committed",
    _State.ABORTED: "aborted",
    _State.TIMED_OUT: "timed out",
    _State.UNKNOWN: "unknown",
}


class PulsarTransaction:
    """A transaction, an async context manager: its block commits it at the end, and aborts it if it raises or is cancelled.

        async with client.transaction(timeout=60) as txn:
            await producer.send(b"one dozen", transaction=txn)
            consumer.ack(message, transaction=txn)

    Returned by `PulsarClient.transaction`, once for each transaction. Transactions of a client may be open at the same time. The end of
    the block raises PulsarTransactionAborted if a message or an acknowledgement has failed, with the first failure as its cause;
    PulsarTransactionConflict if a message was acknowledged by another transaction; PulsarTransactionTimedOut;
    PulsarTransactionOutcomeUnknown if the request to commit got no answer.

    A message whose receipt is lost with its connection is sent again only if the broker deduplicates; else the transaction is aborted,
    so that no message is committed twice.
    """

    def __init__(self, coordinators: Callable[[], PulsarCoordinators], timeout: float) -> None:
        self.timeout = timeout
        """Seconds after which its coordinator aborts it."""
        self._coordinators_of = coordinators
        self._coordinators: PulsarCoordinators | None = None
        self._state = _State.NOT_BEGUN
        self._is_beginning = False  # another task has entered it
        self._id: TxnId | None = None
        self._begun_at = 0.0
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._enlisted: TransactionEnlistments | None = None
        self._aborting: asyncio.Task[None] | None = None  # after its timeout
        self._committing: asyncio.Task[None] | None = None  # after all answers
        self._closed: Exception | None = None  # why its client has aborted it

    def __repr__(self) -> str:
        return f"<PulsarTransaction {self._id}: {self._state.value}>"

    @property
    def txn_id(self) -> TxnId:
        """Its id. Raises NoTransactionError before the block."""
        if self._id is None:
            raise NoTransactionError(
                "the transaction has not begun: `async with client.transaction() as txn`"
            )
        return self._id

    @property
    def state(self) -> PulsarTransactionState:
        """Where it is."""
        return self._state

    # --- life -----------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Begin. Raises TransactionsNotEnabled, PulsarServerError, TransportError."""
        if self._state is not _State.NOT_BEGUN or self._is_beginning:
            raise UsageError("a transaction is entered once: begin another one with client.transaction()")
        coordinators = self._coordinators_of()
        loop = coordinators.core.loop
        self._begun_at = loop.time()
        self._is_beginning = True
        try:
            self._id = await coordinators.begin(self.timeout)
        finally:
            self._is_beginning = False
        self._coordinators = coordinators
        self._enlisted = TransactionEnlistments(coordinators, self._id, self._aborted_error)
        self._deadline = self._begun_at + self.timeout
        self._timer = loop.call_at(self._deadline, self._on_deadline)
        self._state = _State.OPEN
        coordinators.open.add(self)
        coordinators.core.hooks.emit("on_transaction_start", self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort after an exception."""
        if error is None and self._closed is not None:
            raise self._aborted_error(self._closed)
        if self._state in (_State.COMMITTED, _State.ABORTED, _State.UNKNOWN):
            return
        if error is None:
            await self.commit()
            return
        await wait_shielded(start_task(self._abort_because(error), name=f"abort of transaction {self._id}"))

    async def commit(self) -> None:
        """Commit it before the end of its block: return when the broker has done that. Raises as the end of the block.

        A caller that is cancelled while messages are not answered aborts it; later it waits for the end.
        """
        if self._state is _State.TIMED_OUT:
            await self._wait_timed_out()
            raise self._timeout_error()
        self._check_begun()
        self._state = _State.COMMITTING
        try:
            await self._wait_answered()
        except BaseException as error:
            await wait_shielded(
                start_task(self._abort_because(error), name=f"abort of transaction {self._id}")
            )
            raise
        if self._state is not _State.COMMITTING:
            raise PulsarTransactionAborted(self._id, "it was aborted before it could be committed")
        self._committing = start_task(self._commit(), name=f"commit of transaction {self._id}")
        try:
            await wait_shielded(self._committing)
        except asyncio.CancelledError as cancelled:
            add_note(cancelled, f"transaction {self._id}: it is {self._state.value}")
            raise

    async def abort(self) -> None:
        """Abort it before the end of its block: return when the broker has done that.

        The messages that it has acknowledged are delivered again. Raises PulsarServerError, TransportError; then its coordinator
        aborts it after its timeout.
        """
        if self._state is _State.TIMED_OUT:
            await self._wait_timed_out()
        if self._state is not _State.ABORTED:
            self._check_begun()
            work = self._abort(self._of.core.config.operation_timeout)
            await wait_shielded(start_task(work, name=f"abort of transaction {self._id}"))

    # --- its end --------------------------------------------------------------------------------------------------------

    async def _wait_answered(self) -> None:
        """Wait until all is answered. Raises why it can only be aborted."""
        self.enlisted.flush()
        operations = self.enlisted.operations
        try:
            async with asyncio.timeout_at(self._deadline):
                await operations.wait()
        except TimeoutError:
            operations.fail(self._timeout_error())
        if operations.failure is not None:
            raise self._aborted_error(operations.failure)

    async def _commit(self) -> None:
        sent = SentRequests()
        try:
            await self._of.end(self.txn_id, commit=True, sent=sent)
        except AsyncGroupError as error:
            failure: AsyncGroupError
            if sent.count > 1 or (sent.count and not is_ended(error)):
                state, failure = _State.UNKNOWN, self._unknown_error(error)
            else:
                state, failure = _State.ABORTED, self._aborted_error(error)
                self.enlisted.operations.may_be_late |= is_ended(error)
            self._end(state, failure)
            raise failure from error
        self._end(_State.COMMITTED)

    async def _abort(
        self, limit: float, cause: BaseException | None = None, *, is_late: bool = False
    ) -> None:
        """Abort within about twice `limit` seconds; `is_late`: after its timeout. Raises why that was not possible."""
        if not is_late:
            self._state = _State.ABORTING
        self.enlisted.flush()
        operations = self.enlisted.operations
        try:
            await self._wait_until_answered(limit)
            self.enlisted.abort_begins()
            await self._of.end(self.txn_id, commit=False, timeout=limit)
        except AsyncGroupError as error:
            operations.may_be_late = True  # the coordinator ends it, or did so before all was answered
            if not is_ended(error):
                raise
        finally:
            self._end(
                _State.TIMED_OUT if is_late else _State.ABORTED, cause or self.enlisted.operations.failure
            )

    async def _wait_until_answered(self, limit: float) -> None:
        """Wait, as nothing would end a message that is stored after the end of its transaction."""
        try:
            async with asyncio.timeout(limit):
                await self.enlisted.operations.wait()
        except TimeoutError:
            self.enlisted.operations.may_be_late = True
            _log.warning(
                "transaction %s is aborted before the broker has answered all its messages", self._id
            )

    async def _abort_because(self, cause: BaseException) -> None:
        """Abort, for a short time only; a failure of that is a note of the cause, which is raised."""
        if self._state is _State.TIMED_OUT and self._aborting is not None:
            await asyncio.wait([self._aborting])
            return
        if self._committing is not None:  # by another task: too late for an abort
            await asyncio.wait([self._committing])
            return
        if self._state in (_State.COMMITTED, _State.ABORTED, _State.UNKNOWN):
            return
        try:
            await self._abort(ABORT_LIMIT, cause)
        except AsyncGroupError as error:
            text = f"transaction {self._id}: it was not aborted, its coordinator does that after {self.timeout:g} s: {error}"
            _log.warning("%s", text)
            add_note(cause, text)

    def _end(self, state: PulsarTransactionState, cause: BaseException | None = None) -> None:
        """It has ended; `cause` is why it was not committed."""
        self._state = state
        if self._timer is not None:
            self._timer.cancel()
        is_aborted = state in (_State.ABORTED, _State.TIMED_OUT)
        late = LateOperations(self._of, self.txn_id, self.enlisted, self.timeout) if is_aborted else None
        self.enlisted.end(is_committed=state is _State.COMMITTED)
        if self not in self._of.open:
            return  # two tasks have aborted it
        self._of.open.discard(self)
        if late is not None:
            late.start()
        core = self._of.core
        seconds = core.loop.time() - self._begun_at
        core.hooks.emit("on_transaction_end", self, _OUTCOMES[state], seconds, cause)

    def _on_deadline(self) -> None:
        """The coordinator aborts it soon, and the broker delivers the messages again: abort it first."""
        if self._state is _State.OPEN:
            self.enlisted.operations.fail(self._timeout_error())
            self._state = _State.TIMED_OUT
            self._aborting = start_task(self._abort_timed_out(), name=f"transaction {self._id}: its timeout")

    async def _abort_timed_out(self) -> None:
        try:
            await self._abort(ABORT_LIMIT, is_late=True)
        except AsyncGroupError as error:
            _log.warning("transaction %s: it has timed out, and was not aborted: %s", self._id, error)

    async def _wait_timed_out(self) -> None:
        if self._aborting is not None and not self._aborting.done():
            await asyncio.wait([self._aborting])

    async def close(self) -> None:
        """Abort it, as its client closes. Its block raises ClosedError then."""
        if self._state is _State.OPEN:
            error = ClosedError(f"transaction {self._id}: its client was closed")
            self._closed = error
            self.enlisted.operations.fail(error)
            await self._abort_because(error)

    # --- errors ---------------------------------------------------------------------------------------------------------

    def _timeout_error(self) -> PulsarTransactionTimedOut:
        return timed_out(self._id, self.timeout)

    def _aborted_error(self, failure: Exception) -> PulsarTransactionAborted:
        is_late = self._coordinators is not None and self._of.core.loop.time() >= self._deadline
        return aborted_by(failure, self._id, self._timeout_error() if is_late else None)

    def _unknown_error(self, error: AsyncGroupError) -> PulsarTransactionOutcomeUnknown:
        return PulsarTransactionOutcomeUnknown(self._id, f"it may be committed or not: {error}")

    # --- its parts: called by producers and consumers -------------------------------------------------------------------

    @property
    def enlisted(self) -> TransactionEnlistments:
        """What takes part in it. Producers and consumers use it."""
        assert self._enlisted is not None
        return self._enlisted

    @property
    def _of(self) -> PulsarCoordinators:
        assert self._coordinators is not None
        return self._coordinators

    def _check_begun(self) -> None:
        if self._state is _State.NOT_BEGUN:
            raise NoTransactionError(
                "the transaction has not begun: `async with client.transaction() as txn`"
            )
        if self._state is not _State.OPEN:
            raise NoTransactionError(
                f"transaction {self._id} has ended ({self._state.value}): begin another one with client.transaction()"
            )

    def check_open(self, core: ClientCore | None = None) -> None:
        """Raise unless it accepts messages and acknowledgements, and is of the client with this core, if one is given.

        Raises NoTransactionError, UsageError, and PulsarTransactionAborted if it can only be aborted.
        """
        if self._state is _State.TIMED_OUT:
            raise self._timeout_error()
        self._check_begun()
        if core is not None and core is not self._of.core:
            raise UsageError(
                f"transaction {self._id} is of another client: producers, consumers and transactions of one PulsarClient go together"
            )
        if self.enlisted.operations.failure is not None:
            raise self._aborted_error(self.enlisted.operations.failure)

    def check_time(self) -> None:
        """Raise PulsarTransactionTimedOut after its timeout: its coordinator may have aborted it."""
        if self._of.core.loop.time() >= self._deadline:
            raise self._timeout_error()

    @property
    def is_ending(self) -> bool:
        """Whether it waits for what is not answered: what is sent now is to be sent at once."""
        return self._state is not _State.OPEN


_ID: Final = "txn.txn_id"
_ACK: Final = "consumer.ack(message, transaction=txn)"

add_foreign_names(
    PulsarTransaction,
    {
        "get_txn_id": _ID,
        "get_txn_id_least_bits": "txn.txn_id.least_bits",
        "get_txn_id_most_bits": "txn.txn_id.most_bits",
        "id": _ID,
        "get_id": _ID,
        "get_state": "txn.state",
        "ack": _ACK,
        "acknowledge": _ACK,
        "send": "await producer.send(value, transaction=txn)",
    },
)
