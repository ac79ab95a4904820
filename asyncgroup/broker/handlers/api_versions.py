"""ApiVersions (18), versions 0-4: what this node serves.

A version above 4 is answered in version 0 with UNSUPPORTED_VERSION and all ranges (KIP-511; the server does
that). The one feature (KIP-584) is `transaction.version` 2, which tells clients to use KIP-890; so they see a
cluster without KIP-848.
"""

from __future__ import annotations

import re
from typing import Final

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import copy_message

VERSIONS = (0, 4)

ADVERTISED: Final[list[m.ApiVersionsResponse.ApiVersion]] = []
"""The ranges of all handlers; filled when they are put together."""

_TRANSACTIONS: Final = "transaction.version"

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(_node: Node, context: RequestContext, request: m.ApiVersionsRequest) -> m.ApiVersionsResponse:
    """Answer with all ranges; from version 3 on the client's name and version must look like such."""
    if context.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return error_response(context, request, ErrorCode.INVALID_REQUEST)
    response = m.ApiVersionsResponse(api_keys=_advertised())
    if context.api_version >= 3:
        if context.api_version >= 4:  # a lowest level of 0 is more than version 3 can say (KAFKA-17011)
            response.supported_features = [response.SupportedFeatureKey(_TRANSACTIONS, 0, 2)]
        response.finalized_features = [response.FinalizedFeatureKey(_TRANSACTIONS, 2, 2)]
        response.finalized_features_epoch = 1
    return response


def error_response(
    _context: RequestContext, _request: m.ApiVersionsRequest, code: int
) -> m.ApiVersionsResponse:
    """An error and no ranges."""
    return m.ApiVersionsResponse(error_code=code)


def _advertised() -> list[m.ApiVersionsResponse.ApiVersion]:
    """The ranges for one response: messages are mutable, and faults and tests change them."""
    return [copy_message(one) for one in ADVERTISED]


def unsupported_version() -> m.ApiVersionsResponse:
    """The answer to a version that is not served."""
    return m.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_advertised())
