"""TxnOffsetCommit (28), versions 0-5: commit offsets of a group in a transaction (KIP-98, KIP-447).

From version 5 on it also adds the group to the transaction (KIP-890).
"""

from __future__ import annotations

import asyncio
from typing import Final

from asyncgroup.broker.groups.shared.requests import CommitRequest, OffsetAndMetadata, RequestMember
from asyncgroup.broker.handlers.partition_results import results_by_topic
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.purgatory import complete_future, new_future
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

VERSIONS = (0, 5)

_ABORTABLE_ERROR_VERSION: Final = 4
_ADDS_PARTITIONS_VERSION: Final = 5

Errors = dict[TopicPartition, ErrorCode]
Response = m.TxnOffsetCommitResponse


def handle(
    node: Node, context: RequestContext, request: m.TxnOffsetCommitRequest
) -> asyncio.Future[Response] | Response:
    """Check the partitions and the transaction, then pass the offsets to the group coordinator."""
    errors, offsets = _split_offsets(node, context, request)
    if request.topics and not offsets:
        return _response(request, errors)
    if error := _check_transaction(node, context, request):
        return _response(request, dict.fromkeys(offsets, error) | errors)
    future = new_future(Response)

    def reply(outcome: ErrorCode | Errors) -> None:
        results = outcome if isinstance(outcome, dict) else dict.fromkeys(offsets, outcome)
        complete_future(future, lambda: _response(request, results | errors))

    node.coordinator.offsets.commit_transactional(
        CommitRequest(
            group_id=request.group_id,
            member=RequestMember(request.member_id, request.generation_id, request.group_instance_id),
            api_version=context.api_version,
            offsets=offsets,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
        ),
        reply,
    )
    return future


def error_response(_context: RequestContext, request: m.TxnOffsetCommitRequest, code: int) -> Response:
    """Return the error for every partition."""
    partitions = (TopicPartition(t.name, p.partition_index) for t in request.topics for p in t.partitions)
    return _response(request, dict.fromkeys(partitions, ErrorCode(code)))


def _split_offsets(
    node: Node, context: RequestContext, request: m.TxnOffsetCommitRequest
) -> tuple[Errors, dict[TopicPartition, OffsetAndMetadata]]:
    errors: Errors = {}
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in request.topics:
        known = node.controller.topics.get(topic.name)
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if known is None or not 0 <= tp.partition < len(known.partitions):
                errors[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif topic.name in context.topic_errors:
                errors[tp] = context.topic_errors[topic.name]
            else:
                offsets[tp] = OffsetAndMetadata(
                    p.committed_offset, p.committed_leader_epoch, p.committed_metadata or ""
                )
    return errors, offsets


def _check_transaction(node: Node, context: RequestContext, request: m.TxnOffsetCommitRequest) -> ErrorCode:
    """Check the group and its transaction; return NONE or an error code of the group coordinator."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if error := node.coordinator.error_for(request.group_id):
        return error
    error = node.transactions.add_or_verify(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        node.transactions.offsets_topic_partition(request.group_id),
        add_partition=context.api_version >= _ADDS_PARTITIONS_VERSION,
        supports_abortable_error=context.api_version >= _ABORTABLE_ERROR_VERSION,
    )
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if error is ErrorCode.NOT_ENOUGH_REPLICAS else error


def _response(request: m.TxnOffsetCommitRequest, errors: Errors) -> Response:
    topic, partition = Response.TxnOffsetCommitResponseTopic, Response.TxnOffsetCommitResponsePartition
    return Response(topics=results_by_topic(request.topics, errors, topic, partition))


register("TxnOffsetCommit", VERSIONS, handle, error_response)
