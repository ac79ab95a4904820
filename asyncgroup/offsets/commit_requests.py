"""OffsetCommit on the wire: build the request, map error codes to actions, and apply those that concern the membership."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Set as AbstractSet
from enum import Enum
from typing import Final, TypeAlias
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
    "CommittingMember",
    "ConfirmRefusal",
    "broker_codes",
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
    # sorted, so that the partitions of a topic follow each other
    for tp, committed in sorted(offsets.items()):
        wanted = ids[tp] if by_id else m.NO_UUID
        # by identity first: the ids of a topic are mostly the same object
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


ConfirmRefusal: TypeAlias = "Callable[[int | None, float], Awaitable[bool]]"
"""`confirm_refusal(lookup, sent_at)`: check whether an error that ends the membership counts, for a request sent at that loop
time to the coordinator found by that lookup."""


def broker_codes(errors: Iterable[AsyncGroupError]) -> set[int]:
    """Return the error codes of those errors that brokers sent."""
    return {error.code for error in errors if isinstance(error, BrokerError)}


class CommittingMember:
    """The membership that commits depend on; `Committer` describes the arguments.

    Without `on_lost` there is no membership to lose.
    """

    def __init__(
        self,
        identity: Callable[[], MemberIdentity],
        on_lost: Callable[[BrokerError], None] | None,
        confirm_refusal: ConfirmRefusal | None,
        wait_joined: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        self._identity = identity
        self._on_lost = on_lost
        self._confirm_refusal = confirm_refusal
        self._wait_joined = wait_joined
        self.lost: AsyncGroupError | None = None
        """Why the membership was lost, so that nothing more is committed; None while it is not."""

    def __repr__(self) -> str:
        return f"<CommittingMember {self.identity.member_id!r}{'' if self.lost is None else ', lost'}>"

    @property
    def identity(self) -> MemberIdentity:
        """The member with its present generation or epoch."""
        return self._identity()

    def is_outdated(self, sent_under: MemberIdentity, refusals: AbstractSet[int]) -> bool:
        """Return whether a request was refused with these codes under a former generation."""
        is_refused = any(
            code in NEWER_GENERATION_CODES or commit_action(code) is CommitAction.LOST for code in refusals
        )
        return is_refused and sent_under != self.identity

    async def has_joined_again(self, refusals: AbstractSet[int]) -> bool:
        """Return whether the member has a newer generation or epoch than that for which a request was refused."""
        if refusals.isdisjoint(NEWER_GENERATION_CODES) or self._wait_joined is None:
            return False
        return await self._wait_joined()

    async def confirm_loss(
        self, codes: Iterable[int], sent_under: MemberIdentity, lookup: int | None, sent_at: float
    ) -> bool:
        """Return whether one of the error codes ends the membership; `confirm_refusal` is awaited if one of them may.

        A refusal under a former generation does not end it: the commit may have been sent after the group got a new one,
        and before the member had its assignment.
        """
        refused = any(commit_action(code) is CommitAction.LOST for code in codes)
        # a loss that is known already is not asked about again
        if not refused or self._confirm_refusal is None or self.lost is not None:
            return refused
        # the refusal is of a generation that has ended; the next commit is made under the present one
        if sent_under != self.identity:
            return False
        return await self._confirm_refusal(lookup, sent_at)

    def lose(self, error: BrokerError) -> None:
        """Apply a refusal that ends the membership, if there is one."""
        if self.lost is None and self._on_lost is not None:
            self.lost = error
            self._on_lost(error)

    def mark_lost(self, error: AsyncGroupError) -> None:
        """Commit nothing more, as the membership is lost."""
        self.lost = self.lost or error
