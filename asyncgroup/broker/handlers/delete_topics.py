"""DeleteTopics (20), versions 1-6: delete topics by name, from version 6 on also by id (KIP-516)."""

from __future__ import annotations

from collections import Counter
from typing import Final
from uuid import UUID

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.topics import Topic
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (1, 6)

Result = m.DeleteTopicsResponse.DeletableTopicResult

_TWICE: Final = (ErrorCode.INVALID_REQUEST, "the request names this topic both by name and by id")


def handle(node: Node, context: RequestContext, request: m.DeleteTopicsRequest) -> m.DeleteTopicsResponse:
    """Delete the topics, with a result per topic."""
    # Topic ids are compared by their bytes: see `fetch_sessions._TopicIdKey`.
    requested = [((name, topic_id.bytes), (name, topic_id)) for name, topic_id in _wanted(context, request)]
    counts = Counter(key for key, _ in requested)
    wanted = dict(requested)
    found = Counter(_find(node, *each) for each in wanted.values())
    twice = {topic: Result(topic.name, topic.id, *_TWICE) for topic, n in found.items() if topic and n > 1}
    once = [
        _delete(node, context, *each, again=counts[key] > 1)
        for key, each in wanted.items()
        if _find(node, *each) not in twice
    ]
    return m.DeleteTopicsResponse(responses=[*twice.values(), *once])


def error_response(
    context: RequestContext, request: m.DeleteTopicsRequest, code: int
) -> m.DeleteTopicsResponse:
    """Return the error for every topic."""
    return m.DeleteTopicsResponse(
        responses=[Result(name, topic_id, code) for name, topic_id in _wanted(context, request)]
    )


def _wanted(context: RequestContext, request: m.DeleteTopicsRequest) -> list[tuple[str | None, UUID]]:
    if context.api_version >= 6:
        return [(topic.name, topic.topic_id) for topic in request.topics]
    return [(name, m.NO_UUID) for name in request.topic_names]


def _find(node: Node, name: str | None, topic_id: UUID) -> Topic | None:
    """Return the topic with this name or id; None if there is none, or if both or neither is given."""
    if name is None:
        return node.controller.topics_by_id.get(topic_id)
    return node.controller.topics.get(name) if topic_id == m.NO_UUID else None


def _delete(node: Node, context: RequestContext, name: str | None, topic_id: UUID, *, again: bool) -> Result:
    def refused(code: ErrorCode) -> Result:
        return Result(name, topic_id, code, code.name)

    if again or (name is None) == (topic_id == m.NO_UUID):
        return refused(ErrorCode.INVALID_REQUEST)
    topic = _find(node, name, topic_id)
    if topic is None:
        return refused(ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.name in context.topic_errors:
        return refused(context.topic_errors[topic.name])
    node.delete_topic(topic)
    return Result(topic.name, topic.id)


register("DeleteTopics", VERSIONS, handle, error_response)
