"""DeleteGroups (42), versions 0-2: delete groups without members, and their offsets."""

from __future__ import annotations

import asyncio
import functools

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.purgatory import complete_future, new_future
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

Result = m.DeleteGroupsResponse.DeletableGroupResult


def handle(
    node: Node, _context: RequestContext, request: m.DeleteGroupsRequest
) -> asyncio.Future[m.DeleteGroupsResponse]:
    """Delete each group; the response is sent when the last tombstone is written."""
    future = new_future(m.DeleteGroupsResponse)
    wanted = dict.fromkeys(request.groups_names)  # without duplicates
    errors: dict[str, ErrorCode] = {}

    def deleted(group_id: str, error: ErrorCode) -> None:
        errors[group_id] = error
        if len(errors) == len(wanted):
            complete_future(
                future, lambda: m.DeleteGroupsResponse(results=[Result(*each) for each in errors.items()])
            )

    for group_id in wanted:
        node.coordinator.offsets.delete_group(group_id, functools.partial(deleted, group_id))
    if not wanted:
        future.set_result(m.DeleteGroupsResponse())
    return future


def error_response(
    _context: RequestContext, request: m.DeleteGroupsRequest, code: int
) -> m.DeleteGroupsResponse:
    """Return the error for every group."""
    return m.DeleteGroupsResponse(results=[Result(group_id, code) for group_id in request.groups_names])


register("DeleteGroups", VERSIONS, handle, error_response)
