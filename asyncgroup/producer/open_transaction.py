"""A transaction that one process leaves open and another one ends."""

from __future__ import annotations

from typing import Final, NamedTuple

from asyncgroup.checks import DURATION, FLAG, timedelta_hint, wrong_type
from asyncgroup.cluster import Cluster
from asyncgroup.errors import (
    AsyncGroupError,
    ClosedError,
    ConfigError,
    ErrorCode,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionOutcomeUnknown,
)
from asyncgroup.lifecycle import describe_error
from asyncgroup.producer.transactions.coordinator import TransactionCoordinatorClient, code_of
from asyncgroup.producer.transactions.requests import TransactionAction
from asyncgroup.producer.transactions.state import ProducerIdentity

__all__ = ["END_TIMEOUT", "OpenTransaction", "end_transaction"]

END_TIMEOUT = 120.0
"""Seconds for which `end_transaction` repeats its request."""

ABORTED_STATES: Final = ("PrepareEpochFence", "PrepareAbort", "CompleteAbort")
"""States of a transaction that the coordinator aborts."""


class OpenTransaction(NamedTuple):
    """A transaction that a producer left open (`Producer.detach_transaction`): a plain value that can be pickled.

    All its records are acknowledged. It stays open until `end_transaction`, until another producer with the same
    transactional id is started, or until the coordinator aborts it after `transaction_timeout`.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int
    """2 with KIP-890, else 1."""
    has_writes: bool = True
    """Whether there is something to end: an empty transaction is unknown to the coordinator."""


async def end_transaction(
    cluster: Cluster, transaction: OpenTransaction, *, commit: bool, timeout: float = END_TIMEOUT
) -> None:
    """Commit or abort a transaction that a producer left open, perhaps in another process. `cluster` must be open.

    May be repeated with the same outcome after a failure or a lost response, as long as no later transaction of the same
    transactional id has begun. `timeout` is in seconds.

    Raises TransactionAbortedError if a transaction to commit was aborted, by its timeout or by another caller;
    ProducerFencedError if a newer producer has the transactional id; TransactionOutcomeUnknown if there was no answer in
    time, or if a request to commit has failed, but may have been processed;
    BrokerError for other errors, as TRANSACTIONAL_ID_AUTHORIZATION_FAILED and INVALID_PRODUCER_ID_MAPPING (the
    coordinator does not know the producer, or not any more). Before anything is sent: ConfigError for an argument of another type,
    ClosedError if `cluster` is not open.
    """
    _check_arguments(cluster, transaction, commit, timeout)
    if not transaction.has_writes:
        return
    if not cluster.is_open:
        raise ClosedError(f"{cluster!r} is not open: nothing was sent")
    name = transaction.transactional_id
    producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
    coordinator = TransactionCoordinatorClient(cluster._inner, name, timeout)
    answer = await coordinator.end(producer, commit=commit, is_v2=transaction.version >= 2)
    if answer.error is None:
        return
    error: AsyncGroupError = answer.error
    was_aborted = code_of(error) == ErrorCode.INVALID_TXN_STATE
    if answer.action is TransactionAction.FENCED:
        error = fenced = await coordinator.fenced_error(producer)
        error.__cause__ = answer.error
        was_aborted = _is_aborted_by_coordinator(fenced, producer)
    if answer.action in (TransactionAction.RETRY, TransactionAction.MOVED) or (
        commit and answer.leaves_commit_unknown
    ):
        raise TransactionOutcomeUnknown(name, describe_error(error), commit=commit) from error
    if commit and was_aborted:
        reason = "it was aborted after transaction_timeout, or by another end_transaction"
        raise TransactionAbortedError(name, reason) from answer.error
    if answer.action is TransactionAction.FENCED and was_aborted:
        return
    raise error


def _check_arguments(cluster: object, transaction: object, commit: object, timeout: object) -> None:
    """Raise ConfigError for an argument of another type: a `commit` that is a text would commit an abort."""
    if not isinstance(cluster, Cluster):
        raise wrong_type("cluster", cluster, "a Cluster that is open")
    if not isinstance(transaction, OpenTransaction):
        raise wrong_type("transaction", transaction, "an OpenTransaction, as detach_transaction returns it")
    for key, value, (is_allowed, allowed) in (("commit", commit, FLAG), ("timeout", timeout, DURATION)):
        if not is_allowed(value):
            raise ConfigError(key, value, allowed + timedelta_hint(value, allowed))


def _is_aborted_by_coordinator(fenced: ProducerFencedError, producer: ProducerIdentity) -> bool:
    """Whether the coordinator has aborted the transaction under the next epoch, and no newer producer has begun.

    Before KIP-890 it does not say after the transaction timeout that there is no such transaction, but that the epoch is old.
    """
    next_producer = ProducerIdentity(producer.producer_id, producer.epoch + 1)
    return fenced.current == next_producer and fenced.state in ABORTED_STATES
