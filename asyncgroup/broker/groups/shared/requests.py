"""Requests to the group coordinator and their results, independent of wire versions. Durations are in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = [
    "CONSUMER_PROTOCOL",
    "NO_MEMBER",
    "ClientDetails",
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
    "MemberTimeouts",
    "OffsetAndMetadata",
    "RequestMember",
    "SyncReply",
    "SyncRequest",
    "SyncResult",
]


CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of groups of consumers, by either protocol."""


class ClientDetails(NamedTuple):
    """The client of a member, by the header of its request, and the host that it connects from."""

    id: str = ""
    host: str = ""


class MemberTimeouts(NamedTuple):
    """The timeouts that a member has asked for, in seconds."""

    rebalance: float = 60.0
    session: float = 10.0


class RequestMember(NamedTuple):
    """The member that a request names as its sender."""

    id: str = ""
    generation_id: int = -1
    """The member epoch in a group with the consumer protocol. -1 without a member id: no member sends the request."""
    instance_id: str | None = None


NO_MEMBER: Final = RequestMember()
_NO_DETAILS: Final = ClientDetails()
_DEFAULT_TIMEOUTS: Final = MemberTimeouts()


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request."""

    group_id: str
    member_id: str = ""
    group_instance_id: str | None = None
    client: ClientDetails = _NO_DETAILS
    timeouts: MemberTimeouts = _DEFAULT_TIMEOUTS
    protocol_type: str = "consumer"
    protocols: tuple[tuple[str, bytes], ...] = ()
    """(name, metadata) pairs in the member's order of preference."""
    reason: str | None = None
    require_known_member_id: bool = True
    """Version 4 and up: a new dynamic member gets an id and must rejoin with it (KIP-394)."""
    supports_skipping_assignment: bool = True
    """Version 9 and up: the response may ask a rejoining static leader to skip the assignment (KIP-814)."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The result of JoinGroup; `members` is set for the leader only."""

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
    """A SyncGroup request; `assignments`, by member id, is sent by the leader only."""

    group_id: str
    member: RequestMember
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The result of SyncGroup."""

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
    """The result of LeaveGroup: an error for the whole request, or one per member in request order."""

    error: ErrorCode = ErrorCode.NONE
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset. Timestamps and topic id are ignored in comparisons."""

    offset: int
    """The next offset to read."""
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = field(default=-1, compare=False, repr=False)
    """ms since 1970, -1 if unknown."""
    expire_timestamp: int = field(default=-1, compare=False, repr=False)
    """When the offset expires, if the client set a retention (OffsetCommit 2-4); ms since 1970, -1 if not set."""
    topic_id: UUID = field(default=UUID(int=0), compare=False, repr=False)
    """The id of the topic at the time of the commit, zero if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """An OffsetCommit or TxnOffsetCommit request."""

    group_id: str
    member: RequestMember = NO_MEMBER
    """Without id and generation: the commit comes from an admin client, or a consumer with manual assignment."""
    api_version: int = 9
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    producer_id: int | None = None
    """Set in TxnOffsetCommit only, like `producer_epoch`."""
    producer_epoch: int = -1
    retention: float | None = None
    """Seconds until the offsets expire (OffsetCommit 2-4); None: the broker's `offsets.retention.minutes` applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """A member as stored in a group metadata record (`GroupMetadataValue.MemberMetadata`)."""

    member_id: str
    group_instance_id: str | None
    client: ClientDetails
    timeouts: MemberTimeouts
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group as stored in a group metadata record (`GroupMetadataValue`): what a new coordinator loads."""

    group_id: str
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberSnapshot, ...]
    current_state_timestamp: int = -1
    """When the group entered its state, in ms since 1970; -1 if unknown."""


CommitReply = Callable[[ErrorCode | dict[TopicPartition, ErrorCode]], None]
"""Called with one error for all partitions of an offset commit or deletion, or with one error for each."""

JoinReply = Callable[[JoinResult], None]
"""Called with the result of a JoinGroup, at once or at the end of the join phase."""

SyncReply = Callable[[SyncResult], None]
"""Called with the result of a SyncGroup, at once or when the leader's assignment is stored."""
