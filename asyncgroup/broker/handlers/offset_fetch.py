"""OffsetFetch (9), versions 1-10. From 8 on for several groups (KIP-709), from 10 on topics are named by id.

No topics (null, versions 2 and up) asks for all offsets of a group. With `require_stable` (7 and up, KIP-447) a
partition with offsets in an open transaction is answered UNSTABLE_OFFSET_COMMIT.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.coordinator.calls import CommittedOffset
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

VERSIONS = (1, 10)


class _Topic(NamedTuple):
    name: str
    topic_id: UUID
    partitions: list[int]
    error: ErrorCode = ErrorCode.NONE


def handle(node: Node, context: RequestContext, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
    """Look the offsets up; -1 where there is none."""
    if context.api_version >= 8:
        groups = [_group(node, context, group, request.require_stable) for group in request.groups]
        return m.OffsetFetchResponse(groups=groups)
    if error := node.coordinator.error_for(request.group_id):
        return refuse(context, request, error)
    offsets = node.coordinator.offsets(request.group_id)
    pending = node.coordinator.pending(request.group_id) if request.require_stable else ()
    if request.topics is None:
        topics = _all_topics(node, offsets)
    else:
        topics = [_named(context, topic.name, topic.partition_indexes) for topic in request.topics]
    response = m.OffsetFetchResponse
    return response(
        topics=[
            response.OffsetFetchResponseTopic(
                topic.name,
                [
                    response.OffsetFetchResponsePartition(number, *_values(topic, number, offsets, pending))
                    for number in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


def refuse(context: RequestContext, request: m.OffsetFetchRequest, code: int) -> m.OffsetFetchResponse:
    """The error for all groups; version 1 has no place for it but the partitions."""
    response = m.OffsetFetchResponse
    if context.api_version >= 8:
        groups = [
            response.OffsetFetchResponseGroup(group_id=g.group_id, error_code=code) for g in request.groups
        ]
        return response(groups=groups)
    if context.api_version >= 2:
        return response(error_code=code)
    return response(
        topics=[
            response.OffsetFetchResponseTopic(
                topic.name,
                [response.OffsetFetchResponsePartition(n, -1, -1, "", code) for n in topic.partition_indexes],
            )
            for topic in request.topics or []
        ]
    )


def _group(
    node: Node,
    context: RequestContext,
    group: m.OffsetFetchRequest.OffsetFetchRequestGroup,
    require_stable: bool,
) -> m.OffsetFetchResponse.OffsetFetchResponseGroup:
    response = m.OffsetFetchResponse
    if error := node.coordinator.error_for(group.group_id):
        return response.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
    offsets = node.coordinator.offsets(group.group_id)
    pending = node.coordinator.pending(group.group_id) if require_stable else ()
    if group.topics is None:
        topics = _all_topics(node, offsets)
    elif context.api_version >= 10:
        topics = [_by_id(node, context, topic.topic_id, topic.partition_indexes) for topic in group.topics]
    else:
        topics = [_named(context, topic.name, topic.partition_indexes) for topic in group.topics]
    return response.OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=[
            response.OffsetFetchResponseTopics(
                topic.name,
                topic.topic_id,
                [
                    response.OffsetFetchResponsePartitions(number, *_values(topic, number, offsets, pending))
                    for number in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


def _named(context: RequestContext, name: str, partitions: list[int]) -> _Topic:
    return _Topic(name, m.NO_UUID, partitions, context.topic_errors.get(name, ErrorCode.NONE))


def _by_id(node: Node, context: RequestContext, topic_id: UUID, partitions: list[int]) -> _Topic:
    topic = node.controller.topics_by_id.get(topic_id)
    if topic is None:
        return _Topic("", topic_id, partitions, ErrorCode.UNKNOWN_TOPIC_ID)
    return _Topic(topic.name, topic_id, partitions, context.topic_errors.get(topic.name, ErrorCode.NONE))


def _all_topics(node: Node, offsets: Iterable[TopicPartition]) -> list[_Topic]:
    found: dict[str, list[int]] = {}
    for name, partition in offsets:
        found.setdefault(name, []).append(partition)
    topics = node.controller.topics
    return [
        _Topic(name, topics[name].id if name in topics else m.NO_UUID, partitions)
        for name, partitions in found.items()
    ]


def _values(
    topic: _Topic,
    partition: int,
    offsets: Mapping[TopicPartition, CommittedOffset],
    pending: Collection[TopicPartition],
) -> tuple[int, int, str, ErrorCode]:
    """Offset, leader epoch, metadata and error of one partition."""
    tp = TopicPartition(topic.name, partition)
    committed = offsets.get(tp)
    if not topic.error and tp in pending:
        return -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT
    if topic.error or committed is None or _is_of_another(topic, committed):
        return -1, -1, "", topic.error
    return committed.offset, committed.leader_epoch, committed.metadata, ErrorCode.NONE


def _is_of_another(topic: _Topic, committed: CommittedOffset) -> bool:
    """Whether the offset was committed for an earlier topic of this name (Kafka's `isMismatchedTopicId`)."""
    known = m.NO_UUID not in (topic.topic_id, committed.topic_id)
    return known and topic.topic_id != committed.topic_id
