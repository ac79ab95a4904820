"""DescribeCluster (60), versions 0-2: the brokers of the cluster. There are no separate controllers to describe."""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.handlers.metadata import ALL_CLUSTER_OPERATIONS
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def handle(
    node: Node, context: RequestContext, request: m.DescribeClusterRequest
) -> m.DescribeClusterResponse:
    """Return the live nodes."""
    if request.endpoint_type == _CONTROLLERS:
        return error_response(context, request, ErrorCode.MISMATCHED_ENDPOINT_TYPE)
    if request.endpoint_type != _BROKERS:
        return error_response(context, request, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)
    response = m.DescribeClusterResponse(
        cluster_id=node.controller.cluster_id,
        controller_id=node.controller.controller_id,
        brokers=[
            m.DescribeClusterResponse.DescribeClusterBroker(
                peer.id, peer.advertised_host, peer.port, peer.rack
            )
            for peer in node.live_peers()
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = ALL_CLUSTER_OPERATIONS
    return response


def error_response(
    _context: RequestContext, _request: m.DescribeClusterRequest, code: int
) -> m.DescribeClusterResponse:
    """Return the error and no nodes."""
    return m.DescribeClusterResponse(error_code=code, error_message=ErrorCode(code).name)


register("DescribeCluster", VERSIONS, handle, error_response)
