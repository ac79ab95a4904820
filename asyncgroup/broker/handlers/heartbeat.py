"""Heartbeat (12), versions 0-4."""

from __future__ import annotations

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.wire import messages as m

VERSIONS = (0, 4)


def handle(node: Node, _context: RequestContext, request: m.HeartbeatRequest) -> m.HeartbeatResponse:
    """Keep the member's session alive and tell it of a rebalance."""
    error = node.coordinator.heartbeat(
        request.group_id, request.member_id, request.generation_id, request.group_instance_id
    )
    return m.HeartbeatResponse(error_code=error)


def error_response(_context: RequestContext, _request: m.HeartbeatRequest, code: int) -> m.HeartbeatResponse:
    """An error for the member."""
    return m.HeartbeatResponse(error_code=code)
