"""IncrementalAlterConfigs (44), versions 0-1: change some settings of a resource and keep the others (KIP-339)."""

from __future__ import annotations

from asyncgroup.broker.handlers.config_resources import AlterConfigOp, alter_all, apply_changes, refuse_all
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.wire import messages as m

VERSIONS = (0, 1)

Response = m.IncrementalAlterConfigsResponse
ResourceResponse = Response.AlterConfigsResourceResponse


def handle(node: Node, context: RequestContext, request: m.IncrementalAlterConfigsRequest) -> Response:
    """Change the settings of each resource."""
    results = alter_all(
        node,
        context,
        request.resources,
        lambda config: AlterConfigOp(config.name, config.config_operation, config.value),
        apply_changes,
        validate_only=request.validate_only,
    )
    return Response(responses=[ResourceResponse(*result) for result in results])


def error_response(
    _context: RequestContext, request: m.IncrementalAlterConfigsRequest, code: int
) -> Response:
    """Return the error for every resource."""
    return Response(responses=[ResourceResponse(*result) for result in refuse_all(request.resources, code)])


register("IncrementalAlterConfigs", VERSIONS, handle, error_response)
