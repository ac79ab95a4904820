"""DescribeUserScramCredentials (50), version 0: the SCRAM mechanisms and iterations of users (KIP-554)."""

from __future__ import annotations

from collections import Counter

from asyncgroup.broker.errors import shortened
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.scram_users import MECHANISM_TYPES
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 0)

Response = m.DescribeUserScramCredentialsResponse
Result = m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


def handle(node: Node, _context: RequestContext, request: m.DescribeUserScramCredentialsRequest) -> Response:
    """Describe the users in the request, or all users if it names none."""
    counts = Counter(user.name for user in request.users or ()) or Counter(node.controller.scram_users.names)
    return Response(results=[_described(node, name, count) for name, count in counts.items()])


def error_response(
    _context: RequestContext, _request: m.DescribeUserScramCredentialsRequest, code: int
) -> Response:
    """Return the error for the request."""
    return Response(error_code=code, error_message=ErrorCode(code).name)


def _described(node: Node, name: str, count: int) -> Result:
    if count > 1:
        return Result(
            name,
            ErrorCode.DUPLICATE_RESOURCE,
            shortened(
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            ),
        )
    infos = []
    for number, mechanism in MECHANISM_TYPES.items():
        credential = node.controller.scram_users.get(mechanism, name)
        if credential is not None:
            infos.append(Response.CredentialInfo(number, credential.iterations))
    if not infos:
        return Result(
            name,
            ErrorCode.RESOURCE_NOT_FOUND,
            shortened(f"Attempt to describe a user credential that does not exist: {name}"),
        )
    return Result(name, ErrorCode.NONE, "", infos)


register("DescribeUserScramCredentials", VERSIONS, handle, error_response)
