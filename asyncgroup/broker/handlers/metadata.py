"""Metadata (3), versions 0-13: live nodes and topics; from version 12 on topics can be requested by id.

A topic that does not exist is created if the client and the cluster allow it. As in Kafka this response still says
UNKNOWN_TOPIC_OR_PARTITION; the next one contains the topic.
"""

from __future__ import annotations

import contextlib
from typing import Final
from uuid import UUID

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.partition_results import partition_metadata
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.replicas import MAX_PARTITIONS
from asyncgroup.broker.metadata.topics import Topic, check_topic_name
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 13)

ALL_TOPIC_OPERATIONS: Final = 0b1101_1111_1000
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS as bits (KIP-430)."""

ALL_CLUSTER_OPERATIONS: Final = 0b1_1111_1010_0000
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""

_NOT_REQUESTED: Final = -(2**31)
"""Stands for authorized operations that were not requested."""

_TOPIC_IDS_VERSION: Final = 12
"""The first version in which topics can be requested by id; versions 10 and 11 have the field, but do not allow it."""

TopicData = m.MetadataResponse.MetadataResponseTopic
PartitionMetadata = m.MetadataResponse.MetadataResponsePartition


def handle(node: Node, context: RequestContext, request: m.MetadataRequest) -> m.MetadataResponse:
    """Describe the live nodes and the requested topics."""
    if context.api_version < _TOPIC_IDS_VERSION and any(
        t.name is None or t.topic_id.int for t in request.topics or []
    ):
        return error_response(context, request, ErrorCode.INVALID_REQUEST)
    if any(topic.name is None and topic.topic_id == m.NO_UUID for topic in request.topics or []):
        return error_response(context, request, ErrorCode.UNKNOWN_SERVER_ERROR)
    topics = [_topic(node, context, topic) for topic in _wanted(node, context, request)]
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = ALL_TOPIC_OPERATIONS
    include_cluster = request.include_cluster_authorized_operations
    return m.MetadataResponse(
        brokers=[
            m.MetadataResponse.MetadataResponseBroker(peer.id, peer.advertised_host, peer.port, peer.rack)
            for peer in node.live_peers()
        ],
        cluster_id=node.controller.cluster_id,
        controller_id=node.controller.controller_id,
        topics=topics,
        cluster_authorized_operations=ALL_CLUSTER_OPERATIONS if include_cluster else _NOT_REQUESTED,
    )


def error_response(context: RequestContext, request: m.MetadataRequest, code: int) -> m.MetadataResponse:
    """Return the error for every requested topic; from version 13 on, also for the whole request."""
    topics = [TopicData(code, t.name or "", t.topic_id) for t in request.topics or []]
    return m.MetadataResponse(topics=topics, error_code=code if context.api_version >= 13 else 0)


def _wanted(node: Node, context: RequestContext, request: m.MetadataRequest) -> list[Topic | TopicData]:
    """Return the requested topics; for those that do not exist, the part of the response with the error."""
    controller = node.controller
    if request.topics is None or (context.api_version == 0 and not request.topics):
        return list(controller.topics.values())
    ids = [topic.topic_id for topic in request.topics if topic.topic_id != m.NO_UUID]
    if ids:
        return [controller.topics_by_id.get(topic_id) or _unknown_id(topic_id) for topic_id in ids]
    names = dict.fromkeys(topic.name or "" for topic in request.topics)
    create = node.auto_create_topics and request.allow_auto_topic_creation and len(names) <= MAX_PARTITIONS
    # a request that must not create a topic may only be to find out whether it exists: clients that need it repeat it
    lookup = None if request.allow_auto_topic_creation else context.connection
    return [controller.topics.get(name) or _unknown(node, name, lookup, create=create) for name in names]


def _unknown_id(topic_id: UUID) -> TopicData:
    return TopicData(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)


def _unknown(node: Node, name: str, lookup: int | None, *, create: bool) -> TopicData:
    try:
        check_topic_name(name)
    except Refused as error:
        return TopicData(error.code, name)
    if not create and name not in node.controller.deleted_names:
        node.unknown_topic_requested(name, lookup)
    if create:
        with contextlib.suppress(Refused):  # Kafka creates it later and does not report a failure
            node.controller.create_topic(name)
    return TopicData(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)


def _topic(node: Node, context: RequestContext, topic: Topic | TopicData) -> TopicData:
    if not isinstance(topic, Topic):
        return topic
    error = context.topic_errors.get(topic.name)
    if error is not None:
        return TopicData(error, topic.name, topic.id)
    alive = node.controller.alive
    return TopicData(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            partition_metadata(partition, alive, PartitionMetadata) for partition in topic.partitions
        ],
    )


register("Metadata", VERSIONS, handle, error_response)
