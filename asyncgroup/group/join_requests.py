"""The pure part of joining: requests, the members' subscriptions, and what each error code asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import AssignmentError, DecodeError, ErrorCode
from asyncgroup.group.assignors import Assignment, MemberSubscription
from asyncgroup.model import TopicPartition, by_topic
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m
from asyncgroup.wire.versioned import decode_versioned, encode_versioned

__all__ = [
    "JOIN_ACTIONS",
    "JOIN_GRACE",
    "JoinAction",
    "build_join",
    "build_sync",
    "decode_assignment",
    "decode_members",
    "encode_assignment",
]

CONSUMER: Final = "consumer"

JOIN_GRACE: Final = 5.0
"""Seconds beyond `rebalance_timeout` that a JoinGroup may take (`JOIN_GROUP_TIMEOUT_LAPSE` in Java)."""

SUBSCRIPTION_VERSION: Final = 1
"""The lowest version that says everything is used. Java, librdkafka, kafka-python and aiokafka pass over what newer
versions add at the end; sarama before 1.41 refuses it, and with it the whole group's plan."""

GENERATION_VERSION: Final = 2
"""Beside user data: Java's sticky leader weighs claims by the generation that stands here (KIP-792)."""

RACK_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 3


class JoinAction(Enum):
    """What is done about the answer to a JoinGroup or SyncGroup."""

    DONE = "joined"
    REJOIN_WITH_GIVEN_ID = "join again at once under the given member id (KIP-394)"
    REJOIN_AS_NEW_MEMBER = "forget the member id, pause, join again"
    REJOIN = "pause, join again under the same member id"
    FIND_COORDINATOR = "look the coordinator up again, pause, join again"
    FAIL = "raise: trying again does not help"


JOIN_ACTIONS: Final[Mapping[int, JoinAction]] = {
    ErrorCode.NONE: JoinAction.DONE,
    ErrorCode.MEMBER_ID_REQUIRED: JoinAction.REJOIN_WITH_GIVEN_ID,
    ErrorCode.UNKNOWN_MEMBER_ID: JoinAction.REJOIN_AS_NEW_MEMBER,
    ErrorCode.ILLEGAL_GENERATION: JoinAction.REJOIN,
    ErrorCode.REBALANCE_IN_PROGRESS: JoinAction.REJOIN,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: JoinAction.REJOIN,
    ErrorCode.NOT_COORDINATOR: JoinAction.FIND_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: JoinAction.FIND_COORDINATOR,
    ErrorCode.FENCED_INSTANCE_ID: JoinAction.FAIL,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: JoinAction.FAIL,
    ErrorCode.INVALID_SESSION_TIMEOUT: JoinAction.FAIL,
    ErrorCode.INVALID_GROUP_ID: JoinAction.FAIL,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: JoinAction.FAIL,
    ErrorCode.GROUP_MAX_SIZE_REACHED: JoinAction.FAIL,
    ErrorCode.UNSUPPORTED_VERSION: JoinAction.FAIL,
}
"""By `AbstractCoordinator.JoinGroupResponseHandler` in Kafka and `newSession` in sarama. ILLEGAL_GENERATION keeps the
member id, as Java does: sarama's throwing it away leaves a ghost member behind. Others: retriable ones REJOIN, final
ones FAIL."""


def build_join(
    group_id: str,
    identity: MemberIdentity,
    config: ConsumerConfig,
    user_data: Mapping[str, bytes | None],
    topics: Iterable[str],
    reason: str,
) -> m.JoinGroupRequest:
    """A JoinGroup request that offers every assignor that has its place in `user_data`, in order of preference."""
    wanted = sorted(topics)
    return m.JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=int(config.session_timeout * 1000),
        rebalance_timeout_ms=int(config.rebalance_timeout * 1000),
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        protocol_type=CONSUMER,
        protocols=[
            m.JoinGroupRequest.JoinGroupRequestProtocol(
                name=name, metadata=_subscription(wanted, said, identity.generation_id, config.rack_id)
            )
            for name, said in user_data.items()
        ],
        reason=reason,
    )


def _subscription(topics: list[str], user_data: bytes | None, generation_id: int, rack_id: str) -> bytes:
    """What a member says of itself; the rack is for assignors that know racks (KIP-881)."""
    subscription = m.ConsumerProtocolSubscription(
        topics=topics, user_data=user_data, generation_id=generation_id, rack_id=rack_id or None
    )
    version = GENERATION_VERSION if user_data is not None else SUBSCRIPTION_VERSION
    return encode_versioned(subscription, RACK_VERSION if rack_id else version)


def build_sync(
    group_id: str, identity: MemberIdentity, protocol: str, plan: Mapping[str, Assignment]
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
                member_id=member, assignment=encode_assignment(assignment)
            )
            for member, assignment in plan.items()
        ],
    )


def decode_members(response: m.JoinGroupResponse) -> list[MemberSubscription]:
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
                member.member_id,
                tuple(said.topics),
                member.group_instance_id,
                said.user_data,
                owned,
                said.generation_id,
                said.rack_id,
            )
        )
    return found


def encode_assignment(assignment: Assignment) -> bytes:
    """A member's assignment as it travels in SyncGroup."""
    topics = by_topic(sorted(assignment.partitions))
    entry = m.ConsumerProtocolAssignment.TopicPartition
    assigned = [entry(topic=topic, partitions=numbers) for topic, numbers in topics.items()]
    message = m.ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=assignment.user_data)
    return encode_versioned(message, ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> Assignment:
    """Sorted partitions and user data; no bytes mean no partitions. Raises AssignmentError for unreadable ones."""
    if not data:
        return Assignment()
    try:
        said = decode_versioned(m.ConsumerProtocolAssignment, data)
    except DecodeError as error:
        raise AssignmentError(f"the group's leader sent an unreadable assignment: {error}") from error
    # a topic may stand there more than once, for all the format says
    found = {
        TopicPartition(entry.topic, number)
        for entry in said.assigned_partitions
        for number in entry.partitions
    }
    return Assignment(tuple(sorted(found)), said.user_data)
