"""WriteTxnMarkers (27), versions 1-2: end a hanging transaction (KIP-664).

In Kafka, transaction coordinators send it to partition leaders. Here the nodes share their logs and do not need
it; it is served for admin clients.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.errors import PartitionError
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.transactions.completion import TransactionMarker
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

VERSIONS = (1, 2)

_BUMPS: Final = 2
"""The `transaction.version` from which on the epoch is bumped with the end of each transaction (KIP-890)."""

WritableTxnMarker = m.WriteTxnMarkersRequest.WritableTxnMarker
Response = m.WriteTxnMarkersResponse


def handle(node: Node, context: RequestContext, request: m.WriteTxnMarkersRequest) -> Response:
    """Append each marker to each of its partitions."""
    return Response(
        markers=[_result(requested, node, context, ErrorCode.NONE) for requested in request.markers]
    )


def error_response(context: RequestContext, request: m.WriteTxnMarkersRequest, code: int) -> Response:
    """Return the error for every partition."""
    return Response(
        markers=[_result(requested, None, context, ErrorCode(code)) for requested in request.markers]
    )


def _result(
    requested: WritableTxnMarker, node: Node | None, context: RequestContext, error: ErrorCode
) -> Response.WritableTxnMarkerResult:
    producer = ProducerIdAndEpoch(requested.producer_id, requested.producer_epoch)
    bumps_epoch = requested.transaction_version >= _BUMPS
    marker = TransactionMarker(
        producer, requested.transaction_result, requested.coordinator_epoch, bumps_epoch
    )
    return Response.WritableTxnMarkerResult(
        requested.producer_id,
        [
            Response.WritableTxnMarkerTopicResult(
                topic.name,
                [
                    Response.WritableTxnMarkerPartitionResult(
                        index,
                        error
                        if node is None
                        else _write(node, context, TopicPartition(topic.name, index), marker),
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in requested.topics
        ],
    )


def _write(node: Node, context: RequestContext, tp: TopicPartition, marker: TransactionMarker) -> ErrorCode:
    try:
        partition = node.partition(context, node.controller.topics.get(tp.topic), tp.partition)
        node.check_leader(partition)
    except PartitionError as error:
        return error.code
    return node.transactions.markers.write(tp, marker)


register("WriteTxnMarkers", VERSIONS, handle, error_response)
