"""SaslHandshake (17), versions 0-1: select the SASL mechanism. After version 0 tokens are sent without Kafka's headers.

On a listener without SASL, or after authentication, the error is ILLEGAL_SASL_STATE (`KafkaApis`).
"""

from __future__ import annotations

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 1)


def handle(_node: Node, context: RequestContext, request: m.SaslHandshakeRequest) -> m.SaslHandshakeResponse:
    """Begin an exchange with the requested mechanism; the response lists all mechanisms."""
    if context.authenticator is None:
        return m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    error, mechanisms = context.authenticator.handshake(request.mechanism, context.api_version)
    return m.SaslHandshakeResponse(error_code=error, mechanisms=mechanisms)


def error_response(
    _context: RequestContext, _request: m.SaslHandshakeRequest, code: int
) -> m.SaslHandshakeResponse:
    """Return the error and no mechanisms."""
    return m.SaslHandshakeResponse(error_code=code)


register("SaslHandshake", VERSIONS, handle, error_response)
