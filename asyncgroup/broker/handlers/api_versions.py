"""ApiVersions (18), versions 0-4: the APIs and versions that this node serves.

A request with a version above 4 is answered in version 0 with UNSUPPORTED_VERSION and all ranges (KIP-511;
`net.connection` does that). The features (KIP-584) are those of `metadata.features`.
"""

from __future__ import annotations

import re

from asyncgroup.broker.handlers.registry import register, version_ranges
from asyncgroup.broker.metadata.features import SUPPORTED_FEATURES
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 4)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(node: Node, context: RequestContext, request: m.ApiVersionsRequest) -> m.ApiVersionsResponse:
    """Return all version ranges; from version 3 on the client's software name and version must be well-formed."""
    if context.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return error_response(context, request, ErrorCode.INVALID_REQUEST)
    response = m.ApiVersionsResponse(api_keys=version_ranges())
    if context.api_version >= 3:
        features = node.controller.features
        response.supported_features = [
            response.SupportedFeatureKey(name, low, high)
            for name, (low, high) in SUPPORTED_FEATURES.items()
            # Up to version 3, features with a minimum level of 0 are left out (KAFKA-17011).
            if low > 0 or context.api_version >= 4
        ]
        response.finalized_features = [
            response.FinalizedFeatureKey(name, level, level) for name, level in features.finalized.items()
        ]
        response.finalized_features_epoch = features.epoch
    return response


def error_response(
    _context: RequestContext, _request: m.ApiVersionsRequest, code: int
) -> m.ApiVersionsResponse:
    """Return the error and no ranges."""
    return m.ApiVersionsResponse(error_code=code)


def unsupported_version() -> m.ApiVersionsResponse:
    """Return the response to an unsupported version."""
    return m.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=version_ranges())


register("ApiVersions", VERSIONS, handle, error_response)
