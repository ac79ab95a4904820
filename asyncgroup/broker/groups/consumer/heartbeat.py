"""Answer one ConsumerGroupHeartbeat (Kafka's `GroupMetadataManager.consumerGroupHeartbeat`), without side effects.

A group and a request give the next group and the response, or an error. Four steps: find or add the member; increment
the group epoch if subscriptions or topics have changed; compute the target if it is older than the group; bring the
member closer to its target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.consumer.assignors import Assignor, MemberSpec
from asyncgroup.broker.groups.consumer.consumer_group_member import (
    LEAVE_GROUP_STATIC_EPOCH,
    ConsumerGroupMember,
    TopicIdPartition,
)
from asyncgroup.broker.groups.consumer.heartbeat_messages import MemberHeartbeat, MemberHeartbeatResult
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.consumer.range_assignor import assign_range
from asyncgroup.broker.groups.consumer.reconciliation import reconcile
from asyncgroup.broker.groups.consumer.regexes import check_regex, used_regexes
from asyncgroup.broker.groups.consumer.topics import TopicsImage, metadata_hash, partition_counts
from asyncgroup.broker.groups.consumer.uniform_assignor import assign_uniform
from asyncgroup.error_codes import ErrorCode

__all__ = [
    "ASSIGNORS",
    "DEFAULT_ASSIGNOR",
    "HeartbeatContext",
    "Step",
    "check_size",
    "heartbeat",
    "leave",
    "owner_of_instance",
    "reconciled",
    "remove",
    "renewed",
    "static_member",
    "with_epoch",
    "with_targets",
]

ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""The assignors by name (`group.consumer.assignors`); the first is the default."""

DEFAULT_ASSIGNOR: Final = "uniform"
"""The assignor of groups whose members name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatContext:
    """What a heartbeat depends on besides its group. `now` is in ms since 1970, durations in seconds."""

    topics: TopicsImage
    now: int
    max_size: int = 2**31 - 1
    assignment_interval: float = 0.0
    """Shortest time between two computations of the target (KIP-1263)."""
    heartbeat_interval: float = 5.0


class Step(NamedTuple):
    """The group after a heartbeat, and the response."""

    group: ModernGroup
    result: MemberHeartbeatResult


def heartbeat(group: ModernGroup, request: MemberHeartbeat, context: HeartbeatContext) -> Step:
    """Answer a heartbeat that joins or stays. Raise Refused with Kafka's error codes."""
    before, group = _find_or_join(group, request, context.max_size)
    member = _updated(before, request)
    regex_changed = member.regex != before.regex
    # one that another member uses was checked when that member came with it
    if regex_changed and member.regex and member.regex not in used_regexes(group):
        check_regex(member.regex)
    # A new regular expression changes the epoch when it is resolved, after this heartbeat.
    must_bump = member.topics != before.topics or (regex_changed and member.regex in group.regexes)
    changed = member.topics != before.topics or regex_changed
    # first the epoch, then its targets, then this member: each step reads the result of the one before
    group = with_epoch(group.with_member(member), context, must_bump=must_bump)
    group = with_targets(group, context)
    group = reconciled(group, member, context, owned=request.owned, changed=changed)
    return Step(group, _result(group.members[member.member_id], before, request, context))


def _result(
    member: ConsumerGroupMember,
    before: ConsumerGroupMember,
    request: MemberHeartbeat,
    context: HeartbeatContext,
) -> MemberHeartbeatResult:
    # null if the assignment has not changed, unless the request has all fields: a response may have been lost
    shown = request.member_epoch == 0 or request.is_full or member.assigned.keys() != before.assigned.keys()
    return MemberHeartbeatResult(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval=context.heartbeat_interval,
        assignment=frozenset(member.assigned) if shown else None,
    )


# -- members -------------------------------------------------------------------------------------------------


def _find_or_join(
    group: ModernGroup, request: MemberHeartbeat, max_size: int
) -> tuple[ConsumerGroupMember, ModernGroup]:
    """Return the member as it was, and the group with it in place of a static member that it replaces."""
    joins = request.member_epoch == 0
    check_size(group, request.member_id, max_size)
    if request.instance_id is not None:
        known = static_member(group, request.instance_id)
        if not joins:
            return _checked(owner_of_instance(known, request.instance_id, request.member_id), request), group
        if known is not None:
            # a member with the classic protocol is replaced at any time, as in a classic group
            if known.classic is None:
                _check_released(known)
            return renewed(group, known, request.member_id)
    member = group.members.get(request.member_id)
    if member is not None:
        return _checked(member, request), group
    if not joins:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is not a member of the group")
    return ConsumerGroupMember(member_id=request.member_id), group


def check_size(group: ModernGroup, member_id: str, max_size: int) -> None:
    """Raise Refused(GROUP_MAX_SIZE_REACHED) if the group has no place for another member."""
    if len(group.members) >= max_size and member_id not in group.members:
        raise Refused(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has its maximum number of members, {max_size}"
        )


def static_member(group: ModernGroup, instance_id: str) -> ConsumerGroupMember | None:
    """Return the member with this group instance id, None if there is none."""
    member_id = group.static_members.get(instance_id)
    return None if member_id is None else group.members[member_id]


def owner_of_instance(
    known: ConsumerGroupMember | None, instance_id: str, member_id: str
) -> ConsumerGroupMember:
    """Return the member with the instance id. Raise Refused if there is none, or if it has another member id."""
    if known is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
    if known.member_id != member_id:
        raise Refused(
            ErrorCode.FENCED_INSTANCE_ID,
            f"the instance id {instance_id} belongs to member {known.member_id}",
        )
    return known


def _check_released(known: ConsumerGroupMember) -> None:
    """Let a static member be replaced only if it has left for a while; one with the classic protocol never says so."""
    if known.epoch != LEAVE_GROUP_STATIC_EPOCH:
        raise Refused(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"the instance id {known.instance_id} belongs to member {known.member_id}, which has not left",
        )


def renewed(
    group: ModernGroup, known: ConsumerGroupMember, member_id: str
) -> tuple[ConsumerGroupMember, ModernGroup]:
    """Let a static member continue under a new member id."""
    new = dataclasses.replace(known, member_id=member_id, epoch=0, previous_epoch=0)
    return new, group.replaced(known, new)


def _checked(member: ConsumerGroupMember, request: MemberHeartbeat) -> ConsumerGroupMember:
    """Return the member if the request's epoch is acceptable.

    It may be the previous one if the member owns only partitions that it was assigned: then the response with the
    present epoch was lost. Zero is always accepted: the member joins again.
    """
    epoch = request.member_epoch
    if epoch in (0, member.epoch):
        return member
    owned = request.owned
    lost = epoch == member.previous_epoch and owned is not None and owned <= member.assigned.keys()
    if epoch < member.epoch and lost:
        return member
    raise Refused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the member is in epoch {member.epoch}, not {epoch}. It must abandon its partitions and rejoin.",
    )


def _updated(member: ConsumerGroupMember, request: MemberHeartbeat) -> ConsumerGroupMember:
    timeout = request.rebalance_timeout
    return dataclasses.replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout=member.rebalance_timeout if timeout is None else timeout,
        server_assignor=member.server_assignor
        if request.server_assignor is None
        else request.server_assignor,
        topics=member.topics if request.topics is None else request.topics,
        regex=member.regex if request.regex is None else request.regex,
        client_id=request.client_id,
        client_host=request.client_host,
        # with this heartbeat it has the consumer protocol
        classic=None,
    )


# -- epochs and targets --------------------------------------------------------------------------------------


def _without_unused_regexes(group: ModernGroup) -> ModernGroup:
    """Drop the resolved regular expressions that no member uses any longer."""
    if not group.regexes:
        return group
    used = used_regexes(group)
    regexes = {text: found for text, found in group.regexes.items() if text in used}
    return group if len(regexes) == len(group.regexes) else dataclasses.replace(group, regexes=regexes)


def with_epoch(group: ModernGroup, context: HeartbeatContext, *, must_bump: bool) -> ModernGroup:
    """Return the group in its next epoch if it must be, or if topics have changed."""
    group = _without_unused_regexes(group)
    found = metadata_hash(context.topics, group.subscribed_topics)
    if not must_bump and found == group.metadata_hash:
        return group
    return dataclasses.replace(group, epoch=group.epoch + 1, metadata_hash=found)


def with_targets(group: ModernGroup, context: HeartbeatContext) -> ModernGroup:
    """Compute the targets if they are older than the group epoch, at most once in an assignment interval."""
    next_time = group.assignment_timestamp + context.assignment_interval * 1000
    too_soon = group.assignment_timestamp != 0 and context.now < next_time
    if group.assignment_epoch >= group.epoch or too_soon:
        return group
    counts = partition_counts(context.topics, group.subscribed_topics)
    specs = {
        member.member_id: MemberSpec(
            member.instance_id,
            # only topics that exist: the assignors know partitions
            frozenset(partition_counts(context.topics, group.topics_of(member))),
            group.target(member),
        )
        for member in group.members.values()
    }
    assign = ASSIGNORS[group.preferred_assignor() or DEFAULT_ASSIGNOR]
    return dataclasses.replace(
        group,
        targets=assign(specs, counts),
        assignment_epoch=group.epoch,
        assignment_timestamp=context.now,
    )


def reconciled(
    group: ModernGroup,
    member: ConsumerGroupMember,
    context: HeartbeatContext,
    *,
    owned: Collection[TopicIdPartition] | None,
    changed: bool,
) -> ModernGroup:
    """Return the group with the member one step closer to its target; `changed`: its subscription is new."""
    if not changed and member.is_reconciled_to(group.assignment_epoch):
        return group
    next_member = reconcile(
        member,
        group.target(member),
        group.assignment_epoch,
        is_free=group.is_free,
        owned=owned,
        subscribed=partition_counts(context.topics, group.topics_of(member)).keys(),
        subscription_changed=changed,
    )
    return group.with_member(next_member)


# -- leaving -------------------------------------------------------------------------------------------------


def leave(group: ModernGroup, request: MemberHeartbeat, topics: TopicsImage) -> Step:
    """Answer a heartbeat that leaves. Raise Refused: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if request.instance_id is not None:
        known = static_member(group, request.instance_id)
        member = owner_of_instance(known, request.instance_id, request.member_id)
    elif request.member_id in group.members:
        member = group.members[request.member_id]
    else:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is not a member of the group")
    result = MemberHeartbeatResult(member_id=member.member_id, member_epoch=request.member_epoch)
    if request.instance_id is None or request.member_epoch != LEAVE_GROUP_STATIC_EPOCH:
        return Step(remove(group, [member.member_id], topics), result)
    away = dataclasses.replace(
        member,
        epoch=LEAVE_GROUP_STATIC_EPOCH,
        assigned=dict.fromkeys(member.assigned, 0),
        revoking={},
    )
    return Step(group.with_member(away), result)


def remove(group: ModernGroup, member_ids: Collection[str], topics: TopicsImage) -> ModernGroup:
    """Return the group in its next epoch, without these members."""
    rest = group.without(member_ids)
    found = metadata_hash(topics, rest.subscribed_topics)
    return dataclasses.replace(rest, epoch=group.epoch + 1, metadata_hash=found)
