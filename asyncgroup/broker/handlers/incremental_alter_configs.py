"""IncrementalAlterConfigs (44), versions 0-1: change some settings of a resource and keep the others (KIP-339)."""

from __future__ import annotations

from asyncgroup.broker.handlers.config_resources import AlterConfigOp, alter_all, apply_changes
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 1)

Response = m.IncrementalAlterConfigsResponse


def handle(node: Node, context: RequestContext, request: m.IncrementalAlterConfigsRequest) -> Response:
    """Change the settings of each resource."""
    wanted = [
        (
            (r.resource_type, r.resource_name),
            [AlterConfigOp(config.name, config.config_operation, config.value) for config in r.configs],
        )
        for r in request.resources
    ]
    results = alter_all(node, context, wanted, apply_changes, validate_only=request.validate_only)
    return Response(
        responses=[
            Response.AlterConfigsResourceResponse(code, message, *resource)
            for resource, code, message in results
        ]
    )


def error_response(
    _context: RequestContext, request: m.IncrementalAlterConfigsRequest, code: int
) -> Response:
    """Return the error for every resource."""
    return Response(
        responses=[
            Response.AlterConfigsResourceResponse(
                code, ErrorCode(code).name, r.resource_type, r.resource_name
            )
            for r in request.resources
        ]
    )


register("IncrementalAlterConfigs", VERSIONS, handle, error_response)
