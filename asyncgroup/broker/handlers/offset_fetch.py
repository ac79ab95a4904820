"""OffsetFetch (9), versions 1-10: the committed offsets of groups.

From version 8 on a request may contain several groups (KIP-709), from version 10 on topics are named by id.
Null topics (version 2 and up) stand for all offsets of the group. With `require_stable` (version 7 and up,
KIP-447) partitions with offsets in an open transaction get UNSTABLE_OFFSET_COMMIT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple
from uuid import UUID

from asyncgroup.broker.groups.shared.requests import OffsetAndMetadata
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.purgatory import complete_future, new_future
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

VERSIONS = (1, 10)


class _Topic(NamedTuple):
    """A topic of the response."""

    name: str
    topic_id: UUID
    partitions: list[int]
    error: ErrorCode = ErrorCode.NONE
    requested_id: UUID = m.NO_UUID
    """The id in the request, zero if the topic is named there, or not at all."""


def handle(
    node: Node, context: RequestContext, request: m.OffsetFetchRequest
) -> asyncio.Future[m.OffsetFetchResponse] | m.OffsetFetchResponse:
    """Look up the offsets; -1 where there is none."""
    return (
        _fetch_stable(node, context, request)
        if request.require_stable
        else _answer(node, context, request, {})
    )


def _fetch_stable(
    node: Node, context: RequestContext, request: m.OffsetFetchRequest
) -> asyncio.Future[m.OffsetFetchResponse]:
    """Look up the offsets after all earlier writes are complete.

    A transactional commit that is still being written would be missed otherwise
    (`GroupCoordinatorService.fetchOffsets` schedules an empty write for the same reason).
    """
    names = [group.group_id for group in request.groups] if context.api_version >= 8 else [request.group_id]
    future = new_future(m.OffsetFetchResponse)
    # once each: a group that is named twice has one entry in `errors`
    wanted = dict.fromkeys(names)
    errors: dict[str, ErrorCode] = {}  # has all of `wanted` when the last write is complete

    def written(group_id: str, error: ErrorCode) -> None:
        errors[group_id] = error
        if len(errors) == len(wanted):
            complete_future(future, lambda: _answer(node, context, request, errors))

    for group_id in wanted:
        # this node only waits for writes of the groups that it coordinates
        if error := node.coordinator.error_for(group_id):
            written(group_id, error)
        else:
            node.coordinator.after_writes(group_id, partial(written, group_id))
    # no write will complete, so nothing else would answer
    if not wanted:
        future.set_result(m.OffsetFetchResponse())
    return future


def _answer(
    node: Node, context: RequestContext, request: m.OffsetFetchRequest, errors: Mapping[str, ErrorCode]
) -> m.OffsetFetchResponse:
    if context.api_version >= 8:
        groups = [
            _group(node, context, group, request.require_stable, errors.get(group.group_id, ErrorCode.NONE))
            for group in request.groups
        ]
        return m.OffsetFetchResponse(groups=groups)
    # looked up again: the coordinator may have moved while the writes were waited for
    error = errors.get(request.group_id) or node.coordinator.error_for(request.group_id)
    if error:
        return error_response(context, request, error)
    offsets = node.coordinator.offsets.committed(request.group_id)
    unstable = (
        node.coordinator.offsets.unstable_partitions(request.group_id) if request.require_stable else ()
    )
    # version 1 has no null: an empty list there means no topics
    if request.topics is None:
        topics = _all_topics(node, context, offsets)
    else:
        topics = [_named(context, topic.name, topic.partition_indexes) for topic in request.topics]
    response = m.OffsetFetchResponse
    return response(
        topics=[
            response.OffsetFetchResponseTopic(
                topic.name,
                [
                    response.OffsetFetchResponsePartition(number, *_values(topic, number, offsets, unstable))
                    for number in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


def error_response(
    context: RequestContext, request: m.OffsetFetchRequest, code: int
) -> m.OffsetFetchResponse:
    """Return the error for all groups; in version 1, for every partition."""
    response = m.OffsetFetchResponse
    if context.api_version >= 8:
        groups = [
            response.OffsetFetchResponseGroup(group_id=g.group_id, error_code=code) for g in request.groups
        ]
        return response(groups=groups)
    # the error of a group has a field from there on
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
    error: ErrorCode,
) -> m.OffsetFetchResponse.OffsetFetchResponseGroup:
    response = m.OffsetFetchResponse
    # in this order: only the coordinator knows the members
    error = error or node.coordinator.error_for(group.group_id) or _member_error(node, group)
    if error:
        return response.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
    offsets = node.coordinator.offsets.committed(group.group_id)
    unstable = node.coordinator.offsets.unstable_partitions(group.group_id) if require_stable else ()
    if group.topics is None:
        topics = _all_topics(node, context, offsets)
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
                    response.OffsetFetchResponsePartitions(number, *_values(topic, number, offsets, unstable))
                    for number in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


def _member_error(node: Node, group: m.OffsetFetchRequest.OffsetFetchRequestGroup) -> ErrorCode:
    """Check the member and its epoch, which version 9 and up may name."""
    return node.coordinator.offsets.fetch_error(group.group_id, group.member_id, group.member_epoch)


def _named(context: RequestContext, name: str, partitions: list[int]) -> _Topic:
    return _Topic(name, m.NO_UUID, partitions, context.topic_errors.get(name, ErrorCode.NONE))


def _by_id(node: Node, context: RequestContext, topic_id: UUID, partitions: list[int]) -> _Topic:
    topic = node.controller.topics_by_id.get(topic_id)
    if topic is None:
        # the id goes back to the client, which knows no name for it
        return _Topic("", topic_id, partitions, ErrorCode.UNKNOWN_TOPIC_ID)
    error = context.topic_errors.get(topic.name, ErrorCode.NONE)
    return _Topic(topic.name, topic_id, partitions, error, topic_id)


def _all_topics(node: Node, context: RequestContext, offsets: Iterable[TopicPartition]) -> list[_Topic]:
    """Return the topics with offsets; from version 10 on without deleted topics, which have no id."""
    found: dict[str, list[int]] = {}
    for name, partition in offsets:
        found.setdefault(name, []).append(partition)
    topics = node.controller.topics
    return [
        _Topic(name, topics[name].id if name in topics else m.NO_UUID, partitions)
        for name, partitions in found.items()
        if name in topics or context.api_version < 10
    ]


def _values(
    topic: _Topic,
    partition: int,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    unstable: Collection[TopicPartition],
) -> tuple[int, int, str, ErrorCode]:
    """Return offset, leader epoch, metadata and error of a partition."""
    tp = TopicPartition(topic.name, partition)
    committed = offsets.get(tp)
    # a topic that the client may not see has its error, and says nothing about transactions
    if not topic.error and tp in unstable:
        return -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT
    if topic.error or committed is None or _is_mismatched_topic_id(topic, committed):
        return -1, -1, "", topic.error
    return committed.offset, committed.leader_epoch, committed.metadata, ErrorCode.NONE


def _is_mismatched_topic_id(topic: _Topic, committed: OffsetAndMetadata) -> bool:
    """Whether the offset was committed for another topic with the same name (`isMismatchedTopicId`)."""
    known = m.NO_UUID not in (topic.requested_id, committed.topic_id)
    return known and topic.requested_id != committed.topic_id


register("OffsetFetch", VERSIONS, handle, error_response)
