"""CreateAcls (30), versions 1-3: create ACLs."""

from __future__ import annotations

from asyncgroup.broker.handlers.no_authorizer import error_text, register_refusal
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.wire import messages as m

Response = m.CreateAclsResponse


def error_response(_context: RequestContext, request: m.CreateAclsRequest, code: int) -> Response:
    """Return the error for every ACL."""
    return Response(results=[Response.AclCreationResult(code, error_text(code)) for _ in request.creations])


register_refusal("CreateAcls", error_response)
