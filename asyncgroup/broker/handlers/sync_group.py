"""SyncGroup (14), versions 0-5: get a member's assignment.

Followers are parked until the leader's assignment is stored.

From version 5 on protocol type and name are mandatory (KIP-559).
"""

from __future__ import annotations

import asyncio

from asyncgroup.broker.groups.shared.requests import RequestMember, SyncRequest, SyncResult
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.purgatory import complete_future, new_future
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 5)


def handle(
    node: Node, context: RequestContext, request: m.SyncGroupRequest
) -> asyncio.Future[m.SyncGroupResponse] | m.SyncGroupResponse:
    """Pass the request to the coordinator."""
    if context.api_version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return error_response(context, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    future = new_future(m.SyncGroupResponse)

    def reply(result: SyncResult) -> None:
        complete_future(
            future,
            lambda: m.SyncGroupResponse(
                error_code=result.error,
                protocol_type=result.protocol_type,
                protocol_name=result.protocol_name,
                assignment=result.assignment,
            ),
        )

    node.coordinator.sync(
        SyncRequest(
            group_id=request.group_id,
            member=RequestMember(request.member_id, request.generation_id, request.group_instance_id),
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments={a.member_id: bytes(a.assignment) for a in request.assignments},
        ),
        reply,
    )
    return future


def error_response(_context: RequestContext, _request: m.SyncGroupRequest, code: int) -> m.SyncGroupResponse:
    """Return the error."""
    return m.SyncGroupResponse(error_code=code)


register("SyncGroup", VERSIONS, handle, error_response)
