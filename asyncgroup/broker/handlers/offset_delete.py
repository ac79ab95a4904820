"""OffsetDelete (47), version 0: delete a group's offsets for topics that no member subscribes to (KIP-496).

As in Kafka, unknown partitions are rejected here and never reach the coordinator. An error of the group is sent without
partitions.
"""

from __future__ import annotations

import asyncio

from asyncgroup.broker.handlers.partition_results import results_by_topic
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.purgatory import complete_future, new_future
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

VERSIONS = (0, 0)

Errors = dict[TopicPartition, ErrorCode]
Response = m.OffsetDeleteResponse


def handle(
    node: Node, context: RequestContext, request: m.OffsetDeleteRequest
) -> asyncio.Future[Response] | Response:
    """Check the partitions, then pass the others to the coordinator, which writes tombstones."""
    refused: Errors = {}
    partitions: list[TopicPartition] = []
    for topic in request.topics:
        known = node.controller.topics.get(topic.name)
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            if topic.name in context.topic_errors:
                refused[tp] = context.topic_errors[topic.name]
            elif known is None or not 0 <= tp.partition < len(known.partitions):
                refused[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                partitions.append(tp)
    if context.topic_errors and not partitions:
        return _response(request, refused)
    future = new_future(Response)

    def reply(outcome: ErrorCode | Errors) -> None:
        if isinstance(outcome, dict):
            complete_future(future, lambda: _response(request, refused | outcome))
        else:
            complete_future(future, lambda: Response(error_code=outcome))

    node.coordinator.offsets.delete(request.group_id, partitions, reply)
    return future


def error_response(_context: RequestContext, _request: m.OffsetDeleteRequest, code: int) -> Response:
    """Return the error for the group."""
    return Response(error_code=code)


def _response(request: m.OffsetDeleteRequest, errors: Errors) -> Response:
    topic, partition = Response.OffsetDeleteResponseTopic, Response.OffsetDeleteResponsePartition
    return Response(topics=results_by_topic(request.topics, errors, topic, partition))


register("OffsetDelete", VERSIONS, handle, error_response)
