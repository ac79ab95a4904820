"""A group with the classic protocol: its members and its state (Kafka's `ClassicGroup`).

It has no timers and never waits; the clock is used only for the timestamps of state changes. Parked requests are
callbacks on the members; `rebalance.py` and `membership.py` decide when they are answered. Members are kept in the
order in which they joined: the leader is the first, and when it leaves the next one takes over (in Kafka the
order of a hash map decides).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from asyncgroup.broker.clock import Clock
from asyncgroup.broker.groups.classic.group_member import (
    GroupMember,
    SupportedProtocols,
    subscribed_topics,
)
from asyncgroup.broker.groups.shared.requests import (
    CONSUMER_PROTOCOL,
    GroupSnapshot,
    JoinedMember,
    JoinReply,
    JoinResult,
    MemberTimeouts,
    SyncResult,
)
from asyncgroup.error_codes import ErrorCode

__all__ = ["ClassicGroup", "ClassicGroupState"]


class ClassicGroupState(Enum):
    """The states of a group, and how requests are answered in each:

    | state               | join                     | sync               | heartbeat          | commit             |
    |---------------------|--------------------------|--------------------|--------------------|--------------------|
    | EMPTY               | starts a rebalance       | UNKNOWN_MEMBER_ID  | UNKNOWN_MEMBER_ID  | generation -1 only |
    | PREPARING_REBALANCE | parked                   | REBALANCE_IN_PROG. | REBALANCE_IN_PROG. | old generation ok  |
    | COMPLETING_REBALANCE| same metadata: at once   | parked             | ok                 | REBALANCE_IN_PROG. |
    | STABLE              | leader or change: parked | at once            | ok                 | ok                 |
    | DEAD                | COORDINATOR_NOT_AVAILABLE everywhere; the group is gone from this coordinator         |
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"

    @property
    def predecessors(self) -> frozenset[ClassicGroupState]:
        """The states from which this one may be entered."""
        return _PREDECESSORS[self]

    def __str__(self) -> str:
        return self.value


_PREDECESSORS: dict[ClassicGroupState, frozenset[ClassicGroupState]] = {
    ClassicGroupState.EMPTY: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.PREPARING_REBALANCE: frozenset(
        {ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.EMPTY}
    ),
    ClassicGroupState.COMPLETING_REBALANCE: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.STABLE: frozenset({ClassicGroupState.COMPLETING_REBALANCE}),
    ClassicGroupState.DEAD: frozenset(ClassicGroupState),
}


def _no_clock() -> int:
    return -1


class ClassicGroup:
    """A group with its members; `clock` gives ms since 1970."""

    def __init__(self, group_id: str, clock: Clock = _no_clock) -> None:
        self.group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.current_state_timestamp = clock()  # when it entered its state, ms since 1970; -1 if unknown
        self.previous_state = ClassicGroupState.DEAD
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.subscribed_topics: frozenset[str] | None = None  # of a consumer group; None if unknown
        self.leader: str | None = None
        self.members: dict[str, GroupMember] = {}
        self.static_members: dict[str, str] = {}  # group instance id → member id
        self.pending_join: set[str] = set()  # ids given out with MEMBER_ID_REQUIRED that have not joined yet
        self.pending_sync: set[str] = set()  # members that have not synced in this generation
        self.new_member_added = False  # extends the initial rebalance delay
        self.awaiting_join_count = 0
        self._protocols = SupportedProtocols()
        self._clock = clock

    def __repr__(self) -> str:
        return (
            f"<ClassicGroup {self.group_id!r} {self.state} generation={self.generation_id} "
            f"members={len(self.members)} leader={self.leader!r}>"
        )

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def is_simple(self) -> bool:
        """Whether the group has offsets only and never had a member."""
        return self.protocol_type is None and self.state is ClassicGroupState.EMPTY and not self.pending_join

    @property
    def rebalance_timeout(self) -> float:
        """The largest rebalance timeout of the members, in seconds."""
        return max((member.timeouts.rebalance for member in self.members.values()), default=0.0)

    @property
    def has_all_members_joined(self) -> bool:
        """Whether every member has a parked JoinGroup and no id in `pending_join` is missing."""
        return len(self.members) == self.awaiting_join_count and not self.pending_join

    @property
    def can_rebalance(self) -> bool:
        """Whether PREPARING_REBALANCE may be entered."""
        return self.state in ClassicGroupState.PREPARING_REBALANCE.predecessors

    def is_leader(self, member_id: str) -> bool:
        """Whether `member_id` leads the group."""
        return self.leader is not None and self.leader == member_id

    def supports(self, protocol_type: str, protocol_names: Collection[str]) -> bool:
        """Whether a member with these protocols may join: all members must support at least one of them."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type) and bool(protocol_names)
        has_common = self._protocols.any_supported_by_all(protocol_names, len(self.members))
        return self.protocol_type == protocol_type and has_common

    def select_protocol(self) -> str:
        """Return the protocol preferred by most members among those that all support. The group must have a member."""
        return self._protocols.select(self.members.values())

    @property
    def is_consumer_group(self) -> bool:
        """Whether its members are consumers, whose subscriptions the coordinator can read."""
        return self.protocol_type == CONSUMER_PROTOCOL

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may subscribe to the topic.

        If a consumer group's subscriptions are unknown, True for every topic.
        """
        known = self.subscribed_topics
        return self.is_consumer_group if known is None else topic in known

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Return all members with their metadata for the selected protocol, for the leader's JoinGroup response."""
        return tuple(
            JoinedMember(m.member_id, m.group_instance_id, m.metadata(self.protocol_name))
            for m in self.members.values()
        )

    def join_result(self, member_id: str, *, with_members: bool) -> JoinResult:
        """Return the successful result of a JoinGroup of `member_id` in the current generation."""
        return JoinResult(
            member_id=member_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            members=self.joined_members() if with_members else (),
        )

    def snapshot(self, assignments: dict[str, bytes]) -> GroupSnapshot:
        """Return the group as stored in a group metadata record, with `assignments` by member id."""
        return GroupSnapshot(
            group_id=self.group_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader,
            members=tuple(
                m.snapshot(self.protocol_name, assignments.get(m.member_id, b""))
                for m in self.members.values()
            ),
            current_state_timestamp=self.current_state_timestamp,
        )

    # -- changes ---------------------------------------------------------------------------------------------

    def transition_to(self, state: ClassicGroupState) -> None:
        """Enter `state`. Raise RuntimeError if `ClassicGroupState.predecessors` does not allow the transition."""
        if self.state not in state.predecessors:
            raise RuntimeError(
                f"group {self.group_id!r}: invalid state transition from {self.state} to {state}"
            )
        self.previous_state = self.state
        self.state = state
        self.current_state_timestamp = self._clock()

    def add(self, member: GroupMember, reply: JoinReply | None = None) -> None:
        """Add `member`, with its parked JoinGroup if there is one. The first member becomes the leader."""
        if member.group_instance_id is not None:
            if member.group_instance_id in self.static_members:
                raise RuntimeError(
                    f"group instance id {member.group_instance_id!r} belongs to a member already"
                )
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._protocols.add(member)
        self.park_join(member, reply)
        self.pending_join.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending id.

        If the leader leaves, the next member in joining order becomes the leader.
        """
        member = self.members.pop(member_id, None)
        if member is not None:
            self._protocols.remove(member)
            self.park_join(member, None)
            # The LeaveGroup may have come on another connection, while this SyncGroup is parked. Kafka never answers it,
            # so that its client times out.
            self.answer_sync(member, SyncResult(error=ErrorCode.UNKNOWN_MEMBER_ID))
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
        if self.is_leader(member_id):
            self.leader = next(iter(self.members), None)
        self.pending_join.discard(member_id)
        self.pending_sync.discard(member_id)

    def update(
        self,
        member: GroupMember,
        protocols: tuple[tuple[str, bytes], ...],
        timeouts: MemberTimeouts,
        reply: JoinReply | None,
    ) -> None:
        """Update `member` from a repeated JoinGroup, and park the request."""
        self._protocols.remove(member)
        member.protocols = protocols
        self._protocols.add(member)
        member.timeouts = timeouts
        self.park_join(member, reply)

    def replace_static(self, group_instance_id: str, new_member_id: str) -> GroupMember:
        """Give the static member a new id; requests parked under the old id are answered with FENCED_INSTANCE_ID."""
        old_member_id = self.static_members[group_instance_id]
        member = self.members.pop(old_member_id)
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.answer_join(member, JoinResult(error=fenced, member_id=old_member_id))
        self.answer_sync(member, SyncResult(error=fenced))
        member.member_id = new_member_id
        member.is_new = False
        self.members[new_member_id] = member
        if self.leader == old_member_id:
            self.leader = new_member_id
        self.static_members[group_instance_id] = new_member_id
        self.pending_sync.discard(old_member_id)
        return member

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has rejoined, else elect the first member that has. Return False if none has."""
        if self.leader is None:
            return False
        if self.members[self.leader].is_awaiting_join:
            return True
        for member in self.members.values():
            if member.is_awaiting_join:
                self.leader = member.member_id
                return True
        return False

    def init_next_generation(self) -> None:
        """End the join phase: increment the generation, select the protocol.

        Without members the group becomes EMPTY.
        """
        self.generation_id += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.compute_subscribed_topics()
        self.transition_to(
            ClassicGroupState.COMPLETING_REBALANCE if self.members else ClassicGroupState.EMPTY
        )
        self.pending_sync.clear()

    def compute_subscribed_topics(self) -> None:
        """Read the members' subscriptions from their metadata for the selected protocol."""
        protocol = self.protocol_name
        if not self.is_consumer_group or (self.members and protocol is None):
            self.subscribed_topics = None
        else:
            self.subscribed_topics = subscribed_topics(m.metadata(protocol) for m in self.members.values())

    # -- parked requests -------------------------------------------------------------------------------------

    def park_join(self, member: GroupMember, reply: JoinReply | None) -> None:
        """Set or clear the parked JoinGroup of `member`, and update `awaiting_join_count`."""
        self.awaiting_join_count += (reply is not None) - (member.awaiting_join is not None)
        member.awaiting_join = reply

    def answer_join(self, member: GroupMember, result: JoinResult) -> bool:
        """Answer the parked JoinGroup of `member`. Return False if it has none."""
        reply = member.awaiting_join
        if reply is None:
            return False
        self.park_join(member, None)
        reply(result)
        return True

    def answer_sync(self, member: GroupMember, result: SyncResult) -> bool:
        """Answer the parked SyncGroup of `member`. Return False if it has none."""
        reply = member.awaiting_sync
        if reply is None:
            return False
        member.awaiting_sync = None
        reply(result)
        return True

    def not_yet_rejoined_dynamic_members(self) -> Iterable[GroupMember]:
        """Return the dynamic members without a parked JoinGroup."""
        return [m for m in self.members.values() if not m.is_awaiting_join and not m.is_static]
