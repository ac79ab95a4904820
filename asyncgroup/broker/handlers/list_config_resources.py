"""ListConfigResources (74), versions 0-1: the resources that have settings (KIP-1142).

Version 0 is for client metrics resources only, which do not exist here.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.handlers.config_resources import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 1)

_KINDS: Final = (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)

Response = m.ListConfigResourcesResponse


def handle(node: Node, context: RequestContext, request: m.ListConfigResourcesRequest) -> Response:
    """Return all topics and nodes, and the groups with settings; a request without types is for all types."""
    if context.api_version == 0:
        return Response()
    kinds = request.resource_types or _KINDS
    if not set(_KINDS).issuperset(kinds):
        return error_response(context, request, ErrorCode.UNSUPPORTED_VERSION)
    nodes = [str(node_id) for node_id in sorted(node.controller.alive)]
    groups = list(node.controller.configs.groups)
    names = {TOPIC: list(node.controller.topics), BROKER: nodes, BROKER_LOGGER: nodes, GROUP: groups}
    return Response(
        config_resources=[
            Response.ConfigResource(name, kind)
            for kind in _KINDS
            if kind in kinds
            for name in names.get(kind, [])
        ]
    )


def error_response(_context: RequestContext, _request: m.ListConfigResourcesRequest, code: int) -> Response:
    """Return the error for the request."""
    return Response(error_code=code)


register("ListConfigResources", VERSIONS, handle, error_response)
