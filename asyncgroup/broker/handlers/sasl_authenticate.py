"""SaslAuthenticate (36), versions 0-2: a token of the SASL mechanism that SaslHandshake has selected.

From version 1 on the last response contains the session lifetime (KIP-368).
"""

from __future__ import annotations

from asyncgroup.broker.errors import shortened
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.sasl_mechanisms import SaslAuthenticationError
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

_ALREADY_AUTHENTICATED = "SaslAuthenticate request received after successful authentication"

Response = m.SaslAuthenticateResponse


def handle(_node: Node, context: RequestContext, request: m.SaslAuthenticateRequest) -> Response:
    """Pass the token to the SASL exchange, and return the server's token."""
    authenticator = context.authenticator
    if authenticator is None or authenticator.complete:
        return Response(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_ALREADY_AUTHENTICATED)
    try:
        answer, lifetime = authenticator.authenticate(request.auth_bytes)
    except SaslAuthenticationError as error:
        return Response(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=shortened(str(error)))
    return Response(
        auth_bytes=answer, session_lifetime_ms=round(lifetime * 1000) if context.api_version >= 1 else 0
    )


def error_response(_context: RequestContext, _request: m.SaslAuthenticateRequest, code: int) -> Response:
    """Return the error."""
    return Response(error_code=code, error_message=ErrorCode(code).name)


register("SaslAuthenticate", VERSIONS, handle, error_response)
