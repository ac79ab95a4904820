"""The pure part of committing: the request, and what each error code of a partition asks for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final
from uuid import UUID

from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, TransportError
from asyncgroup.model import TopicPartition
from asyncgroup.offsets.partition_offsets import CommittedOffset, MemberIdentity
from asyncgroup.wire import messages as m

__all__ = [
    "COMMIT_ACTIONS",
    "LAST_NAME_VERSION",
    "REJECTED_CODES",
    "RETENTION_VERSIONS",
    "CommitAction",
    "build_commit",
    "is_coordinator_error",
]

LAST_NAME_VERSION: Final = 9
"""The newest OffsetCommit and OffsetFetch version that name topics by name; later ones use ids (KIP-848)."""

RETENTION_VERSIONS: Final = range(2, 5)
"""The OffsetCommit versions that can say how long a commit is kept (KIP-211 took it out)."""


class CommitAction(Enum):
    """What is done about one partition's answer to an OffsetCommit."""

    COMMITTED = "committed"
    RETRY = "try again after a pause"
    FIND_COORDINATOR = "look the coordinator up again, then try again"
    REFRESH_METADATA = "refresh the metadata, then try again: the topic may be new, made anew, or gone"
    LOST = "the membership is gone: commit nothing more"
    FAIL = "report it; trying again does not help"


COMMIT_ACTIONS: Final[Mapping[int, CommitAction]] = {
    ErrorCode.NONE: CommitAction.COMMITTED,
    ErrorCode.NOT_COORDINATOR: CommitAction.FIND_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: CommitAction.FIND_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: CommitAction.FIND_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: CommitAction.RETRY,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: CommitAction.REFRESH_METADATA,
    ErrorCode.UNKNOWN_TOPIC_ID: CommitAction.REFRESH_METADATA,
    # between join and sync; the marks wait for the new generation, or fail with this code if they cannot
    ErrorCode.REBALANCE_IN_PROGRESS: CommitAction.RETRY,
    # the member's epoch was raised meanwhile (KIP-848): each try goes out under the present one
    ErrorCode.STALE_MEMBER_EPOCH: CommitAction.RETRY,
    ErrorCode.UNKNOWN_MEMBER_ID: CommitAction.LOST,
    ErrorCode.ILLEGAL_GENERATION: CommitAction.LOST,
    ErrorCode.FENCED_INSTANCE_ID: CommitAction.LOST,
    ErrorCode.FENCED_MEMBER_EPOCH: CommitAction.LOST,
    # the coordinator has forgotten the whole group, and us with it
    ErrorCode.GROUP_ID_NOT_FOUND: CommitAction.LOST,
}
"""By `ConsumerCoordinator.OffsetCommitResponseHandler` and `CommitRequestManager` in Kafka; what is not listed is FAIL."""

REJECTED_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    }
)
"""Refusals that only another mark can change: automatic commits report them once a mark, not once an interval."""


COORDINATOR_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors that say nothing of the partitions: the coordinator is away, or not ready."""


def is_coordinator_error(error: AsyncGroupError) -> bool:
    """Whether a commit failed only because the coordinator was not there: the same commit will succeed later."""
    return isinstance(error, TransportError) or (
        isinstance(error, BrokerError) and error.code in COORDINATOR_ERRORS
    )


def build_commit(
    version: int,
    group_id: str,
    identity: MemberIdentity,
    offsets: Mapping[TopicPartition, CommittedOffset],
    ids: Mapping[TopicPartition, UUID],
    retention: float | None = None,
) -> m.OffsetCommitRequest:
    """The request that commits `offsets` in the name of `identity`; `retention` counts seconds.

    `ids` holds the topics' ids, needed from version 10 on.
    """
    by_id = version > LAST_NAME_VERSION
    topics: dict[tuple[str, UUID], m.OffsetCommitRequest.OffsetCommitRequestTopic] = {}
    for tp, committed in sorted(offsets.items()):
        key = (tp.topic, ids[tp] if by_id else m.NO_UUID)
        if key not in topics:
            topics[key] = m.OffsetCommitRequest.OffsetCommitRequestTopic(*key)
        topics[key].partitions.append(
            m.OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return m.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=identity.generation_id,
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        retention_time_ms=-1 if retention is None else round(retention * 1000),
        topics=list(topics.values()),
    )
