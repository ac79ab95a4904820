"""DeleteRecords (21), versions 0-2: advance the log start offset of partitions (KIP-107).

All replicas share one log, so the response never waits for followers.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.errors import KafkaStorageError, PartitionError
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

_HIGH_WATERMARK: Final = -1
"""The offset that stands for the high watermark: delete everything that consumers can read."""

Response = m.DeleteRecordsResponse
Result = m.DeleteRecordsResponse.DeleteRecordsPartitionResult


def handle(node: Node, context: RequestContext, request: m.DeleteRecordsRequest) -> Response:
    """Advance the log start offset of each partition."""
    # A partition that is named twice has one result, for its last offset.
    wanted = {topic.name: {p.partition_index: p.offset for p in topic.partitions} for topic in request.topics}
    return Response(
        topics=[
            Response.DeleteRecordsTopicResult(
                name, [_delete(node, context, name, index, offset) for index, offset in offsets.items()]
            )
            for name, offsets in wanted.items()
            if offsets
        ]
    )


def error_response(_context: RequestContext, request: m.DeleteRecordsRequest, code: int) -> Response:
    """Return the error for every partition."""
    return Response(
        topics=[
            Response.DeleteRecordsTopicResult(
                topic.name, [Result(p.partition_index, -1, code) for p in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _delete(node: Node, context: RequestContext, name: str, index: int, offset: int) -> Result:
    try:
        topic = node.controller.topics.get(name)
        partition = node.partition(context, topic, index)
        if topic is not None and topic.is_internal:
            raise PartitionError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        node.check_leader(partition)
        if not partition.config.delete:
            raise PartitionError(ErrorCode.POLICY_VIOLATION)
        log = partition.log
        new_start = log.high_watermark if offset == _HIGH_WATERMARK else offset
        if not 0 <= new_start <= log.high_watermark:
            raise PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)
        log.delete_records(new_start)
    except (PartitionError, KafkaStorageError) as error:
        return Result(index, -1, error.code)
    node.complete_delayed_operations(partition)  # wakes parked fetches, whose offset may be out of range now
    return Result(index, log.start_offset, ErrorCode.NONE)


register("DeleteRecords", VERSIONS, handle, error_response)
