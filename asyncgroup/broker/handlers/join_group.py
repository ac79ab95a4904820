"""JoinGroup (11), versions 0-9: join a group. The request is parked until the join phase ends.

Version 0 has no rebalance timeout: the session timeout is used. From version 4 on new members get an id first
(KIP-394), version 5 adds static members (KIP-345), version 9 lets a static leader that rejoins skip the
assignment (KIP-814).
"""

from __future__ import annotations

import asyncio

from asyncgroup.broker.groups.shared.requests import ClientDetails, JoinRequest, JoinResult, MemberTimeouts
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.purgatory import complete_future, new_future
from asyncgroup.wire import messages as m

VERSIONS = (0, 9)


def handle(
    node: Node, context: RequestContext, request: m.JoinGroupRequest
) -> asyncio.Future[m.JoinGroupResponse]:
    """Pass the request to the coordinator."""
    future = new_future(m.JoinGroupResponse)
    version = context.api_version

    def reply(result: JoinResult) -> None:
        complete_future(future, lambda: _response(result, version))

    session_timeout = request.session_timeout_ms / 1000
    node.coordinator.join(
        JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            client=ClientDetails(context.client_id, context.client_host),
            timeouts=MemberTimeouts(
                request.rebalance_timeout_ms / 1000 if version > 0 else session_timeout, session_timeout
            ),
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
            reason=request.reason,
            require_known_member_id=version >= 4,
            supports_skipping_assignment=version >= 9,
        ),
        reply,
    )
    return future


def error_response(context: RequestContext, request: m.JoinGroupRequest, code: int) -> m.JoinGroupResponse:
    """Return the error."""
    name = None if context.api_version >= 7 else ""
    return m.JoinGroupResponse(error_code=code, member_id=request.member_id, protocol_name=name)


def _response(result: JoinResult, version: int) -> m.JoinGroupResponse:
    # Without a protocol the name is null from version 7 on, and empty before.
    return m.JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name or (None if version >= 7 else ""),
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            m.JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in result.members
        ],
    )


register("JoinGroup", VERSIONS, handle, error_response)
