"""Validate requests against a group's state and members.

Each function returns NONE or the error to answer with, like the `validate…` methods of Kafka's `ClassicGroup`
and `GroupMetadataManager`.
"""

from __future__ import annotations

from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState
from asyncgroup.broker.groups.shared.requests import RequestMember, SyncRequest
from asyncgroup.error_codes import ErrorCode

__all__ = [
    "check_commit",
    "check_delete",
    "check_heartbeat",
    "check_member",
    "check_offset_delete",
    "check_sync",
]


def check_member(group: ClassicGroup, member_id: str, group_instance_id: str | None) -> ErrorCode:
    """Return FENCED_INSTANCE_ID for a static member that was replaced, UNKNOWN_MEMBER_ID for any other non-member."""
    if group_instance_id is not None:
        current = group.static_members.get(group_instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def check_sync(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    """Check a SyncGroup: it must name the current generation, and no new join phase may have begun."""
    if group.state is ClassicGroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is ClassicGroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error := check_member(group, request.member.id, request.member.instance_id):
        return error
    if request.member.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(
        request.protocol_name, group.protocol_name
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    preparing = group.state is ClassicGroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE


def _differs(requested: str | None, actual: str | None) -> bool:
    """Whether a request names another protocol type or name than the group has; older versions name none."""
    return requested is not None and actual is not None and requested != actual


def check_heartbeat(group: ClassicGroup, member: RequestMember) -> ErrorCode:
    """Check that the heartbeat comes from a member of the current generation."""
    if group.state is ClassicGroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error := check_member(group, member.id, member.instance_id):
        return error
    return ErrorCode.ILLEGAL_GENERATION if member.generation_id != group.generation_id else ErrorCode.NONE


def check_commit(group: ClassicGroup, member: RequestMember, *, transactional: bool = False) -> ErrorCode:
    """Check an offset commit.

    `transactional`: a TxnOffsetCommit, sent by a producer. Its early versions name no member, and it is allowed
    during a rebalance.
    """
    if group.state is ClassicGroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if member.generation_id < 0 and group.state is ClassicGroupState.EMPTY:
        return ErrorCode.NONE  # an admin client, or a consumer with manual assignment
    if member.generation_id >= 0 or member.id or member.instance_id is not None:
        if error := check_member(group, member.id, member.instance_id):
            return error
        if member.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
    elif not transactional and group.state is not ClassicGroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not transactional and group.state is ClassicGroupState.COMPLETING_REBALANCE:
        # The member has joined the new generation, so it must not commit before it gets its assignment.
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def check_offset_delete(group: ClassicGroup) -> ErrorCode:
    """Check an OffsetDelete: a group with members must be a consumer group, whose subscriptions are known."""
    if group.state is ClassicGroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    live = group.state is not ClassicGroupState.EMPTY
    return ErrorCode.NON_EMPTY_GROUP if live and not group.is_consumer_group else ErrorCode.NONE


def check_delete(group: ClassicGroup) -> ErrorCode:
    """Check a DeleteGroups: the group must have no members."""
    if group.state is ClassicGroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NONE if group.state is ClassicGroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP
