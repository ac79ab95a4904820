"""DeleteGroups (42), versions 0-2: groups without members, with their offsets."""

from __future__ import annotations

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

Result = m.DeleteGroupsResponse.DeletableGroupResult


def handle(node: Node, _context: RequestContext, request: m.DeleteGroupsRequest) -> m.DeleteGroupsResponse:
    """Delete each group."""
    results = [Result(group_id, node.coordinator.delete(group_id)) for group_id in request.groups_names]
    return m.DeleteGroupsResponse(results=results)


def refuse(_context: RequestContext, request: m.DeleteGroupsRequest, code: int) -> m.DeleteGroupsResponse:
    """The error for every group."""
    return m.DeleteGroupsResponse(results=[Result(group_id, code) for group_id in request.groups_names])
