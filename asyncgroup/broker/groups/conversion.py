"""What a live group of one protocol is in the other (Kafka's `ConsumerGroup.fromClassicGroup`, `ClassicGroup.fromConsumerGroup`).

A classic group whose members are consumers becomes a consumer group when a member with the consumer protocol joins; a
consumer group becomes a classic one when the last such member leaves.
"""

from __future__ import annotations

import dataclasses

from asyncgroup.broker.clock import Clock
from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState
from asyncgroup.broker.groups.classic.group_member import GroupMember
from asyncgroup.broker.groups.consumer.consumer_group_member import (
    ClassicProtocols,
    ConsumerGroupMember,
    TargetAssignment,
)
from asyncgroup.broker.groups.consumer.embedded_protocol import assignment_bytes, read_subscription, with_ids
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.consumer.topics import TopicsImage, metadata_hash
from asyncgroup.broker.groups.shared.requests import CONSUMER_PROTOCOL, ClientDetails, MemberTimeouts
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import DecodeError
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned, read_prefix

__all__ = ["downgraded", "upgraded"]


# -- from classic to consumer --------------------------------------------------------------------------------


def upgraded(group: ClassicGroup, topics: TopicsImage) -> ModernGroup:
    """Return the consumer group that a classic group with members becomes.

    Its epoch is the generation, and every member has the assignment of its last SyncGroup. Raise Refused:
    GROUP_ID_NOT_FOUND if the bytes cannot be read or an assignment has user data, which would be lost.
    """
    members = {member.member_id: _modern_member(group, member, topics) for member in group.members.values()}
    found = ModernGroup(
        group_id=group.group_id,
        epoch=group.generation_id,
        assignment_epoch=group.generation_id,
        members=members,
        targets={member_id: frozenset(member.assigned) for member_id, member in members.items()},
    )
    return dataclasses.replace(found, metadata_hash=metadata_hash(topics, found.subscribed_topics))


def _modern_member(group: ClassicGroup, member: GroupMember, topics: TopicsImage) -> ConsumerGroupMember:
    try:
        assigned = _assigned(group, member, topics)
        subscription = read_subscription(member.metadata(group.protocol_name))
    except KeyError as error:  # the first generation has not begun, or the member joins with other protocols
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR) from error
    except DecodeError as error:
        raise Refused(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group.group_id} to consumer group because the embedded consumer protocol is "
            "malformed.",
        ) from error
    generation = group.generation_id
    return ConsumerGroupMember(
        member_id=member.member_id,
        epoch=generation,
        previous_epoch=generation,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client.id,
        client_host=member.client.host,
        rebalance_timeout=member.timeouts.rebalance,
        topics=frozenset(subscription.topics),
        assigned=dict.fromkeys(assigned, generation),
        classic=ClassicProtocols(member.timeouts.session, member.protocols),
    )


def _assigned(group: ClassicGroup, member: GroupMember, topics: TopicsImage) -> TargetAssignment:
    if not member.assignment:
        return frozenset()
    assignment = decode_versioned(m.ConsumerProtocolAssignment, member.assignment)
    if assignment.user_data:
        raise Refused(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group.group_id} to consumer group because an unsupported custom assignor is in "
            "use. Please refer to the documentation or switch to a default assignor before re-attempting the upgrade.",
        )
    return with_ids(assignment.assigned_partitions, topics)


# -- from consumer to classic --------------------------------------------------------------------------------


def downgraded(group: ModernGroup, topics: TopicsImage, clock: Clock) -> ClassicGroup:
    """Return the classic group that a consumer group becomes whose members all use the classic protocol.

    Its generation is the group epoch, its members are assigned their targets. It is stable; the caller starts a rebalance
    if the targets were made for other members. Raise DecodeError if a subscription cannot be read.
    """
    classic = ClassicGroup(group.group_id, clock)
    for member in group.members.values():
        classic.add(_classic_member(member))
    classic.protocol_type = CONSUMER_PROTOCOL
    classic.protocol_name = classic.select_protocol()
    classic.generation_id = group.epoch
    classic.compute_subscribed_topics()
    for classic_member in classic.members.values():
        version = read_prefix(classic_member.metadata(classic.protocol_name))
        target = group.target(group.members[classic_member.member_id])
        classic_member.assignment = assignment_bytes(target, topics, version)
    classic.state = ClassicGroupState.STABLE
    return classic


def _classic_member(member: ConsumerGroupMember) -> GroupMember:
    assert member.classic is not None
    return GroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client=ClientDetails(member.client_id, member.client_host),
        timeouts=MemberTimeouts(member.rebalance_timeout, member.classic.session_timeout),
        protocol_type=CONSUMER_PROTOCOL,
        protocols=member.classic.protocols,
    )
