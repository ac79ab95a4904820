"""The pure part of joining: requests, the members' subscriptions, and what each error code asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import AssignmentError, DecodeError, ErrorCode
from asyncgroup.group.assignors import Assignor, MemberSubscription
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m
from asyncgroup.wire.versioned import decode_versioned, encode_versioned

__all__ = [
    "ACTIONS",
    "JoinAction",
    "build_join",
    "build_sync",
    "decode_assignment",
    "encode_assignment",
    "read_members",
]

CONSUMER: Final = "consumer"
SUBSCRIPTION_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 3


class JoinAction(Enum):
    """What is done about the answer to a JoinGroup or SyncGroup."""

    DONE = "joined"
    TAKE_MEMBER_ID = "join again at once under the given member id (KIP-394)"
    NEW_MEMBER = "forget the member id, pause, join again"
    AGAIN = "pause, join again under the same member id"
    MOVED = "look the coordinator up again, pause, join again"
    FAIL = "raise: trying again does not help"


ACTIONS: Final[Mapping[int, JoinAction]] = {
    ErrorCode.NONE: JoinAction.DONE,
    ErrorCode.MEMBER_ID_REQUIRED: JoinAction.TAKE_MEMBER_ID,
    ErrorCode.UNKNOWN_MEMBER_ID: JoinAction.NEW_MEMBER,
    ErrorCode.ILLEGAL_GENERATION: JoinAction.AGAIN,
    ErrorCode.REBALANCE_IN_PROGRESS: JoinAction.AGAIN,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: JoinAction.AGAIN,
    ErrorCode.NOT_COORDINATOR: JoinAction.MOVED,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: JoinAction.MOVED,
    ErrorCode.FENCED_INSTANCE_ID: JoinAction.FAIL,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: JoinAction.FAIL,
    ErrorCode.INVALID_SESSION_TIMEOUT: JoinAction.FAIL,
    ErrorCode.INVALID_GROUP_ID: JoinAction.FAIL,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: JoinAction.FAIL,
    ErrorCode.GROUP_MAX_SIZE_REACHED: JoinAction.FAIL,
    ErrorCode.UNSUPPORTED_VERSION: JoinAction.FAIL,
}
"""By `AbstractCoordinator.JoinGroupResponseHandler` in Kafka and `newSession` in sarama. ILLEGAL_GENERATION keeps the
member id, as Java does: sarama's throwing it away leaves a ghost member behind. Others: retriable ones AGAIN, final
ones FAIL."""


def build_join(
    group_id: str,
    identity: MemberIdentity,
    config: ConsumerConfig,
    assignors: Sequence[Assignor],
    topics: Iterable[str],
    reason: str,
) -> m.JoinGroupRequest:
    """A JoinGroup request that offers every assignor, in order of preference."""
    subscription = m.ConsumerProtocolSubscription(topics=sorted(topics), generation_id=identity.generation_id)
    metadata = encode_versioned(subscription, SUBSCRIPTION_VERSION)
    return m.JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=int(config.session_timeout * 1000),
        rebalance_timeout_ms=int(config.rebalance_timeout * 1000),
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        protocol_type=CONSUMER,
        protocols=[
            m.JoinGroupRequest.JoinGroupRequestProtocol(name=a.name, metadata=metadata) for a in assignors
        ],
        reason=reason,
    )


def build_sync(
    group_id: str, identity: MemberIdentity, protocol: str, plan: Mapping[str, Iterable[TopicPartition]]
) -> m.SyncGroupRequest:
    """A SyncGroup request; the leader's carries the plan, a follower's is empty."""
    return m.SyncGroupRequest(
        group_id=group_id,
        generation_id=identity.generation_id,
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        protocol_type=CONSUMER,
        protocol_name=protocol,
        assignments=[
            m.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member, assignment=encode_assignment(partitions)
            )
            for member, partitions in plan.items()
        ],
    )


def read_members(response: m.JoinGroupResponse) -> list[MemberSubscription]:
    """The subscriptions of a group's members, as the leader gets them. Raises AssignmentError for unreadable ones."""
    found = []
    for member in response.members:
        try:
            said = decode_versioned(m.ConsumerProtocolSubscription, member.metadata)
        except DecodeError as error:
            raise AssignmentError(
                f"member {member.member_id!r} sent an unreadable subscription: {error}"
            ) from error
        owned = tuple(TopicPartition(t.topic, p) for t in said.owned_partitions for p in t.partitions)
        found.append(
            MemberSubscription(
                member.member_id, tuple(said.topics), member.group_instance_id, said.user_data, owned
            )
        )
    return found


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """A member's assignment as it travels in SyncGroup."""
    topics: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(tp.partition)
    entry = m.ConsumerProtocolAssignment.TopicPartition
    assigned = [entry(topic=topic, partitions=numbers) for topic, numbers in topics.items()]
    return encode_versioned(m.ConsumerProtocolAssignment(assigned_partitions=assigned), ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> dict[str, list[int]]:
    """Topic → sorted partitions; no bytes mean no partitions. Raises AssignmentError for unreadable ones."""
    if not data:
        return {}
    try:
        said = decode_versioned(m.ConsumerProtocolAssignment, data)
    except DecodeError as error:
        raise AssignmentError(f"the group's leader sent an unreadable assignment: {error}") from error
    found: dict[str, set[int]] = {}
    for entry in said.assigned_partitions:  # a topic may stand there more than once, for all the format says
        found.setdefault(entry.topic, set()).update(entry.partitions)
    return {topic: sorted(numbers) for topic, numbers in found.items() if numbers}
