"""AddPartitionsToTxn (24), versions 0-5: add partitions to a transaction.

Clients use versions up to 3. Versions 4 and 5 are for brokers: several transactions in one request, and verification
without adding (KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

VERSIONS = (0, 5)

_BATCHED_VERSION: Final = 4
_PRODUCER_FENCED_VERSION: Final = 2
"""The first version with the error PRODUCER_FENCED (KIP-588)."""

Topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
Transaction = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
TopicResult = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
PartitionResult = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
Response = m.AddPartitionsToTxnResponse


def handle(node: Node, context: RequestContext, request: m.AddPartitionsToTxnRequest) -> Response:
    """Add the partitions to each transaction, all of them or none."""
    if context.api_version >= _BATCHED_VERSION:
        found = [
            Response.AddPartitionsToTxnResult(one.transactional_id, _results(node, context, one))
            for one in request.transactions
        ]
        return Response(results_by_transaction=found)
    one = Transaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return Response(results_by_topic_v3_and_below=_results(node, context, one))


def error_response(context: RequestContext, request: m.AddPartitionsToTxnRequest, code: int) -> Response:
    """Return the error for the request; up to version 3, for every partition."""
    if context.api_version >= _BATCHED_VERSION:
        return Response(error_code=code)
    topics = request.v3_and_below_topics
    errors = dict.fromkeys(_partitions(topics), ErrorCode(code))
    return Response(results_by_topic_v3_and_below=_by_topic(topics, errors))


def _results(node: Node, context: RequestContext, one: Transaction) -> list[TopicResult]:
    partitions = list(_partitions(one.topics))
    errors: dict[TopicPartition, ErrorCode] = {}
    for tp in partitions:
        topic = node.controller.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            errors[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif tp.topic in context.topic_errors:
            errors[tp] = context.topic_errors[tp.topic]
    if errors:
        errors = dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | errors
    else:
        errors = _add_or_verify(node, context, one, partitions)
    return _by_topic(one.topics, errors)


def _add_or_verify(
    node: Node, context: RequestContext, one: Transaction, partitions: list[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    name, producer = one.transactional_id, ProducerIdAndEpoch(one.producer_id, one.producer_epoch)
    error = node.transactions.error_for(name, node.id)
    if not error and one.verify_only:
        return {tp: node.transactions.verify(name, producer, tp) for tp in partitions}
    if not error:
        error = node.transactions.add_partitions(name, producer, partitions)
    if error is ErrorCode.PRODUCER_FENCED and context.api_version < _PRODUCER_FENCED_VERSION:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return dict.fromkeys(partitions, error)


def _partitions(topics: Iterable[Topic]) -> Iterable[TopicPartition]:
    return (TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def _by_topic(topics: Iterable[Topic], errors: dict[TopicPartition, ErrorCode]) -> list[TopicResult]:
    return [
        TopicResult(
            topic.name,
            [PartitionResult(index, errors[TopicPartition(topic.name, index)]) for index in topic.partitions],
        )
        for topic in topics
    ]


register("AddPartitionsToTxn", VERSIONS, handle, error_response)
