"""DescribeAcls (29), versions 1-3: list ACLs."""

from __future__ import annotations

from asyncgroup.broker.handlers.no_authorizer import error_text, register_refusal
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.wire import messages as m

Response = m.DescribeAclsResponse


def error_response(_context: RequestContext, _request: m.DescribeAclsRequest, code: int) -> Response:
    """Return the error."""
    return Response(
        error_code=code, error_message=error_text(code, "No Authorizer is configured on the broker")
    )


register_refusal("DescribeAcls", error_response)
