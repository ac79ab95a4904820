"""AlterPartitionReassignments (45), versions 0-1: change the replicas of a partition (KIP-455).

Replicas share one log, so nothing is copied: a reassignment is complete when it is answered, and never in progress.
"""

from __future__ import annotations

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 1)

Response = m.AlterPartitionReassignmentsResponse
Result = m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


def handle(node: Node, context: RequestContext, request: m.AlterPartitionReassignmentsRequest) -> Response:
    """Set the replicas of each partition. Null, which cancels a reassignment in progress, gets an error."""
    fixed = not request.allow_replication_factor_change
    return Response(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            Response.ReassignableTopicResponse(
                topic.name,
                [
                    _reassign(node, context, (topic.name, p.partition_index), p.replicas, fixed=fixed)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def error_response(
    _context: RequestContext, request: m.AlterPartitionReassignmentsRequest, code: int
) -> Response:
    """Return the error for the request."""
    return Response(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=code,
        error_message=ErrorCode(code).name,
    )


def _reassign(
    node: Node,
    context: RequestContext,
    topic_partition: tuple[str, int],
    replicas: list[int] | None,
    *,
    fixed: bool,
) -> Result:
    name, index = topic_partition
    try:
        partition = node.partition(context, node.controller.topics.get(name), index)
        if replicas is None:
            return Result(index, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
        if fixed and len(replicas) != len(partition.replicas):
            raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor may not change")
        node.controller.reassign(partition, replicas)
    except Refused as error:
        return Result(index, error.code, str(error))
    return Result(index, ErrorCode.NONE, None)


register("AlterPartitionReassignments", VERSIONS, handle, error_response)
