"""Snapshot of a group for tests, with decoded subscriptions and assignments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asyncgroup.broker.groups.group import ClassicGroup
from asyncgroup.broker.groups.member import GroupMember
from asyncgroup.broker.groups.protocols import CONSUMER_PROTOCOL
from asyncgroup.broker.groups.requests import OffsetAndMetadata
from asyncgroup.errors import DecodeError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.versioned import decode_versioned

__all__ = ["GroupView", "MemberView", "view_group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member of a group: `topics` is its subscription, `assignment` maps topics to sorted partitions."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assignment: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A snapshot of a group.

    `state` is Kafka's name (`Stable`, `Empty`, …; `Dead` if the group does not exist), `members` are in the order
    in which they joined, `coordinator` is a node id (-1: no coordinator).
    """

    group_id: str
    coordinator: int
    state: str
    generation: int
    protocol: str | None
    leader: str | None
    members: dict[str, MemberView]
    offsets: dict[TopicPartition, OffsetAndMetadata]

    @property
    def assignment(self) -> dict[TopicPartition, str]:
        """The member id that each assigned partition belongs to."""
        return {
            TopicPartition(topic, partition): member.member_id
            for member in self.members.values()
            for topic, partitions in member.assignment.items()
            for partition in partitions
        }


def view_group(
    group_id: str,
    coordinator: int,
    group: ClassicGroup | None,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> GroupView:
    """Return a snapshot of `group` (None: it does not exist)."""
    if group is None:
        group = ClassicGroup(group_id)
        state = "Dead"
    else:
        state = str(group.state)
    return GroupView(
        group_id=group_id,
        coordinator=coordinator,
        state=state,
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader,
        members={member_id: _view_member(group, member) for member_id, member in group.members.items()},
        offsets=dict(offsets),
    )


def _view_member(group: ClassicGroup, member: GroupMember) -> MemberView:
    topics: tuple[str, ...] = ()
    assignment: dict[str, tuple[int, ...]] = {}
    if group.protocol_type == CONSUMER_PROTOCOL:
        topics, assignment = _topics(group, member), _assignment(member)
    return MemberView(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=topics,
        assignment=assignment,
    )


def _topics(group: ClassicGroup, member: GroupMember) -> tuple[str, ...]:
    name = group.protocol_name if group.protocol_name in member.protocol_names else member.protocol_names[0]
    try:
        return tuple(decode_versioned(m.ConsumerProtocolSubscription, member.metadata(name)).topics)
    except DecodeError:
        return ()


def _assignment(member: GroupMember) -> dict[str, tuple[int, ...]]:
    if not member.assignment:
        return {}
    try:
        assigned = decode_versioned(m.ConsumerProtocolAssignment, member.assignment).assigned_partitions
    except DecodeError:
        return {}
    return {topic.topic: tuple(sorted(topic.partitions)) for topic in assigned if topic.partitions}
