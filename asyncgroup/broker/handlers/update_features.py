"""UpdateFeatures (57), versions 0-2: change the levels of features (KIP-584).

The features are fixed at the levels that ApiVersions returns.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.errors import shortened
from asyncgroup.broker.handlers.api_versions import FEATURES
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

_UPGRADE_TYPES: Final = (1, 2, 3)

Response = m.UpdateFeaturesResponse
Update = m.UpdateFeaturesRequest.FeatureUpdateKey


def handle(_node: Node, context: RequestContext, request: m.UpdateFeaturesRequest) -> Response:
    """Accept the levels that features have already; any other level fails the whole request."""
    for update in request.feature_updates:
        problem = _problem(update)
        if problem:
            text = (
                f"Invalid update version {update.max_version_level} for feature {update.feature}. {problem}"
            )
            return Response(
                error_code=ErrorCode.INVALID_UPDATE_VERSION,
                error_message=shortened(
                    f"The update failed for all features since the following feature had an error: {text}"
                ),
            )
    response = Response(error_message=None)
    if context.api_version <= 1:
        response.results = [
            Response.UpdatableFeatureResult(update.feature, ErrorCode.NONE, "NONE")
            for update in request.feature_updates
        ]
    return response


def error_response(_context: RequestContext, _request: m.UpdateFeaturesRequest, code: int) -> Response:
    """Return the error for the request."""
    return Response(error_code=code, error_message=ErrorCode(code).name)


def _problem(update: Update) -> str:
    if update.upgrade_type not in _UPGRADE_TYPES:
        return "The controller does not support the given upgrade type."
    if update.max_version_level < 0:
        return "A feature version cannot be less than 0."
    level = FEATURES.get(update.feature)
    if level is None:
        return "" if update.max_version_level == 0 else "The cluster does not support this feature."
    return "" if update.max_version_level == level else f"The cluster only supports version {level}."


register("UpdateFeatures", VERSIONS, handle, error_response)
