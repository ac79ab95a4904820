"""AlterConfigs (33), versions 0-2: replace all settings of a topic, node or group.

Settings that are not named return to their defaults.
"""

from __future__ import annotations

from asyncgroup.broker.handlers.config_resources import SET, AlterConfigOp, alter_all, replace_configs
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

Response = m.AlterConfigsResponse


def handle(node: Node, context: RequestContext, request: m.AlterConfigsRequest) -> Response:
    """Replace the settings of each resource."""
    wanted = [
        (
            (r.resource_type, r.resource_name),
            [AlterConfigOp(config.name, SET, config.value) for config in r.configs],
        )
        for r in request.resources
    ]
    results = alter_all(node, context, wanted, replace_configs, validate_only=request.validate_only)
    return Response(
        responses=[
            Response.AlterConfigsResourceResponse(code, message, *resource)
            for resource, code, message in results
        ]
    )


def error_response(_context: RequestContext, request: m.AlterConfigsRequest, code: int) -> Response:
    """Return the error for every resource."""
    return Response(
        responses=[
            Response.AlterConfigsResourceResponse(
                code, ErrorCode(code).name, r.resource_type, r.resource_name
            )
            for r in request.resources
        ]
    )


register("AlterConfigs", VERSIONS, handle, error_response)
