"""Heartbeat (12), versions 0-4: keep a group member's session alive."""

from __future__ import annotations

from asyncgroup.broker.groups.shared.requests import RequestMember
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.wire import messages as m

VERSIONS = (0, 4)


def handle(node: Node, _context: RequestContext, request: m.HeartbeatRequest) -> m.HeartbeatResponse:
    """Restart the member's session timer; REBALANCE_IN_PROGRESS asks it to rejoin."""
    member = RequestMember(request.member_id, request.generation_id, request.group_instance_id)
    error = node.coordinator.heartbeat(request.group_id, member)
    return m.HeartbeatResponse(error_code=error)


def error_response(_context: RequestContext, _request: m.HeartbeatRequest, code: int) -> m.HeartbeatResponse:
    """Return the error."""
    return m.HeartbeatResponse(error_code=code)


register("Heartbeat", VERSIONS, handle, error_response)
