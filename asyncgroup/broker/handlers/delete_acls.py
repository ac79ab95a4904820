"""DeleteAcls (31), versions 1-3: delete ACLs.

Answered with SECURITY_DISABLED, as Kafka without an authorizer does (`AclApis`).
"""

from __future__ import annotations

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (1, 3)

_NO_AUTHORIZER = "No Authorizer is configured."

Response = m.DeleteAclsResponse


def handle(_node: Node, context: RequestContext, request: m.DeleteAclsRequest) -> Response:
    """Return SECURITY_DISABLED."""
    return error_response(context, request, ErrorCode.SECURITY_DISABLED)


def error_response(_context: RequestContext, request: m.DeleteAclsRequest, code: int) -> Response:
    """Return the error."""
    text = _NO_AUTHORIZER if code == ErrorCode.SECURITY_DISABLED else ErrorCode(code).name
    return Response(filter_results=[Response.DeleteAclsFilterResult(code, text) for _ in request.filters])


register("DeleteAcls", VERSIONS, handle, error_response)
