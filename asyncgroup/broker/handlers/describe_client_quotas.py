"""DescribeClientQuotas (48), versions 0-1: list client quotas (KIP-546); nothing is throttled."""

from __future__ import annotations

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.quotas import parse_filter
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 1)

Response = m.DescribeClientQuotasResponse


def handle(node: Node, _context: RequestContext, request: m.DescribeClientQuotasRequest) -> Response:
    """Return the matching entities with their quotas."""
    components = [(c.entity_type, c.match_type, c.match) for c in request.components]
    try:
        exact, types = parse_filter(components)
    except Refused as error:
        return Response(error_code=error.code, error_message=str(error), entries=None)
    quotas = node.controller.quotas
    return Response(
        entries=[
            Response.EntryData(
                [Response.EntityData(*part) for part in entity],
                [Response.ValueData(*value) for value in quotas.entries[entity].items()],
            )
            for entity in quotas.find(exact, types, strict=request.strict)
        ],
    )


def error_response(_context: RequestContext, _request: m.DescribeClientQuotasRequest, code: int) -> Response:
    """Return the error for the request."""
    return Response(error_code=code, error_message=ErrorCode(code).name, entries=None)


register("DescribeClientQuotas", VERSIONS, handle, error_response)
