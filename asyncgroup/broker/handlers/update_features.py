"""UpdateFeatures (57), versions 0-2: change the levels of features (KIP-584); `metadata.features` says which and how."""

from __future__ import annotations

from asyncgroup.broker.errors import shortened
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.features import FeatureChange
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

Response = m.UpdateFeaturesResponse


def handle(node: Node, context: RequestContext, request: m.UpdateFeaturesRequest) -> Response:
    """Change all levels, or none if one is refused. Of a feature that is named twice the last level counts."""
    controller, version = node.controller, context.api_version
    # Kafka's controller ignores `allow_downgrade` of version 0, so that each change is an upgrade there
    changes = {
        update.feature: FeatureChange(update.feature, update.max_version_level, update.upgrade_type)
        for update in request.feature_updates
    }
    for change in changes.values():
        if problem := controller.features.problem(change):
            text = f"Invalid update version {change.level} for feature {change.feature}. {problem}"
            return Response(
                error_code=ErrorCode.INVALID_UPDATE_VERSION,
                error_message=shortened(
                    f"The update failed for all features since the following feature had an error: {text}"
                ),
            )
    if not (version >= 1 and request.validate_only):
        controller.update_features({change.feature: change.level for change in changes.values()})
    response = Response(error_message=None)
    if version <= 1:
        response.results = [
            Response.UpdatableFeatureResult(update.feature, ErrorCode.NONE, "NONE")
            for update in request.feature_updates
        ]
    return response


def error_response(_context: RequestContext, _request: m.UpdateFeaturesRequest, code: int) -> Response:
    """Return the error for the request."""
    return Response(error_code=code, error_message=ErrorCode(code).name)


register("UpdateFeatures", VERSIONS, handle, error_response)
