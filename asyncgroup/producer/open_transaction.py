"""A transaction that one process leaves open and another one ends."""

from __future__ import annotations

from typing import NamedTuple

from asyncgroup.cluster import Cluster, client_of
from asyncgroup.errors import BrokerError, ErrorCode, TransactionAbortedError, TransactionOutcomeUnknown
from asyncgroup.lifecycle import describe_error
from asyncgroup.producer.transaction_coordinator import TransactionCoordinatorClient
from asyncgroup.producer.transaction_requests import TransactionAction
from asyncgroup.producer.transaction_state import ProducerIdentity

__all__ = ["END_TIMEOUT", "OpenTransaction", "end_transaction"]

END_TIMEOUT = 120.0
"""Seconds for which `end_transaction` repeats its request."""


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
    ProducerFencedError if the transactional id has a newer epoch; TransactionOutcomeUnknown if there was no answer in time,
    or an error after a request to commit without an answer;
    BrokerError for other errors, as TRANSACTIONAL_ID_AUTHORIZATION_FAILED and INVALID_PRODUCER_ID_MAPPING (the
    coordinator does not know the producer, or not any more).
    """
    if not transaction.has_writes:
        return
    name = transaction.transactional_id
    producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
    coordinator = TransactionCoordinatorClient(client_of(cluster), name, timeout)
    answer = await coordinator.end(producer, commit=commit, is_v2=transaction.version >= 2)
    if answer.error is None:
        return
    error = answer.error
    if answer.action is TransactionAction.FENCED:
        error = await coordinator.fenced_error(producer)
        error.__cause__ = answer.error
    if answer.action in (TransactionAction.RETRY, TransactionAction.MOVED) or (
        commit and answer.leaves_commit_unknown
    ):
        raise TransactionOutcomeUnknown(name, describe_error(error), commit=commit) from error
    if commit and isinstance(answer.error, BrokerError) and answer.error.code == ErrorCode.INVALID_TXN_STATE:
        reason = "it was aborted after transaction_timeout, or by another end_transaction"
        raise TransactionAbortedError(name, reason) from answer.error
    raise error
