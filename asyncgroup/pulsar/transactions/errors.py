"""Errors of transactions: what has become of one, and what to do; which of them follows from a failure."""

from __future__ import annotations

from typing import ClassVar

from asyncgroup.errors import AsyncGroupError, UsageError
from asyncgroup.lifecycle import copy_error
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.transactions.txn_id import TxnId
from asyncgroup.pulsar.wire.server_errors import ServerError

__all__ = [
    "PulsarTransactionAborted",
    "PulsarTransactionConflict",
    "PulsarTransactionError",
    "PulsarTransactionOutcomeUnknown",
    "PulsarTransactionTimedOut",
    "TransactionsNotEnabled",
    "aborted_by",
    "is_ended",
    "timed_out",
]


class PulsarTransactionError(AsyncGroupError):
    """A transaction has failed. `txn_id` is its id, `__cause__` the reason if there is one."""

    _has_foreign_text: ClassVar[bool] = True

    def __init__(self, txn_id: TxnId | None, text: str) -> None:
        self.txn_id = txn_id
        super().__init__(f"transaction {txn_id}: {text}")


class PulsarTransactionAborted(PulsarTransactionError):
    """The transaction is aborted, or can only be aborted: none of its messages is visible, its acknowledgements do not count.

    The messages that it has acknowledged are delivered again; process them in a new transaction. `__cause__` is the first failure.
    """


class PulsarTransactionConflict(PulsarTransactionAborted):
    """A message was acknowledged before, by another transaction, in this one or without any (TransactionConflict); this one is aborted.

    So another consumer has processed it, or does so at the moment: do not process it again unless it is delivered again.
    """


class PulsarTransactionTimedOut(PulsarTransactionAborted):
    """The transaction was not committed within its timeout, so the coordinator aborts it: begin a new one, with a longer timeout or less work."""


class PulsarTransactionOutcomeUnknown(PulsarTransactionError):
    """The request to commit may have been processed or not: it got no answer, or a later attempt found no such transaction.

    If it was not committed, the messages that it has acknowledged are delivered again, after its timeout at the latest: what is
    delivered again was not committed.
    """


class TransactionsNotEnabled(UsageError):
    """The broker has no transaction coordinator: `transactionCoordinatorEnabled=true` in its configuration enables transactions.

    A cluster also needs `bin/pulsar initialize-transaction-coordinator-metadata` once.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(
            "transactions are not enabled on this broker: set transactionCoordinatorEnabled=true in broker.conf (or standalone.conf)"
            + (f"; it says: {reason}" if reason else "")
        )


def is_ended(error: Exception) -> bool:
    """Whether a coordinator says that there is no such transaction, or that it has ended otherwise."""
    return isinstance(error, PulsarServerError) and error.code in (
        ServerError.INVALID_TXN_STATUS,
        ServerError.TRANSACTION_NOT_FOUND,
    )


def timed_out(txn_id: TxnId | None, timeout: float) -> PulsarTransactionTimedOut:
    """Return the error of a transaction after its timeout."""
    return PulsarTransactionTimedOut(
        txn_id, f"it was not committed within its timeout of {timeout:g} s, and is aborted"
    )


def aborted_by(
    failure: Exception, txn_id: TxnId | None, late: PulsarTransactionTimedOut | None
) -> PulsarTransactionAborted:
    """Return the error of a transaction that has to be aborted after a failure; `late` is given after its timeout."""
    if isinstance(failure, PulsarTransactionAborted):
        return copy_error(failure)
    error: PulsarTransactionAborted
    if isinstance(failure, PulsarServerError) and failure.code == ServerError.TRANSACTION_CONFLICT:
        error = PulsarTransactionConflict(
            txn_id, f"it is aborted, as a message was acknowledged before: {failure}"
        )
    elif is_ended(failure):
        error = late or PulsarTransactionAborted(
            txn_id, f"its coordinator has aborted it, or knows no such transaction: {failure}"
        )
    else:
        error = PulsarTransactionAborted(txn_id, f"it is aborted: {failure}")
    error.__cause__ = failure
    return error
