"""OffsetCommit (8), versions 2-10: commit offsets of a group; from version 10 on topics are named by id.

As in Kafka, unknown partitions are rejected here and never reach the coordinator.
"""

from __future__ import annotations

import asyncio

from asyncgroup.broker.groups.shared.requests import CommitRequest, OffsetAndMetadata, RequestMember
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.purgatory import complete_future, new_future
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

VERSIONS = (2, 10)

Results = dict[tuple[int, int], ErrorCode]
"""Errors by position in the request: (index of the topic, index of the partition)."""


def handle(
    node: Node, context: RequestContext, request: m.OffsetCommitRequest
) -> asyncio.Future[m.OffsetCommitResponse] | m.OffsetCommitResponse:
    """Check the partitions, then pass the offsets to the coordinator."""
    results: Results = {}
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    positions: dict[TopicPartition, list[tuple[int, int]]] = {}  # several if a partition is named twice
    for i, topic in enumerate(request.topics):
        name, error = _resolve(node, context, topic)
        count = len(node.controller.topics[name].partitions) if not error else 0
        for j, partition in enumerate(topic.partitions):
            if error or not 0 <= partition.partition_index < count:
                results[i, j] = error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            key = TopicPartition(name, partition.partition_index)
            positions.setdefault(key, []).append((i, j))
            offsets[key] = OffsetAndMetadata(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
                topic_id=node.controller.topics[name].id,
            )
    if request.topics and not offsets:
        return _response(request, results)
    future = new_future(m.OffsetCommitResponse)

    def answer(outcome: ErrorCode | dict[TopicPartition, ErrorCode]) -> m.OffsetCommitResponse:
        for key, same in positions.items():
            results.update(dict.fromkeys(same, outcome[key] if isinstance(outcome, dict) else outcome))
        return _response(request, results)

    def reply(outcome: ErrorCode | dict[TopicPartition, ErrorCode]) -> None:
        complete_future(future, lambda: answer(outcome))

    node.coordinator.offsets.commit(
        CommitRequest(
            group_id=request.group_id,
            member=RequestMember(
                request.member_id, request.generation_id_or_member_epoch, request.group_instance_id
            ),
            api_version=context.api_version,
            offsets=offsets,
            retention=request.retention_time_ms / 1000 if request.retention_time_ms >= 0 else None,
        ),
        reply,
    )
    return future


def error_response(
    _context: RequestContext, request: m.OffsetCommitRequest, code: int
) -> m.OffsetCommitResponse:
    """Return the error for every partition."""
    error = ErrorCode(code)
    return _response(
        request, {(i, j): error for i, t in enumerate(request.topics) for j in range(len(t.partitions))}
    )


def _resolve(
    node: Node, context: RequestContext, topic: m.OffsetCommitRequest.OffsetCommitRequestTopic
) -> tuple[str, ErrorCode]:
    if context.api_version >= 10:
        known = node.controller.topics_by_id.get(topic.topic_id)
        if known is None:
            return "", ErrorCode.UNKNOWN_TOPIC_ID
        name = known.name
    else:
        name = topic.name
    if name not in node.controller.topics:
        return name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return name, context.topic_errors.get(name, ErrorCode.NONE)


def _response(request: m.OffsetCommitRequest, results: Results) -> m.OffsetCommitResponse:
    return m.OffsetCommitResponse(
        topics=[
            m.OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    m.OffsetCommitResponse.OffsetCommitResponsePartition(p.partition_index, results[i, j])
                    for j, p in enumerate(topic.partitions)
                ],
            )
            for i, topic in enumerate(request.topics)
            if topic.partitions
        ]
    )


register("OffsetCommit", VERSIONS, handle, error_response)
