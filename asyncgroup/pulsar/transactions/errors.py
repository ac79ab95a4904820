"""Errors of transactions: what has become of one, and what to do."""

from __future__ import annotations

from typing import ClassVar

from asyncgroup.errors import AsyncGroupError, UsageError
from asyncgroup.pulsar.transactions.txn_id import TxnId

__all__ = [
    "PulsarTransactionAborted",
    "PulsarTransactionConflict",
    "PulsarTransactionError",
    "PulsarTransactionOutcomeUnknown",
    "PulsarTransactionTimedOut",
    "TransactionsNotEnabled",
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
    """A message was acknowledged before, by another transaction or without one (TransactionConflict); this one is aborted.

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
