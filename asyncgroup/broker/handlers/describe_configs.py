"""DescribeConfigs (32), versions 1-4: the settings of topics, nodes and groups (Kafka's `ConfigHelper`).

From version 3 on with documentation, whose texts are not Kafka's. The levels of loggers are settings of a node; client
metrics have no settings here.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.config_resources import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    check_node,
)
from asyncgroup.broker.handlers.node_configs import (
    cluster_configs,
    described_topic,
    group_configs,
    logger_configs,
    node_configs,
)
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.log.topic_configs import ConfigEntry
from asyncgroup.broker.metadata.topics import check_topic_name
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (1, 4)

_KINDS: Final = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})

Resource = m.DescribeConfigsRequest.DescribeConfigsResource
Result = m.DescribeConfigsResponse.DescribeConfigsResult
ResourceResult = m.DescribeConfigsResponse.DescribeConfigsResourceResult


def handle(
    node: Node, context: RequestContext, request: m.DescribeConfigsRequest
) -> m.DescribeConfigsResponse:
    """Describe each resource; one of an unknown type fails the whole request, as in Kafka."""
    if any(resource.resource_type not in _KINDS for resource in request.resources):
        return error_response(context, request, ErrorCode.INVALID_REQUEST)
    return m.DescribeConfigsResponse(
        results=[
            _describe(
                node,
                context,
                resource,
                synonyms=request.include_synonyms,
                documentation=request.include_documentation,
            )
            for resource in request.resources
        ]
    )


def error_response(
    _context: RequestContext, request: m.DescribeConfigsRequest, code: int
) -> m.DescribeConfigsResponse:
    """Return the error for every resource."""
    name = ErrorCode(code).name
    return m.DescribeConfigsResponse(results=[_refused(r, ErrorCode(code), name) for r in request.resources])


def _refused(resource: Resource, code: ErrorCode, message: str) -> Result:
    return Result(code, message, resource.resource_type, resource.resource_name)


def _describe(
    node: Node, context: RequestContext, resource: Resource, *, synonyms: bool, documentation: bool
) -> Result:
    try:
        found = _configs(node, context, resource)
    except Refused as error:
        # Kafka sends no message for an unknown topic.
        unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _refused(resource, error.code, "" if unknown else str(error))
    keys = resource.configuration_keys
    return Result(
        ErrorCode.NONE,
        "",
        resource.resource_type,
        resource.resource_name,
        [
            _shown(
                config,
                synonyms=synonyms,
                # as in Kafka, loggers have an empty documentation, whether it was requested or not
                documentation=""
                if resource.resource_type == BROKER_LOGGER
                else (config.documentation or None)
                if documentation
                else None,
            )
            for config in found
            if not keys or config.name in keys
        ],
    )


def _configs(node: Node, context: RequestContext, resource: Resource) -> list[ConfigEntry]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        check_topic_name(name)
        context.check_topic(name)
        topic = node.controller.topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return described_topic(node, topic)
    if kind == BROKER and not name:
        return cluster_configs(node)
    if kind == BROKER_LOGGER and not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if kind in (BROKER, BROKER_LOGGER):
        check_node(node, name)
        return node_configs(node) if kind == BROKER else logger_configs(node)
    if not name:
        raise Refused(
            ErrorCode.INVALID_REQUEST, "the name of a group or client metrics resource must not be empty"
        )
    return group_configs(node, node.controller.configs.of(GROUP, name)) if kind == GROUP else []


def _shown(config: ConfigEntry, *, synonyms: bool, documentation: str | None) -> ResourceResult:
    return ResourceResult(
        name=config.name,
        value=config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=config.sensitive,
        synonyms=[m.DescribeConfigsResponse.DescribeConfigsSynonym(*synonym) for synonym in config.synonyms]
        if synonyms
        else [],
        config_type=config.type,
        documentation=documentation,
    )


register("DescribeConfigs", VERSIONS, handle, error_response)
