"""AlterConfigs (33), versions 0-2: replace all settings of a topic, node or group.

Settings that are not named return to their defaults.
"""

from __future__ import annotations

from asyncgroup.broker.handlers.config_resources import (
    AlterConfigOp,
    OpType,
    alter_all,
    refuse_all,
    replace_configs,
)
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

Response = m.AlterConfigsResponse
ResourceResponse = Response.AlterConfigsResourceResponse


def handle(node: Node, context: RequestContext, request: m.AlterConfigsRequest) -> Response:
    """Replace the settings of each resource."""
    results = alter_all(
        node,
        context,
        request.resources,
        lambda config: AlterConfigOp(config.name, OpType.SET, config.value),
        replace_configs,
        validate_only=request.validate_only,
    )
    return Response(responses=[ResourceResponse(*result) for result in results])


def error_response(_context: RequestContext, request: m.AlterConfigsRequest, code: int) -> Response:
    """Return the error for every resource."""
    return Response(responses=[ResourceResponse(*result) for result in refuse_all(request.resources, code)])


register("AlterConfigs", VERSIONS, handle, error_response)
