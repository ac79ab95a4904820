"""Validate requests against consumer groups (Kafka's `ConsumerGroup.validate…` and `GroupCoordinatorService`).

Each function returns the error of the response; without an error `check_heartbeat` returns None, the others `NONE`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.consumer.consumer_group_member import (
    LEAVE_GROUP_STATIC_EPOCH,
    ConsumerGroupMember,
    TopicIdPartition,
)
from asyncgroup.broker.groups.consumer.heartbeat import ASSIGNORS
from asyncgroup.broker.groups.consumer.heartbeat_messages import MemberHeartbeat
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.shared.requests import NO_MEMBER, RequestMember
from asyncgroup.error_codes import ErrorCode

__all__ = ["check_commit", "check_fetch", "check_heartbeat"]

_MEMBER_EPOCH_VERSION: Final = 9
"""The first version of OffsetCommit for members with the consumer protocol."""


def check_heartbeat(request: MemberHeartbeat, *, version: int) -> Refused | None:
    """Check what a heartbeat says, regardless of the group (`throwIfConsumerGroupHeartbeatRequestIsInvalid`).

    In version 0 the member id of a new member may be empty: the coordinator makes one.
    """
    epoch = request.member_epoch
    needs_id = version >= 1 or epoch > 0 or epoch == -1
    problems = (
        ("MemberId is empty.", needs_id and not request.member_id),
        ("GroupId is empty.", not request.group_id),
        ("InstanceId is empty.", request.instance_id == ""),
        ("RackId is empty.", request.rack_id == ""),
        (
            "RebalanceTimeoutMs is missing in a request that joins.",
            epoch == 0 and request.rebalance_timeout is None,
        ),
        (
            "TopicPartitions are not empty in a request that joins.",
            epoch == 0 and request.owned != frozenset(),
        ),
        (
            "Both SubscribedTopicNames and SubscribedTopicRegex are null in a request that joins.",
            epoch == 0 and request.topics is None and request.regex is None,
        ),
        ("InstanceId is null.", epoch == LEAVE_GROUP_STATIC_EPOCH and request.instance_id is None),
        (f"MemberEpoch {epoch} is invalid.", epoch < LEAVE_GROUP_STATIC_EPOCH),
    )
    for text, holds in problems:
        if holds:
            return Refused(ErrorCode.INVALID_REQUEST, text)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        names = ", ".join(ASSIGNORS)
        return Refused(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"ServerAssignor {request.server_assignor} is not one of {names}."
        )
    return None


def check_commit(
    group: ModernGroup,
    sender: RequestMember,
    *,
    partitions: Collection[TopicIdPartition],
    version: int,
    transactional: bool,
) -> ErrorCode:
    """Check an offset commit.

    An epoch older than the member's is accepted for partitions that it has had since that epoch (KIP-1251): its
    heartbeat may have been answered while the commit was on its way. Producers and members with the classic protocol know
    only the error of classic groups.
    """
    epoch = sender.generation_id
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    if transactional and sender == NO_MEMBER:
        return ErrorCode.NONE
    member = group.members.get(sender.id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not transactional and member.classic is None and version < _MEMBER_EPOCH_VERSION:
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == member.epoch:
        return ErrorCode.NONE
    since: Callable[[TopicIdPartition], int | None] = member.assignment_epoch
    is_current = epoch < member.epoch and all(
        (assigned := since(tp)) is not None and assigned <= epoch for tp in partitions
    )
    if is_current:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if transactional else _stale_error(member)


def _stale_error(member: ConsumerGroupMember) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def check_fetch(group: ModernGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Check an OffsetFetch; one without member is always accepted."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if member.epoch == epoch else _stale_error(member)
