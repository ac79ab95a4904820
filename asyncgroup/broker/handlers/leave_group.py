"""LeaveGroup (13), versions 0-5: remove members from a group.

From version 3 on a request may contain several members, each with its own error (KIP-345).
"""

from __future__ import annotations

import asyncio

from asyncgroup.broker.groups.shared.requests import LeaveResult, LeavingMember
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.purgatory import complete_future, new_future
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 5)


def handle(
    node: Node, context: RequestContext, request: m.LeaveGroupRequest
) -> asyncio.Future[m.LeaveGroupResponse] | m.LeaveGroupResponse:
    """Remove the members; the group rebalances once.

    If it is empty then, that is written to the log before the response.
    """
    if context.api_version < 3:
        leaving = [LeavingMember(request.member_id)]
    else:
        leaving = [LeavingMember(i.member_id, i.group_instance_id, i.reason) for i in request.members]
    result = node.coordinator.leave(request.group_id, leaving)
    if result.error:
        return error_response(context, request, result.error)
    future = new_future(m.LeaveGroupResponse)

    def written(error: ErrorCode) -> None:
        complete_future(
            future, lambda: error_response(context, request, error) if error else _response(context, result)
        )

    node.coordinator.after_writes(request.group_id, written)
    return future


def error_response(
    _context: RequestContext, _request: m.LeaveGroupRequest, code: int
) -> m.LeaveGroupResponse:
    """Return the error for the whole request."""
    return m.LeaveGroupResponse(error_code=code)


def _response(context: RequestContext, result: LeaveResult) -> m.LeaveGroupResponse:
    if context.api_version < 3:  # one member only, whose error is the request's
        return m.LeaveGroupResponse(error_code=result.members[0][1])
    return m.LeaveGroupResponse(
        members=[
            m.LeaveGroupResponse.MemberResponse(member.member_id, member.group_instance_id, error)
            for member, error in result.members
        ],
    )


register("LeaveGroup", VERSIONS, handle, error_response)
