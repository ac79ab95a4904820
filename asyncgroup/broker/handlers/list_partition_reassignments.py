"""ListPartitionReassignments (46), version 0: the reassignments in progress (KIP-455).

There never are any, see `alter_partition_reassignments`.
"""

from __future__ import annotations

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 0)

Response = m.ListPartitionReassignmentsResponse


def handle(_node: Node, _context: RequestContext, _request: m.ListPartitionReassignmentsRequest) -> Response:
    """Return an empty list."""
    return Response(error_message=None)


def error_response(
    _context: RequestContext, _request: m.ListPartitionReassignmentsRequest, code: int
) -> Response:
    """Return the error for the request."""
    return Response(error_code=code, error_message=ErrorCode(code).name)


register("ListPartitionReassignments", VERSIONS, handle, error_response)
