"""CreateAcls (30), versions 1-3: create ACLs.

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

Response = m.CreateAclsResponse


def handle(_node: Node, context: RequestContext, request: m.CreateAclsRequest) -> Response:
    """Return SECURITY_DISABLED."""
    return error_response(context, request, ErrorCode.SECURITY_DISABLED)


def error_response(_context: RequestContext, request: m.CreateAclsRequest, code: int) -> Response:
    """Return the error for every ACL."""
    text = _NO_AUTHORIZER if code == ErrorCode.SECURITY_DISABLED else ErrorCode(code).name
    return Response(results=[Response.AclCreationResult(code, text) for _ in request.creations])


register("CreateAcls", VERSIONS, handle, error_response)
