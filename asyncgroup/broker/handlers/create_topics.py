"""CreateTopics (19), versions 2-7: create topics.

Any node accepts the request, as with KRaft. The topic exists when the response is sent.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.node_configs import described_topic
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.replicas import MAX_PARTITIONS
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (2, 7)

_METADATA: Final = "__cluster_metadata"
"""The name of the controllers' log, which must not be used for a topic (`Topic.CLUSTER_METADATA_TOPIC_NAME`)."""

Creatable = m.CreateTopicsRequest.CreatableTopic
Result = m.CreateTopicsResponse.CreatableTopicResult


def handle(node: Node, context: RequestContext, request: m.CreateTopicsRequest) -> m.CreateTopicsResponse:
    """Create the topics, with a result per topic; none of them if their partitions exceed `MAX_PARTITIONS`."""
    if (
        sum(len(topic.assignments) or max(topic.num_partitions, 1) for topic in request.topics)
        > MAX_PARTITIONS
    ):
        return error_response(context, request, ErrorCode.POLICY_VIOLATION)
    counts = Counter(topic.name for topic in request.topics)
    results = []
    for name, topic in {topic.name: topic for topic in request.topics}.items():
        if counts[name] > 1:
            results.append(_refused(name, ErrorCode.INVALID_REQUEST, "found multiple entries for this topic"))
        else:
            results.append(_create(node, context, topic, validate_only=request.validate_only))
    return m.CreateTopicsResponse(topics=results)


def error_response(
    _context: RequestContext, request: m.CreateTopicsRequest, code: int
) -> m.CreateTopicsResponse:
    """Return the error for every topic."""
    return m.CreateTopicsResponse(topics=[_refused(topic.name, ErrorCode(code)) for topic in request.topics])


def _create(node: Node, context: RequestContext, topic: Creatable, *, validate_only: bool) -> Result:
    if topic.name in context.topic_errors:
        return _refused(topic.name, context.topic_errors[topic.name])
    if topic.name == _METADATA:
        return _refused(topic.name, ErrorCode.INVALID_REQUEST, f"{_METADATA} is reserved for the controllers")
    assignments = [a.broker_ids for a in sorted(topic.assignments, key=lambda a: a.partition_index)]
    try:
        created = node.controller.create_topic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            assignments=assignments,
            configs={config.name: config.value for config in topic.configs},
            validate_only=validate_only,
        )
    except Refused as error:
        return _refused(topic.name, error.code, str(error))
    return Result(
        name=created.name,
        topic_id=created.id,
        error_message=None,
        num_partitions=len(created.partitions),
        replication_factor=len(created.partitions[0].replicas),
        configs=[
            m.CreateTopicsResponse.CreatableTopicConfigs(c.name, c.value, config_source=c.source)
            for c in described_topic(node, created)
        ],
    )


def _refused(name: str, code: ErrorCode, message: str | None = None) -> Result:
    return Result(name=name, error_code=code, error_message=message or code.name)


register("CreateTopics", VERSIONS, handle, error_response)
