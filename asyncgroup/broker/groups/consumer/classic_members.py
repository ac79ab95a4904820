"""Answer JoinGroup, SyncGroup and Heartbeat of members with the classic protocol in a consumer group, without side effects.

Such members stay while a group moves from one protocol to the other (Kafka's `classicGroupJoinToConsumerGroup` and its
siblings). A JoinGroup is what a heartbeat is for others: its subscription says what the member wants and owns, and one
more step towards the target is taken; SyncGroup returns the partitions. The generation is the member's epoch, and no member
leads. Heartbeat tells the member to join again when it must give up partitions or can get more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.consumer.consumer_group_member import (
    ClassicProtocols,
    ConsumerGroupMember,
    ReconciliationState,
)
from asyncgroup.broker.groups.consumer.embedded_protocol import (
    assignment_bytes,
    owned_partitions,
    read_subscription,
)
from asyncgroup.broker.groups.consumer.heartbeat import (
    HeartbeatContext,
    check_size,
    owner_of_instance,
    reconciled,
    renewed,
    static_member,
    with_epoch,
    with_targets,
)
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.consumer.topics import TopicsImage
from asyncgroup.broker.groups.shared.requests import (
    CONSUMER_PROTOCOL,
    JoinRequest,
    JoinResult,
    RequestMember,
    SyncRequest,
    SyncResult,
)
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import DecodeError
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import read_prefix

__all__ = ["Joined", "check_join", "classic_member", "join", "join_result", "must_rejoin", "sync"]


class Joined(NamedTuple):
    """The group after a JoinGroup, and the member that has joined."""

    group: ModernGroup
    member: ConsumerGroupMember
    becomes_classic: bool = False
    """The last member with the consumer protocol was a static one, whose place this member takes."""
    is_stale: bool = False
    """Then: the target assignment is older than the group."""


# -- joining -------------------------------------------------------------------------------------------------


def check_join(group: ModernGroup, request: JoinRequest, max_size: int) -> None:
    """Check what can be checked before a member has an id.

    Raise Refused: GROUP_MAX_SIZE_REACHED; INCONSISTENT_GROUP_PROTOCOL if its protocol type is not `consumer`, or it has no assignor that all
    other classic members have.
    """
    check_size(group, request.member_id, max_size)
    classic = [member.classic for member in group.members.values() if member.classic is not None]
    # without a protocol that all have, the group could not become classic again
    common = [
        name for name, _ in request.protocols if all(name in dict(others.protocols) for others in classic)
    ]
    if request.protocol_type != CONSUMER_PROTOCOL or not common:
        raise Refused(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"member {request.member_id} has no protocol that the other members have",
        )


def join(
    group: ModernGroup,
    request: JoinRequest,
    member_id: str,
    context: HeartbeatContext,
    may_downgrade: Callable[[int], bool],
) -> Joined:
    """Add or update a member, and bring it one step closer to its target.

    `may_downgrade`: whether a group with this number of members may become a classic one.
    Raise Refused: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID for a static member, UNKNOWN_SERVER_ERROR if the subscription
    cannot be read.
    """
    replaced = None if request.group_instance_id is None else static_member(group, request.group_instance_id)
    becomes_classic = (
        replaced is not None
        and replaced.classic is None
        and may_downgrade(len(group.members))
        and _others_are_classic(group, replaced)
    )
    before, group_with_place = _find_or_add(group, request, member_id, replaced)
    # before the group changes: one that cannot be read is refused as a whole
    subscription = _subscription(request)
    member = _updated(before, request, subscription)
    changed = member.topics != before.topics or member.regex != before.regex
    after = with_epoch(group_with_place.with_member(member), context, must_bump=changed)
    is_stale = becomes_classic and after.assignment_epoch < after.epoch
    # the classic group assigns by itself: a new target would be of no use
    if not becomes_classic:
        after = with_targets(after, context)
    if not is_stale:
        owned = owned_partitions(subscription, context.topics)
        after = reconciled(after, member, context, owned=owned, changed=changed)
    if becomes_classic:
        after = dataclasses.replace(after, epoch=group.epoch)
    return Joined(after, after.members[member.member_id], becomes_classic, is_stale)


def _others_are_classic(group: ModernGroup, member: ConsumerGroupMember) -> bool:
    rest = group.without([member.member_id])
    return not rest.members or rest.has_classic_members_only


def _find_or_add(
    group: ModernGroup, request: JoinRequest, member_id: str, known: ConsumerGroupMember | None
) -> tuple[ConsumerGroupMember, ModernGroup]:
    """Return the member as it was, and the group with it in place of a static member that it replaces."""
    if request.group_instance_id is not None:
        # it stays, which only the owner of the instance id may
        if request.member_id:
            return owner_of_instance(known, request.group_instance_id, member_id), group
        if known is not None:
            return renewed(group, known, member_id)
    return group.members.get(member_id, ConsumerGroupMember(member_id=member_id)), group


def _subscription(request: JoinRequest) -> m.ConsumerProtocolSubscription:
    try:
        return read_subscription(request.protocols[0][1])  # that of all protocols is the same
    except DecodeError as error:
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR) from error


def _updated(
    member: ConsumerGroupMember, request: JoinRequest, subscription: m.ConsumerProtocolSubscription
) -> ConsumerGroupMember:
    timeout, instance_id = request.timeouts.rebalance, request.group_instance_id
    return dataclasses.replace(
        member,
        instance_id=member.instance_id if instance_id is None else instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout=member.rebalance_timeout if timeout < 0 else timeout,
        topics=frozenset(subscription.topics),
        # the classic protocol has none
        regex="",
        client_id=request.client.id,
        client_host=request.client.host,
        classic=ClassicProtocols(request.timeouts.session, request.protocols),
    )


def join_result(member: ConsumerGroupMember) -> JoinResult:
    """Return the successful result of a JoinGroup: a member without a leader, which therefore assigns nothing."""
    return JoinResult(
        member_id=member.member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=_classic(member).protocols[0][0],
    )


def _classic(member: ConsumerGroupMember) -> ClassicProtocols:
    assert member.classic is not None
    return member.classic


# -- staying -------------------------------------------------------------------------------------------------


def classic_member(group: ModernGroup, sender: RequestMember) -> ConsumerGroupMember:
    """Return the member that sends a SyncGroup or Heartbeat.

    Raise Refused: UNKNOWN_MEMBER_ID, also for a member with the consumer protocol; FENCED_INSTANCE_ID;
    ILLEGAL_GENERATION.
    """
    member_id, generation_id, instance_id = sender
    if instance_id is not None:
        member = owner_of_instance(static_member(group, instance_id), instance_id, member_id)
    elif member_id in group.members:
        member = group.members[member_id]
    else:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of the group")
    if member.classic is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} does not use the classic protocol")
    if generation_id != member.epoch:
        raise Refused(ErrorCode.ILLEGAL_GENERATION, f"the generation is {member.epoch}, not {generation_id}")
    return member


def sync(
    group: ModernGroup, member: ConsumerGroupMember, request: SyncRequest, topics: TopicsImage
) -> SyncResult:
    """Return a member's partitions, in the version of its subscription.

    Raise Refused: INCONSISTENT_GROUP_PROTOCOL for another protocol than its JoinGroup was answered with,
    REBALANCE_IN_PROGRESS if there is a newer target, UNKNOWN_SERVER_ERROR if the subscription cannot be read.
    """
    name, metadata = _classic(member).protocols[0]
    expected = (CONSUMER_PROTOCOL, name)
    for given, own in zip((request.protocol_type, request.protocol_name), expected, strict=True):
        # older versions name neither
        if given is not None and given != own:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the protocol is {own}, not {given}")
    if _is_behind(group, member):
        raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
    return SyncResult(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=assignment_bytes(member.assigned, topics, _version(metadata)),
    )


def _version(metadata: bytes) -> int:
    try:
        return read_prefix(metadata)
    except DecodeError as error:
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR) from error


def _is_behind(group: ModernGroup, member: ConsumerGroupMember) -> bool:
    """Whether there is a newer target for the member. One that must give up partitions gets it after that."""
    return (
        group.assignment_epoch > member.epoch and member.state is not ReconciliationState.UNREVOKED_PARTITIONS
    )


def must_rejoin(group: ModernGroup, member: ConsumerGroupMember) -> bool:
    """Whether the member shall join again.

    It shall if there is a newer target, if it must give up partitions, or if the partitions that it waits for are free.
    """
    match member.state:
        case ReconciliationState.UNREVOKED_PARTITIONS:
            return True
        case ReconciliationState.UNRELEASED_PARTITIONS if member.epoch >= group.assignment_epoch:
            missing = group.target(member) - member.assigned.keys()
            return all(map(group.is_free, missing))
        case _:
            return member.epoch < group.assignment_epoch
