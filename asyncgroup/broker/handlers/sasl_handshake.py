"""SaslHandshake (17), versions 0-1: which SASL mechanism the client will use. After version 0 its tokens come without
Kafka's headers.

A listener without SASL, or a client that is authenticated, gets ILLEGAL_SASL_STATE (`KafkaApis`).
"""

from __future__ import annotations

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 1)


def handle(_node: Node, context: RequestContext, request: m.SaslHandshakeRequest) -> m.SaslHandshakeResponse:
    """Begin an exchange by the mechanism, or say which ones there are."""
    if context.authenticator is None:
        return m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    error, mechanisms = context.authenticator.handshake(request.mechanism, context.api_version)
    return m.SaslHandshakeResponse(error_code=error, mechanisms=mechanisms)


def error_response(
    _context: RequestContext, _request: m.SaslHandshakeRequest, code: int
) -> m.SaslHandshakeResponse:
    """The error and no mechanisms."""
    return m.SaslHandshakeResponse(error_code=code)
