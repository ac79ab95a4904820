"""ListPartitionReassignments (46), version 0: those under way (KIP-455), which are none, see
`alter_partition_reassignments`.
"""

from __future__ import annotations

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 0)

Response = m.ListPartitionReassignmentsResponse


def handle(_node: Node, _context: RequestContext, _request: m.ListPartitionReassignmentsRequest) -> Response:
    """None."""
    return Response(error_message=None)


def error_response(
    _context: RequestContext, _request: m.ListPartitionReassignmentsRequest, code: int
) -> Response:
    """The error for the request."""
    return Response(error_code=code, error_message=ErrorCode(code).name)
