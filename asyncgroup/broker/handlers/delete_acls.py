"""DeleteAcls (31), versions 1-3: delete ACLs."""

from __future__ import annotations

from asyncgroup.broker.handlers.no_authorizer import error_text, register_refusal
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.wire import messages as m

Response = m.DeleteAclsResponse


def error_response(_context: RequestContext, request: m.DeleteAclsRequest, code: int) -> Response:
    """Return the error for every filter."""
    return Response(
        filter_results=[Response.DeleteAclsFilterResult(code, error_text(code)) for _ in request.filters]
    )


register_refusal("DeleteAcls", error_response)
