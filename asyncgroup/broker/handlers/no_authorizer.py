"""The answer to requests for ACLs: SECURITY_DISABLED, as Kafka without an authorizer responds (`AclApis`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode

__all__ = ["VERSIONS", "error_text", "register_refusal"]

VERSIONS: Final = (1, 3)
"""Of CreateAcls, DeleteAcls and DescribeAcls."""

Request = TypeVar("Request")
Response = TypeVar("Response")


def register_refusal(api: str, error_response: Callable[[RequestContext, Request, int], Response]) -> None:
    """Answer every request of an API with SECURITY_DISABLED."""

    def handle(_node: Node, context: RequestContext, request: Request) -> Response:
        return error_response(context, request, ErrorCode.SECURITY_DISABLED)

    register(api, VERSIONS, handle, error_response)


def error_text(code: int, no_authorizer: str = "No Authorizer is configured.") -> str:
    """Return the message for an error."""
    return no_authorizer if code == ErrorCode.SECURITY_DISABLED else ErrorCode(code).name
