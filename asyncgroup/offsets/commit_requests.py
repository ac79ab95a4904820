"""OffsetCommit on the wire: build the request, and map error codes to actions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final
from uuid import UUID

from asyncgroup.cluster.requests.offset_versions import LAST_NAME_VERSION
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, TransportError
from asyncgroup.model import TopicPartition
from asyncgroup.offsets.commit_metadata import CommitMetadata, encode_metadata
from asyncgroup.offsets.partition_offsets import CommittedOffset, MemberIdentity
from asyncgroup.wire import messages as m

__all__ = [
    "COMMIT_ACTIONS",
    "LAST_NAME_VERSION",
    "NEWER_GENERATION_CODES",
    "REJECTED_CODES",
    "RETENTION_VERSIONS",
    "CommitAction",
    "build_commit",
    "commit_action",
    "commit_codes",
    "is_coordinator_error",
]

RETENTION_VERSIONS: Final = range(2, 5)
"""The OffsetCommit versions with a retention time (removed by KIP-211)."""


class CommitAction(Enum):
    """What to do about a partition's error code in an OffsetCommit response."""

    COMMITTED = "no error"
    RETRY = "retry after a pause"
    FIND_COORDINATOR = "look up the coordinator, then retry"
    REFRESH_METADATA = "refresh the metadata, then retry: the topic may be new, recreated or deleted"
    LOST = "the membership is lost: commit nothing more"
    FAIL = "report the error; a retry does not help"


COMMIT_ACTIONS: Final[Mapping[int, CommitAction]] = {
    ErrorCode.NONE: CommitAction.COMMITTED,
    ErrorCode.NOT_COORDINATOR: CommitAction.FIND_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: CommitAction.FIND_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: CommitAction.FIND_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: CommitAction.RETRY,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: CommitAction.REFRESH_METADATA,
    ErrorCode.UNKNOWN_TOPIC_ID: CommitAction.REFRESH_METADATA,
    # between JoinGroup and SyncGroup; the marks wait for the new generation, or fail with this code after all retries
    ErrorCode.REBALANCE_IN_PROGRESS: CommitAction.RETRY,
    # the member epoch has increased (KIP-848); each retry uses the current one
    ErrorCode.STALE_MEMBER_EPOCH: CommitAction.RETRY,
    ErrorCode.UNKNOWN_MEMBER_ID: CommitAction.LOST,
    ErrorCode.ILLEGAL_GENERATION: CommitAction.LOST,
    ErrorCode.FENCED_INSTANCE_ID: CommitAction.LOST,
    ErrorCode.FENCED_MEMBER_EPOCH: CommitAction.LOST,
    # the coordinator has no state of the group any more, so the member is unknown as well
    ErrorCode.GROUP_ID_NOT_FOUND: CommitAction.LOST,
}
"""As `ConsumerCoordinator.OffsetCommitResponseHandler` and `CommitRequestManager` in Kafka; other codes are FAIL."""


def commit_action(code: int) -> CommitAction:
    """Return the action for a partition's error code."""
    return COMMIT_ACTIONS.get(code, CommitAction.FAIL)


REJECTED_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    }
)
"""Errors that only another mark can change: automatic commits report them once per mark, not once per interval."""


NEWER_GENERATION_CODES: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH})
"""Errors after which a commit may succeed under the member's next generation or epoch."""

COORDINATOR_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors that concern the coordinator and not the partitions: it has moved, or is not ready."""


def is_coordinator_error(error: AsyncGroupError) -> bool:
    """Return whether a commit failed only because the coordinator is unavailable: a later retry may succeed."""
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
    with_envelopes: bool = False,
) -> m.OffsetCommitRequest:
    """Build the request that commits `offsets` for the member `identity`; `retention` is in seconds.

    `ids` has the partitions' topic ids, which versions from 10 on and envelopes need.
    """
    by_id = version > LAST_NAME_VERSION
    topics: list[m.OffsetCommitRequest.OffsetCommitRequestTopic] = []
    name, topic_id, partitions = "", m.NO_UUID, []
    for tp, committed in sorted(offsets.items()):
        wanted = ids[tp] if by_id else m.NO_UUID
        if tp.topic != name or (wanted is not topic_id and wanted != topic_id):
            name, topic_id = tp.topic, wanted
            topics.append(m.OffsetCommitRequest.OffsetCommitRequestTopic(name, topic_id))
            partitions = topics[-1].partitions
        partitions.append(
            m.OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=encode_metadata(
                    tp, committed.offset, CommitMetadata(committed.metadata, ids[tp])
                )
                if with_envelopes
                else committed.metadata,
            )
        )
    return m.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=identity.generation_id,
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        retention_time_ms=-1 if retention is None else round(retention * 1000),
        topics=topics,
    )


def commit_codes(
    response: m.OffsetCommitResponse, ids: Mapping[TopicPartition, UUID]
) -> dict[TopicPartition, int]:
    """Return each partition's error code; from version 10 on topics are identified by id only."""
    names = {topic_id: tp.topic for tp, topic_id in ids.items() if topic_id != m.NO_UUID}
    return {
        TopicPartition(names.get(topic.topic_id, topic.name), part.partition_index): part.error_code
        for topic in response.topics
        for part in topic.partitions
    }
