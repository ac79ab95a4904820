"""DescribeTopicPartitions (75), version 0: describe topics in pages (KIP-966).

All live replicas are in sync here, so there are never eligible leader replicas (ELR) outside the ISR.
"""

from __future__ import annotations

from typing import Any, Final

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.metadata import ALL_TOPIC_OPERATIONS
from asyncgroup.broker.handlers.partition_results import partition_metadata
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.topics import check_topic_name
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 0)

MAX_PARTITIONS: Final = 2000
"""Kafka's default of `max.request.partition.size.limit`."""

Response = m.DescribeTopicPartitionsResponse
TopicData = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic


def handle(node: Node, context: RequestContext, request: m.DescribeTopicPartitionsRequest) -> Response:
    """Describe the topics in order of their names, from the cursor on, until the page is full."""
    names = {topic.name for topic in request.topics} or set(node.controller.topics)
    if "" in names:  # also an unexpected error in Kafka
        return error_response(context, request, ErrorCode.UNKNOWN_SERVER_ERROR)
    cursor = request.cursor
    if cursor is not None:
        is_requested = not request.topics or cursor.topic_name in names
        if cursor.partition_index < 0 or not is_requested:
            return error_response(context, request, ErrorCode.INVALID_REQUEST)
        names = {name for name in names if name >= cursor.topic_name}
    left = max(1, min(MAX_PARTITIONS, request.response_partition_limit))
    response = Response()
    for name in sorted(names):
        if left == 0:
            response.next_cursor = Response.Cursor(name, 0)
            break
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        data, following = _describe(node, context, name, first, left)
        response.topics.append(data)
        left -= len(data.partitions)
        if following:
            response.next_cursor = Response.Cursor(name, following)
            break
    return response


def error_response(
    _context: RequestContext, request: m.DescribeTopicPartitionsRequest, code: int
) -> Response:
    """Return the error for every topic in the request."""
    return Response(topics=[TopicData(code, topic.name) for topic in request.topics])


def _describe(
    node: Node, context: RequestContext, name: str, first: int, limit: int
) -> tuple[TopicData, int]:
    """Return a topic with up to `limit` partitions, and the index of the next partition, 0 if there is none."""
    topic = node.controller.topics.get(name)
    try:
        check_topic_name(name)
        context.check_topic(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    except Refused as error:
        return TopicData(error.code, name, topic_authorized_operations=ALL_TOPIC_OPERATIONS), 0
    alive, end = node.controller.alive, first + limit
    data = TopicData(
        name=name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            partition_metadata(partition, alive, _partition) for partition in topic.partitions[first:end]
        ],
        topic_authorized_operations=ALL_TOPIC_OPERATIONS,
    )
    return data, end if end < len(topic.partitions) else 0


def _partition(**fields: Any) -> Response.DescribeTopicPartitionsResponsePartition:
    return Response.DescribeTopicPartitionsResponsePartition(
        **fields, eligible_leader_replicas=[], last_known_elr=[]
    )


register("DescribeTopicPartitions", VERSIONS, handle, error_response)
