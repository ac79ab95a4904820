"""The pure part of committing: the request, and what each error code of a partition asks for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from asyncgroup.errors import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.offsets.partition_offsets import CommittedOffset, MemberIdentity
from asyncgroup.wire import messages as m

__all__ = ["ACTIONS", "BY_NAME", "CommitAction", "build_commit"]

BY_NAME: Final = 9
"""The newest OffsetCommit and OffsetFetch version that name topics by name; later ones use ids."""


class CommitAction(Enum):
    """What is done about one partition's answer to an OffsetCommit."""

    CLEAN = "committed"
    RETRY = "try again after a pause"
    MOVED = "look the coordinator up again, then try again"
    LOST = "the membership is gone: commit nothing more"
    FAIL = "report it; trying again does not help"


ACTIONS: Final[Mapping[int, CommitAction]] = {
    ErrorCode.NONE: CommitAction.CLEAN,
    ErrorCode.NOT_COORDINATOR: CommitAction.MOVED,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: CommitAction.MOVED,
    ErrorCode.REQUEST_TIMED_OUT: CommitAction.MOVED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: CommitAction.RETRY,
    # the topic may be too new for this broker, or deleted: a few tries tell
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: CommitAction.RETRY,
    # between join and sync; the marks wait for the new generation, or fail with this code if they cannot
    ErrorCode.REBALANCE_IN_PROGRESS: CommitAction.RETRY,
    ErrorCode.UNKNOWN_MEMBER_ID: CommitAction.LOST,
    ErrorCode.ILLEGAL_GENERATION: CommitAction.LOST,
    ErrorCode.FENCED_INSTANCE_ID: CommitAction.LOST,
    # the coordinator has forgotten the whole group, and us with it
    ErrorCode.GROUP_ID_NOT_FOUND: CommitAction.LOST,
}
"""By `ConsumerCoordinator.OffsetCommitResponseHandler` in Kafka; every code not listed is FAIL."""


def build_commit(
    group_id: str, identity: MemberIdentity, offsets: Mapping[TopicPartition, CommittedOffset]
) -> m.OffsetCommitRequest:
    """The request that commits `offsets` in the name of `identity`."""
    topics: dict[str, m.OffsetCommitRequest.OffsetCommitRequestTopic] = {}
    for tp, committed in sorted(offsets.items()):
        if tp.topic not in topics:
            topics[tp.topic] = m.OffsetCommitRequest.OffsetCommitRequestTopic(name=tp.topic)
        topics[tp.topic].partitions.append(
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
        topics=list(topics.values()),
    )
