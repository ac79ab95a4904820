"""JoinGroup and SyncGroup: what they contain, what the errors of their responses mean, and why a member joins.

`JoinProtocols` has the assignors that a member offers, their user data, and the leader's assignment; the functions
build the requests, encode and decode their contents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from asyncgroup.cluster.coordinators import CoordinatorMoved
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import (
    AssignmentError,
    BrokerError,
    CallerCancelled,
    ClaimReturned,
    DecodeError,
    ErrorCode,
    GroupClosed,
    HandlerFailed,
    MemberLost,
    PartitionsChanged,
    Rebalanced,
    SessionEnd,
    SessionFailed,
    TopicsChanged,
    TransportError,
)
from asyncgroup.group.assignors import (
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    ProvidesUserData,
    RackAware,
    SeesAssignment,
    are_cooperative,
)
from asyncgroup.group.assignors.cooperative import withheld_partitions
from asyncgroup.group.assignors.protocol import check_assignment, check_cooperative
from asyncgroup.group.assignors.racks import PartitionRacks
from asyncgroup.model import TopicPartition, by_topic
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned, encode_versioned

__all__ = [
    "JOIN_ACTIONS",
    "MAX_REASON_LENGTH",
    "JoinAction",
    "JoinProtocols",
    "SyncProtocolChanged",
    "build_join",
    "build_sync",
    "decode_assignment",
    "decode_members",
    "encode_assignment",
    "ends_membership",
    "has_missed_generation",
    "join_action",
    "join_reason",
    "join_refusal",
    "shorten",
]

_log = logging.getLogger("asyncgroup.group")

USER_ERRORS: Final = (Exception, asyncio.CancelledError)
"""What callbacks of an assignor may raise; a CancelledError of theirs would look like a cancellation of the caller."""

CONSUMER: Final = "consumer"

SUBSCRIPTION_VERSION: Final = 1
"""Subscriptions are sent in the lowest version that has all fields in use. Java, librdkafka, kafka-python and aiokafka
ignore fields that newer versions append; sarama before 1.41 rejects them, and with them the whole rebalance."""

GENERATION_VERSION: Final = 2
"""Used with user data or owned partitions: leaders compare the latter by the generation in this field (KIP-792)."""

RACK_VERSION: Final = 3
"""Used with a rack id (KIP-881)."""
ASSIGNMENT_VERSION: Final = 3


class JoinAction(Enum):
    """What to do after the response to a JoinGroup or SyncGroup."""

    REJOIN_WITH_GIVEN_ID = "join again at once with the given member id (KIP-394)"
    REJOIN_AS_NEW_MEMBER = "forget the member id, back off, join again"
    REJOIN = "back off, join again with the same member id"
    FIND_COORDINATOR = "look up the coordinator again, back off, join again"
    FAIL = "raise: not retriable"


JOIN_ACTIONS: Final[Mapping[int, JoinAction]] = {
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
"""As `AbstractCoordinator.JoinGroupResponseHandler` in Kafka and `newSession` in sarama. ILLEGAL_GENERATION keeps the
member id, as in Java; sarama forgets it, and the old member stays in the group until its session times out. Other
codes: REJOIN if they are retriable, else FAIL."""


class SyncProtocolChanged(BrokerError):
    """SyncGroup was refused, as the group does not have the assignor with which JoinGroup was answered.

    A consumer group answers with the member's first assignor. If the member takes the place of the last one with the
    consumer protocol, the group is a classic one by then, with an assignor that all members have.
    """


def join_action(error: BrokerError | TransportError) -> JoinAction:
    """Return the action after a failed attempt."""
    if isinstance(error, (CoordinatorMoved, SyncProtocolChanged)):
        return JoinAction.REJOIN
    # the coordinator may have moved from a broker that does not answer
    if isinstance(error, TransportError):
        return JoinAction.FIND_COORDINATOR
    return JOIN_ACTIONS.get(error.code, JoinAction.REJOIN if error.retriable else JoinAction.FAIL)


def ends_membership(error: BrokerError | TransportError, action: JoinAction) -> bool:
    """Whether a member that joins again has lost its partitions, as the coordinator refuses its id or generation."""
    is_former = isinstance(error, BrokerError) and error.code == ErrorCode.ILLEGAL_GENERATION
    return is_former or action is JoinAction.REJOIN_AS_NEW_MEMBER


def join_refusal(code: int, group_id: str, assignors: Sequence[str]) -> BrokerError:
    """Return the error for a refused JoinGroup of a member with these assignors, with what the code may mean."""
    detail = None
    if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
        detail = (
            f"this member has assignors={tuple(assignors)!r}, and each member of a group must have one that all others have; "
            "or the group is not one of consumers, or has the consumer protocol and brokers that do not convert it "
            "(group.consumer.migration.policy). kafka-consumer-groups --describe --state shows the group's assignor"
        )
    return BrokerError(code, f"join of group {group_id!r}", detail)


def has_missed_generation(member: MemberIdentity, generation_id: int) -> bool:
    """Whether a group may have had a generation in which a static member took no part, before it joins this one.

    Its JoinGroup had not arrived. The coordinator then keeps the member, but with its former subscription, by which it may
    own nothing. (Dynamic members are removed, as `completeClassicGroupJoin` in Kafka's `GroupMetadataManager`.)
    """
    return member.group_instance_id is not None and 0 <= member.generation_id < generation_id - 1


def build_join(
    group_id: str,
    identity: MemberIdentity,
    config: ConsumerConfig,
    user_data: Mapping[str, bytes | None],
    topics: Iterable[str],
    reason: str,
    owned: Iterable[TopicPartition] = (),
) -> m.JoinGroupRequest:
    """Build a JoinGroup request that offers the assignors in `user_data`, by name, in order of preference.

    `owned` are the partitions that the member keeps while it joins, by the cooperative protocol.
    """
    wanted, owned = sorted(topics), sorted(owned)
    return m.JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=int(config.effective_session_timeout * 1000),
        rebalance_timeout_ms=int(config.rebalance_timeout * 1000),
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        protocol_type=CONSUMER,
        protocols=[
            m.JoinGroupRequest.JoinGroupRequestProtocol(
                name=name, metadata=_subscription(wanted, owned, data, identity.generation_id, config.rack_id)
            )
            for name, data in user_data.items()
        ],
        # brokers log it (KIP-800)
        reason=reason,
    )


def _subscription(
    topics: list[str], owned: list[TopicPartition], user_data: bytes | None, generation_id: int, rack_id: str
) -> bytes:
    """Encode a member's subscription; the rack is for rack-aware assignors (KIP-881)."""
    entry = m.ConsumerProtocolSubscription.TopicPartition
    subscription = m.ConsumerProtocolSubscription(
        topics=topics,
        user_data=user_data,
        owned_partitions=[
            entry(topic=topic, partitions=numbers) for topic, numbers in by_topic(owned).items()
        ],
        generation_id=generation_id,
        rack_id=rack_id or None,
    )
    has_generation = user_data is not None or bool(owned)
    version = GENERATION_VERSION if has_generation else SUBSCRIPTION_VERSION
    return encode_versioned(subscription, RACK_VERSION if rack_id else version)


def build_sync(
    group_id: str, identity: MemberIdentity, protocol: str, assignments: Mapping[str, Assignment]
) -> m.SyncGroupRequest:
    """Build a SyncGroup request: with the group's assignments from the leader, without from a follower."""
    return m.SyncGroupRequest(
        group_id=group_id,
        generation_id=identity.generation_id,
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        # brokers compare both with those of the group (KIP-559)
        protocol_type=CONSUMER,
        protocol_name=protocol,
        assignments=[
            m.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member, assignment=encode_assignment(assignment)
            )
            for member, assignment in assignments.items()
        ],
    )


def decode_members(response: m.JoinGroupResponse) -> list[MemberSubscription]:
    """Decode the members' subscriptions in the leader's JoinGroup response. Raises AssignmentError for invalid ones."""
    found = []
    for member in response.members:
        try:
            decoded = decode_versioned(m.ConsumerProtocolSubscription, member.metadata)
        except DecodeError as error:
            raise AssignmentError(
                f"member {member.member_id!r} sent an invalid subscription: {error}"
            ) from error
        owned = tuple(TopicPartition(t.topic, p) for t in decoded.owned_partitions for p in t.partitions)
        found.append(
            MemberSubscription(
                member.member_id,
                tuple(decoded.topics),
                member.group_instance_id,
                decoded.user_data,
                owned,
                decoded.generation_id,
                decoded.rack_id,
            )
        )
    return found


def encode_assignment(assignment: Assignment) -> bytes:
    """Encode a member's assignment for SyncGroup."""
    topics = by_topic(sorted(assignment.partitions))
    entry = m.ConsumerProtocolAssignment.TopicPartition
    assigned = [entry(topic=topic, partitions=numbers) for topic, numbers in topics.items()]
    message = m.ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=assignment.user_data)
    return encode_versioned(message, ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment, with sorted partitions; no bytes mean no partitions. Raises AssignmentError if invalid."""
    if not data:
        return Assignment()
    try:
        decoded = decode_versioned(m.ConsumerProtocolAssignment, data)
    except DecodeError as error:
        raise AssignmentError(f"the group leader sent an invalid assignment: {error}") from error
    # the format allows a topic to occur more than once
    found = {
        TopicPartition(entry.topic, number)
        for entry in decoded.assigned_partitions
        for number in entry.partitions
    }
    return Assignment(tuple(sorted(found)), decoded.user_data)


# --- reasons ----------------------------------------------------------------------------------------------------------

MAX_REASON_LENGTH: Final = 255
"""Most characters of a reason, as in Java (`JoinGroupRequest.maybeTruncateReason`)."""

_JOINING: Final = "joining"
_WHY: Final[Mapping[type[SessionEnd], str]] = {
    Rebalanced: "rebalance: a member joined, left or changed its topics",
    PartitionsChanged: "topics changed: {}",
    TopicsChanged: "topics changed: {}",
    MemberLost: "membership lost: {}",
    ClaimReturned: "claim returned: {}",
    HandlerFailed: "handler failed: {}",
    SessionFailed: "session failed: {}",
    GroupClosed: _JOINING,  # after these the member has left, and joins as a new one
    CallerCancelled: _JOINING,
}


def join_reason(cause: SessionEnd | None, last_topics: Iterable[str] | None, topics: Iterable[str]) -> str:
    """Return the reason of a join after a session that ended for `cause`; `last_topics` are those of the last join."""
    now, before = set(topics), set(topics if last_topics is None else last_topics)
    if now != before:
        signed = [*(f"+{topic}" for topic in sorted(now - before)), *(f"-{t}" for t in sorted(before - now))]
        return shorten(f"topics changed: {' '.join(signed)}")
    if cause is None:
        return _JOINING
    # a subclass has the text of the nearest class that has one
    template = next((_WHY[kind] for kind in type(cause).__mro__ if kind in _WHY), "rebalance: {}")
    return shorten(template.format(cause))


def shorten(reason: str) -> str:
    """Return the reason, truncated to MAX_REASON_LENGTH."""
    return reason if len(reason) <= MAX_REASON_LENGTH else reason[: MAX_REASON_LENGTH - 1] + "…"


# --- assignors --------------------------------------------------------------------------------------------------------


class JoinProtocols:
    """The assignors of one member in order of preference, and the user data for its next join.

    User data of an assignment is sent with the next joins until an assignment has none; then the configured one is sent
    again (sarama's `userData`). Empty bytes count as none, since leaders of other clients send them.
    """

    def __init__(self, group_id: str, assignors: Iterable[Assignor], user_data: bytes | None) -> None:
        self._group_id = group_id
        self._configured = user_data
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._kept = user_data  # for assignors without subscription_user_data

    @property
    def names(self) -> list[str]:
        """The names of the assignors, the preferred one first."""
        return list(self._assignors)

    @property
    def are_cooperative(self) -> bool:
        """Whether claims are kept while the member joins again."""
        return are_cooperative(self._assignors.values())

    def subscription_user_data(self, topics: Sequence[str]) -> dict[str, bytes | None]:
        """Return the user data of each assignor for a join with these topics, by name, the preferred one first."""
        return {name: self._user_data_of(assignor, topics) for name, assignor in self._assignors.items()}

    def _user_data_of(self, assignor: Assignor, topics: Sequence[str]) -> bytes | None:
        if not isinstance(assignor, ProvidesUserData):
            return self._kept
        try:
            return assignor.subscription_user_data(list(topics))
        except USER_ERRORS:  # they are logged
            _log.exception(
                "group %s: subscription_user_data of assignor %s failed; sending the configured user data",
                self._group_id,
                assignor.name,
            )
            return self._configured

    def assign(
        self,
        protocol: str,
        members: Sequence[MemberSubscription],
        counts: Mapping[str, int],
        racks: PartitionRacks | None = None,
    ) -> dict[str, Assignment]:
        """As the leader: assign with the assignor that the group chose, by `racks` if it can. Raises AssignmentError."""
        assignor = self._assignors.get(protocol)
        if assignor is None:
            raise AssignmentError(
                f"group {self._group_id!r} chose the protocol {protocol!r}; this member offered {self.names}"
            )
        # a member may be subscribed to a topic that does not exist
        existing = {topic: count for topic, count in counts.items() if count}
        try:
            if racks is not None and isinstance(assignor, RackAware):
                given = assignor.assign_by_rack(members, existing, racks)
            else:
                given = assignor.assign(members, existing)
        except asyncio.CancelledError as error:  # it would look like a cancellation of the caller
            raise AssignmentError(f"assignor {protocol!r} raised CancelledError") from error
        plan = check_assignment(protocol, given, members, existing)
        # a user's assignor may move a partition at once, and two members would read it (KIP-429)
        if self.are_cooperative and not isinstance(assignor, CooperativeStickyAssignor):
            check_cooperative(protocol, plan, members)
        return plan

    def withheld(
        self,
        protocol: str,
        members: Sequence[MemberSubscription],
        assignments: Mapping[str, Assignment],
        counts: Mapping[str, int],
    ) -> frozenset[TopicPartition]:
        """Return what the leader's assignment withheld until its owner has revoked it; none by an eager assignor."""
        if not are_cooperative([self._assignors[protocol]]):
            return frozenset()
        return withheld_partitions(members, assignments, counts)

    def assigns_all(self, protocol: str) -> bool:
        """Whether only withheld partitions stay unassigned; False for a user's assignor, as it may leave out others."""
        return isinstance(self._assignors.get(protocol), CooperativeStickyAssignor)

    def on_assignment(self, protocol: str, assignment: Assignment, generation_id: int) -> None:
        """Keep the user data of an assignment, and pass the assignment to the chosen assignor."""
        self._kept = assignment.user_data or self._configured
        if protocol in self._assignors:
            self._notify(self._assignors[protocol], assignment, generation_id)

    def _notify(self, assignor: Assignor, assignment: Assignment, generation_id: int) -> None:
        if not isinstance(assignor, SeesAssignment):
            return
        try:
            assignor.on_assignment(assignment, generation_id)
        except USER_ERRORS:  # they are logged
            _log.exception(
                "group %s: on_assignment of assignor %s failed; the assignment is used all the same",
                self._group_id,
                assignor.name,
            )
