"""OffsetForLeaderEpoch (23), versions 2-4: the end offset of a leader epoch (KIP-320)."""

from __future__ import annotations

from asyncgroup.broker.errors import PartitionError
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (2, 4)

EpochEndOffset = m.OffsetForLeaderEpochResponse.EpochEndOffset


def handle(
    node: Node, context: RequestContext, request: m.OffsetForLeaderEpochRequest
) -> m.OffsetForLeaderEpochResponse:
    """Look up the epochs."""
    return m.OffsetForLeaderEpochResponse(
        topics=[
            m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic.topic, [_answer(node, context, topic.topic, p) for p in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def error_response(
    _context: RequestContext, request: m.OffsetForLeaderEpochRequest, code: int
) -> m.OffsetForLeaderEpochResponse:
    """Return the error for every partition."""
    return m.OffsetForLeaderEpochResponse(
        topics=[
            m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic.topic, [EpochEndOffset(code, p.partition) for p in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _answer(
    node: Node,
    context: RequestContext,
    name: str,
    requested: m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition,
) -> EpochEndOffset:
    try:
        partition = node.partition(context, node.controller.topics.get(name), requested.partition)
        node.check_leader(partition, requested.current_leader_epoch)
    except PartitionError as error:
        return EpochEndOffset(error.code, requested.partition)
    epoch, end_offset = partition.log.end_offset_for_epoch(requested.leader_epoch)
    return EpochEndOffset(ErrorCode.NONE, requested.partition, epoch, end_offset)


register("OffsetForLeaderEpoch", VERSIONS, handle, error_response)
