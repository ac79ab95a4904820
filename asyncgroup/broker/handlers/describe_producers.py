"""DescribeProducers (61), version 0: the producers of a partition and their open transactions (KIP-664)."""

from __future__ import annotations

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.topics import check_topic_name
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 0)

Response = m.DescribeProducersResponse
PartitionResponse = m.DescribeProducersResponse.PartitionResponse


def handle(node: Node, context: RequestContext, request: m.DescribeProducersRequest) -> Response:
    """Describe the producers of each partition."""
    return Response(
        topics=[
            Response.TopicResponse(
                topic.name, [_describe(node, context, topic.name, index) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def error_response(_context: RequestContext, request: m.DescribeProducersRequest, code: int) -> Response:
    """Return the error for every partition."""
    name = ErrorCode(code).name
    return Response(
        topics=[
            Response.TopicResponse(
                topic.name, [PartitionResponse(index, code, name) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def _describe(node: Node, context: RequestContext, name: str, index: int) -> PartitionResponse:
    topic = node.controller.topics.get(name)
    try:
        check_topic_name(name)
        partition = node.partition(context, topic, index)
        node.check_replica(partition, -1, leader_only=False)
    except Refused as error:
        # Kafka sends a message only for an unknown or invalid topic.
        return PartitionResponse(index, error.code, str(error) if topic is None else None)
    return PartitionResponse(
        index,
        active_producers=[
            Response.ProducerState(
                producer.id,
                producer.epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.first_offset,
            )
            for producer in partition.log.producers.active_producers()
        ],
    )


register("DescribeProducers", VERSIONS, handle, error_response)
