"""Map the error of a transaction to an action: repeat it, use a new producer, or raise the error."""

from __future__ import annotations

from enum import Enum
from typing import Final

from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    DeliveryFailedError,
    ErrorCode,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionOutcomeUnknown,
    TransportError,
)

__all__ = ["FailureAction", "failure_action", "fenced_error", "reasons_of"]


class FailureAction(Enum):
    """What a member does after a transaction that failed."""

    REPEAT = "read the batches again and repeat them in the next transaction"
    NEW_PRODUCER = "end the session; the next one has a new producer and reads from the committed offsets"
    RAISE = "end the session and raise the error: a repetition would fail in the same way"


REPEATED_CODES: Final = frozenset(
    {
        # of the transaction; the coordinator or the producer has aborted it
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        # of the member; the group's heartbeats find out whether it has to join again
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""Codes that are not retriable by themselves, but do not come back in the next transaction."""


def failure_action(error: BaseException) -> FailureAction:
    """Return the action for the error of a transaction."""
    reasons = reasons_of(error)
    if any(isinstance(reason, ProducerFencedError | TransactionOutcomeUnknown) for reason in reasons):
        return FailureAction.NEW_PRODUCER
    return FailureAction.REPEAT if reasons and all(map(_passes, reasons)) else FailureAction.RAISE


def fenced_error(error: BaseException) -> ProducerFencedError | None:
    """Return the reason if the producer was fenced."""
    return next((reason for reason in reasons_of(error) if isinstance(reason, ProducerFencedError)), None)


def reasons_of(error: BaseException) -> list[BaseException]:
    """Return the errors that made a transaction fail; several if several partitions failed."""
    if isinstance(error, TransactionAbortedError) and error.__cause__ is not None:
        return reasons_of(error.__cause__)
    if isinstance(error, CommitFailedError):
        return [reason for each in error.errors.values() for reason in reasons_of(each)]
    if isinstance(error, DeliveryFailedError):
        return [reason for _, each in error.failed.values() for reason in reasons_of(each)]
    return [error]


def _passes(error: BaseException) -> bool:
    """Whether the cause is expected to pass."""
    if isinstance(error, BrokerError):
        return error.retriable or error.code in REPEATED_CODES
    if isinstance(error, TransactionAbortedError | TransportError):
        return True
    return isinstance(error, AsyncGroupError) and error.retriable
