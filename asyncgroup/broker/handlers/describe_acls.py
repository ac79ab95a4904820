"""DescribeAcls (29), versions 1-3: list ACLs.

Answered with SECURITY_DISABLED, as Kafka without an authorizer does (`AclApis`).
"""

from __future__ import annotations

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (1, 3)

_NO_AUTHORIZER = "No Authorizer is configured on the broker"

Response = m.DescribeAclsResponse


def handle(_node: Node, context: RequestContext, request: m.DescribeAclsRequest) -> Response:
    """Return SECURITY_DISABLED."""
    return error_response(context, request, ErrorCode.SECURITY_DISABLED)


def error_response(_context: RequestContext, _request: m.DescribeAclsRequest, code: int) -> Response:
    """Return the error."""
    return Response(
        error_code=code,
        error_message=_NO_AUTHORIZER if code == ErrorCode.SECURITY_DISABLED else ErrorCode(code).name,
    )


register("DescribeAcls", VERSIONS, handle, error_response)
