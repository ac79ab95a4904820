"""What the coordinator is asked and what it answers, free of wire versions. Durations are seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = [
    "CommitReply",
    "CommitRequest",
    "GroupSnapshot",
    "JoinReply",
    "JoinRequest",
    "JoinResult",
    "JoinedMember",
    "LeaveResult",
    "LeavingMember",
    "MemberSnapshot",
    "OffsetAndMetadata",
    "SyncReply",
    "SyncRequest",
    "SyncResult",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request.

    `protocols` are (name, metadata) pairs, the most wanted first. `require_known_member_id` (version 4 and up,
    KIP-394): a new dynamic member must come back with the id that it is given. `supports_skipping_assignment` (version
    9 and up, KIP-814): a static leader that returns may be told to leave the assignment as it is.
    """

    group_id: str
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout: float = 10.0
    rebalance_timeout: float = 60.0
    protocol_type: str = "consumer"
    protocols: tuple[tuple[str, bytes], ...] = ()
    reason: str | None = None
    require_known_member_id: bool = True
    supports_skipping_assignment: bool = True


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The answer to JoinGroup; `members` is filled for the leader only."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup request; `assignments` maps member ids and is sent by the leader only."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The answer to SyncGroup."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """One member of a LeaveGroup request; an empty `member_id` removes the static member `group_instance_id`."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveResult:
    """The answer to LeaveGroup: an error for the whole request, or one per member in request order."""

    error: ErrorCode = ErrorCode.NONE
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the next one to read.

    `commit_timestamp` says when it was committed, `expire_timestamp` when it is to be forgotten if the client said so
    (OffsetCommit 2-4); ms since 1970, -1: not known. `topic_id` is that of the topic at the time of the commit, zero: not
    known. None of them counts when offsets are compared.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = field(default=-1, compare=False, repr=False)
    expire_timestamp: int = field(default=-1, compare=False, repr=False)
    topic_id: UUID = field(default=UUID(int=0), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """An OffsetCommit request; generation -1 without a member id is a commit from outside the group's
    membership. A TxnOffsetCommit request has the id and the epoch of its producer. `retention` (versions 2-4): seconds
    after which the offsets are to be forgotten, None: what the broker is set to.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    api_version: int = 9
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    producer_id: int | None = None
    producer_epoch: int = -1
    retention: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """A member as a group-metadata record keeps it (`GroupMetadataValue.MemberMetadata`)."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: float
    session_timeout: float
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group as a group-metadata record keeps it (`GroupMetadataValue`): what survives the move of a
    coordinator. `current_state_timestamp`: ms since 1970 at which it entered its state, -1: not known.
    """

    group_id: str
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberSnapshot, ...]
    current_state_timestamp: int = -1


CommitReply = Callable[[ErrorCode | dict[TopicPartition, ErrorCode]], None]
"""Takes one error for all partitions of a commit or a deletion of offsets, or one for each."""

JoinReply = Callable[[JoinResult], None]
"""Takes the answer to a JoinGroup, at once or when the join phase ends."""

SyncReply = Callable[[SyncResult], None]
"""Takes the answer to a SyncGroup, at once or when the leader's assignment arrives."""
