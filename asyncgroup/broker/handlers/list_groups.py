"""ListGroups (16), versions 0-5: the groups that this node coordinates.

Filters by state from version 4 on, by type from 5.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncgroup.broker.groups.shared.requests import CONSUMER_PROTOCOL
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 5)

Listed = m.ListGroupsResponse.ListedGroup


def handle(node: Node, _context: RequestContext, request: m.ListGroupsRequest) -> m.ListGroupsResponse:
    """Return the groups that match the filters, which are case-insensitive.

    While a partition of `__consumer_offsets` is being loaded the response is an error, as the list would be incomplete.
    """
    if node.coordinator.loading:
        return m.ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}
    return m.ListGroupsResponse(
        groups=[
            group
            for group in _listed(node)
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type in types)
        ]
    )


def _listed(node: Node) -> Iterator[Listed]:
    for group in node.coordinator.groups.values():
        yield Listed(group.group_id, group.protocol_type or "", str(group.state), "classic")
    for consumer_group in node.coordinator.consumer_groups.all():
        yield Listed(consumer_group.group_id, CONSUMER_PROTOCOL, str(consumer_group.state), "consumer")


def error_response(
    _context: RequestContext, _request: m.ListGroupsRequest, code: int
) -> m.ListGroupsResponse:
    """Return the error and no groups."""
    return m.ListGroupsResponse(error_code=code)


register("ListGroups", VERSIONS, handle, error_response)
