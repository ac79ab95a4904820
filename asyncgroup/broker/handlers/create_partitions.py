"""CreatePartitions (37), versions 0-3: add partitions to topics."""

from __future__ import annotations

from collections import Counter

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.replicas import MAX_PARTITIONS
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 3)

CreatePartitionsTopic = m.CreatePartitionsRequest.CreatePartitionsTopic
Result = m.CreatePartitionsResponse.CreatePartitionsTopicResult


def handle(
    node: Node, context: RequestContext, request: m.CreatePartitionsRequest
) -> m.CreatePartitionsResponse:
    """Add partitions to each topic, with a result per topic; to none of them if the total exceeds `MAX_PARTITIONS`."""
    known = node.controller.topics
    added = (t.count - len(known[t.name].partitions) for t in request.topics if t.name in known)
    if sum(max(count, 0) for count in added) > MAX_PARTITIONS:
        code = ErrorCode.UNKNOWN_SERVER_ERROR  # as for one topic, see below
        return m.CreatePartitionsResponse(results=[Result(t.name, code, None) for t in request.topics])
    counts = Counter(topic.name for topic in request.topics)
    results = []
    for name, wanted in {topic.name: topic for topic in request.topics}.items():
        code, message = ErrorCode.INVALID_REQUEST, "duplicate topic in request"
        if counts[name] == 1:
            code, message = _create(node, context, wanted, validate_only=request.validate_only)
        results.append(Result(name, code, message or None))
    return m.CreatePartitionsResponse(results=results)


def error_response(
    _context: RequestContext, request: m.CreatePartitionsRequest, code: int
) -> m.CreatePartitionsResponse:
    """Return the error for every topic."""
    return m.CreatePartitionsResponse(
        results=[Result(topic.name, code, ErrorCode(code).name) for topic in request.topics]
    )


def _create(
    node: Node, context: RequestContext, wanted: CreatePartitionsTopic, *, validate_only: bool
) -> tuple[ErrorCode, str]:
    topic = node.controller.topics.get(wanted.name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""
    try:
        context.check_topic(wanted.name)
        node.controller.create_partitions(
            topic,
            wanted.count,
            assignments=[a.broker_ids for a in wanted.assignments or []],
            validate_only=validate_only,
        )
    except Refused as error:
        if error.code is ErrorCode.POLICY_VIOLATION:  # Kafka loses the exception and answers with this code
            return ErrorCode.UNKNOWN_SERVER_ERROR, ""
        return error.code, str(error)
    return ErrorCode.NONE, ""


register("CreatePartitions", VERSIONS, handle, error_response)
