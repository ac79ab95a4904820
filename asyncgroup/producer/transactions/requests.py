"""Build the requests of transactions, and map the error codes of their responses to actions.

The tables follow the response handlers of Java's `TransactionManager` (4.3), with two differences. An unexpected error of
AddPartitionsToTxn, AddOffsetsToTxn or TxnOffsetCommit aborts the transaction instead of ending the producer, since nothing is
committed then. INVALID_PRODUCER_ID_MAPPING, which ends the producer in Java, aborts too: InitProducerId returns a new id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final

from asyncgroup.cluster.requests.actions import RequestAction
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import (
    AsyncGroupError,
    AuthenticationError,
    BrokerError,
    ConnectError,
    ErrorCode,
    NoBrokersError,
    UnsupportedVersionError,
)
from asyncgroup.model import CommittedOffset, GroupOffsets, TopicPartition, by_topic
from asyncgroup.wire import messages as m

__all__ = [
    "ADD_OFFSETS",
    "ADD_PARTITIONS",
    "CONCURRENT_PAUSE",
    "END_TXN",
    "FIND_COORDINATOR",
    "HIGHEST_V1",
    "INIT_PRODUCER_ID",
    "LOWEST_V2",
    "PRODUCE",
    "REQUEST_ACTIONS",
    "TXN_OFFSET_COMMIT",
    "TransactionAction",
    "action_of",
    "add_partitions_request",
    "may_be_processed",
    "most_urgent",
    "txn_offset_commit_request",
]


class TransactionAction(IntEnum):
    """What to do after an error code. Of several in one response, the highest counts."""

    DONE = 0
    """The request succeeded."""
    RETRY = 1
    """Send it again after a backoff."""
    MOVED = 2
    """Look the coordinator up, and send it again after a backoff."""
    ABORT = 3
    """The transaction can only be aborted."""
    REINITIALIZE = 4
    """The transaction can only be aborted, by InitProducerId instead of EndTxn: the coordinator lost the producer."""
    FATAL = 5
    """The producer can only be closed."""
    FENCED = 6
    """A newer epoch exists: the producer can only be closed."""


DONE, RETRY, MOVED, ABORT, REINITIALIZE, FATAL, FENCED = TransactionAction

REQUEST_ACTIONS: Final[Mapping[TransactionAction, RequestAction]] = {
    DONE: RequestAction.DONE,
    RETRY: RequestAction.RETRY,
    MOVED: RequestAction.LOOK_UP,
}
"""What an action means for the request itself; all others end it."""

Table = Mapping[int, TransactionAction]

_COMMON: Final[Table] = {
    ErrorCode.NONE: DONE,
    ErrorCode.NOT_COORDINATOR: MOVED,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: MOVED,
    # the coordinator returned the first code before KIP-588 (Kafka 2.7)
    ErrorCode.INVALID_PRODUCER_EPOCH: FENCED,
    ErrorCode.PRODUCER_FENCED: FENCED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: FATAL,
    ErrorCode.INVALID_TXN_STATE: FATAL,
    ErrorCode.UNSUPPORTED_VERSION: FATAL,
    # it has expired (`transactional.id.expiration.ms`)
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: REINITIALIZE,
    ErrorCode.UNKNOWN_PRODUCER_ID: ABORT,
    ErrorCode.TRANSACTION_ABORTABLE: ABORT,
}

FIND_COORDINATOR: Final[Table] = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: FATAL,
}
"""FindCoordinator, for a transactional id and for a group; GROUP_AUTHORIZATION_FAILED aborts."""

INIT_PRODUCER_ID: Final[Table] = _COMMON
"""InitProducerId. CONCURRENT_TRANSACTIONS is retriable: the coordinator aborts what an earlier producer left open."""

ADD_PARTITIONS: Final[Table] = {
    **_COMMON,
    # another partition of the request failed; it is retried with that one
    ErrorCode.OPERATION_NOT_ATTEMPTED: RETRY,
}
"""AddPartitionsToTxn, by partition."""

ADD_OFFSETS: Final[Table] = _COMMON

TXN_OFFSET_COMMIT: Final[Table] = {
    **_COMMON,
    # its replicas do not answer: as Java, look the coordinator up
    ErrorCode.REQUEST_TIMED_OUT: MOVED,
    # the group fences the member (KIP-447): another member has its partitions
    ErrorCode.FENCED_INSTANCE_ID: ABORT,
    ErrorCode.UNKNOWN_MEMBER_ID: ABORT,
    ErrorCode.ILLEGAL_GENERATION: ABORT,
    ErrorCode.STALE_MEMBER_EPOCH: ABORT,
    # up to version 3 what later versions call TRANSACTION_ABORTABLE
    ErrorCode.INVALID_TXN_STATE: ABORT,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: FATAL,
}
"""TxnOffsetCommit, by partition."""

END_TXN: Final[Table] = _COMMON

PRODUCE: Final[Table] = {
    ErrorCode.INVALID_PRODUCER_EPOCH: FENCED,
    ErrorCode.PRODUCER_FENCED: FENCED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: FATAL,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: REINITIALIZE,
}
"""Failed batches of Produce; every other error that is not retried aborts."""

CONCURRENT_PAUSE: Final = 0.02
"""Seconds of the first pause after CONCURRENT_TRANSACTIONS (as Java): the last transaction is about to end."""

HIGHEST_V1: Final = {
    "InitProducerIdRequest": 5,
    "AddPartitionsToTxnRequest": 3,
    "TxnOffsetCommitRequest": 4,
    "EndTxnRequest": 4,
}
"""Highest versions outside of KIP-890, by message; later ones of AddPartitionsToTxn are for brokers only."""

LOWEST_V2: Final = {"TxnOffsetCommitRequest": 5, "EndTxnRequest": 5}
"""Lowest versions of KIP-890, by message."""


REFUSED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Codes that a coordinator sends before it writes to its log. All others may come after that: NOT_COORDINATOR,
COORDINATOR_NOT_AVAILABLE and COORDINATOR_LOAD_IN_PROGRESS do if the log moves during the request, or if its replicas do not answer
(`TransactionStateManager.appendTransactionToLog`)."""


def may_be_processed(error: AsyncGroupError) -> bool:
    """Return whether a request to a coordinator may have been processed although it has failed with this error."""
    if isinstance(error, BrokerError):
        return error.code not in REFUSED
    # these are raised before a request is sent
    return not isinstance(
        error, ConnectError | NoBrokersError | AuthenticationError | UnsupportedVersionError
    )


def action_of(table: Table, code: int, default: TransactionAction = ABORT) -> TransactionAction:
    """Return the action for a code; for one that is not in the table RETRY if Kafka calls it retriable, else `default`."""
    action = table.get(code)
    if action is not None:
        return action
    return RETRY if is_retriable(code) else default


def most_urgent(table: Table, codes: Iterable[int]) -> tuple[TransactionAction, int]:
    """Return the highest action for the codes of a response, and the code that led to it."""
    return max(((action_of(table, code), code) for code in codes), default=(DONE, int(ErrorCode.NONE)))


def add_partitions_request(
    transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
) -> m.AddPartitionsToTxnRequest:
    """Build AddPartitionsToTxn in the form for clients, up to version 3."""
    topics = [
        m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(topic, numbers)
        for topic, numbers in by_topic(partitions).items()
    ]
    return m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=topics,
    )


def txn_offset_commit_request(
    transactional_id: str,
    producer_id: int,
    epoch: int,
    group: GroupOffsets,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> m.TxnOffsetCommitRequest:
    """Build TxnOffsetCommit for some of the offsets of a group."""
    partition = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
    topics: dict[str, m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = {}
    for tp, (offset, metadata, leader_epoch) in offsets.items():
        if tp.topic not in topics:
            topics[tp.topic] = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(tp.topic)
        topics[tp.topic].partitions.append(partition(tp.partition, offset, leader_epoch, metadata))
    return m.TxnOffsetCommitRequest(
        transactional_id,
        group.group_id,
        producer_id,
        epoch,
        group.generation_id,
        group.member_id,
        group.group_instance_id,
        list(topics.values()),
    )
