"""Whether a group takes what is asked of it: by its state, and by who asks (the validating methods of Kafka's `ClassicGroup`
and `GroupMetadataManager`). Each gives NONE or the error to answer.
"""

from __future__ import annotations

from asyncgroup.broker.coordinator.group import ClassicGroup
from asyncgroup.broker.coordinator.requests import SyncRequest
from asyncgroup.broker.coordinator.state import ClassicGroupState
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
    """FENCED_INSTANCE_ID for a static member that was replaced, UNKNOWN_MEMBER_ID for who is no member at all."""
    if group_instance_id is not None:
        current = group.static_members.get(group_instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def check_sync(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    """A SyncGroup of the present generation is taken until the next join phase begins."""
    if group.state is ClassicGroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is ClassicGroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error := check_member(group, request.member_id, request.group_instance_id):
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(
        request.protocol_name, group.protocol_name
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    preparing = group.state is ClassicGroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE


def _differs(said: str | None, known: str | None) -> bool:
    """A protocol type or name that a member stated, and wrongly (older versions state none)."""
    return said is not None and known is not None and said != known


def check_heartbeat(
    group: ClassicGroup, member_id: str, group_instance_id: str | None, generation_id: int
) -> ErrorCode:
    """Whether the member lives in the present generation."""
    if group.state is ClassicGroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error := check_member(group, member_id, group_instance_id):
        return error
    return ErrorCode.ILLEGAL_GENERATION if generation_id != group.generation_id else ErrorCode.NONE


def check_commit(
    group: ClassicGroup,
    member_id: str,
    group_instance_id: str | None,
    generation_id: int,
    *,
    transactional: bool = False,
) -> ErrorCode:
    """A commit inside a transaction comes from a producer: early versions name no member, and its member may be between
    two generations.
    """
    if group.state is ClassicGroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation_id < 0 and group.state is ClassicGroupState.EMPTY:
        return ErrorCode.NONE  # an admin client, or a consumer that assigns itself
    if generation_id >= 0 or member_id or group_instance_id is not None:
        if error := check_member(group, member_id, group_instance_id):
            return error
        if generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
    elif not transactional and group.state is not ClassicGroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not transactional and group.state is ClassicGroupState.COMPLETING_REBALANCE:
        # The member knows the new generation, so it may not commit for the old one until the assignment is out.
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def check_offset_delete(group: ClassicGroup) -> ErrorCode:
    """While a group has members only consumers can tell which topics they don't need."""
    if group.state is ClassicGroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    live = group.state is not ClassicGroupState.EMPTY
    return ErrorCode.NON_EMPTY_GROUP if live and not group.is_consumer_group else ErrorCode.NONE


def check_delete(group: ClassicGroup) -> ErrorCode:
    """A group is deleted when nobody is in it."""
    if group.state is ClassicGroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NONE if group.state is ClassicGroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP
