"""LeaveGroup (13), versions 0-5. From version 3 on for several members (KIP-345), each with its own error."""

from __future__ import annotations

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.coordinator.calls import LeavingMember
from asyncgroup.broker.node import Node
from asyncgroup.wire import messages as m

VERSIONS = (0, 5)


def handle(node: Node, context: RequestContext, request: m.LeaveGroupRequest) -> m.LeaveGroupResponse:
    """Remove the members; the group rebalances once."""
    if context.api_version < 3:
        leaving = [LeavingMember(request.member_id)]
    else:
        leaving = [LeavingMember(i.member_id, i.group_instance_id, i.reason) for i in request.members]
    result = node.coordinator.leave(request.group_id, leaving)
    if context.api_version < 3:  # one member, whose error is that of the request
        error = result.error or next((error for _, error in result.members), result.error)
        return m.LeaveGroupResponse(error_code=error)
    return m.LeaveGroupResponse(
        error_code=result.error,
        members=[
            m.LeaveGroupResponse.MemberResponse(member.member_id, member.group_instance_id, error)
            for member, error in result.members
        ],
    )


def refuse(_context: RequestContext, _request: m.LeaveGroupRequest, code: int) -> m.LeaveGroupResponse:
    """An error for the whole request."""
    return m.LeaveGroupResponse(error_code=code)
