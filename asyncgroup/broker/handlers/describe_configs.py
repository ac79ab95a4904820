"""DescribeConfigs (32), versions 1-4, for topics; a node (resource type 4) has no settings to show.

Gap: no synonyms and no documentation.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.topic_configs import topic_configs
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (1, 4)

_TOPIC: Final = 2
_BROKER: Final = 4

Resource = m.DescribeConfigsRequest.DescribeConfigsResource
Result = m.DescribeConfigsResponse.DescribeConfigsResult


def handle(
    node: Node, context: RequestContext, request: m.DescribeConfigsRequest
) -> m.DescribeConfigsResponse:
    """Describe each resource."""
    return m.DescribeConfigsResponse(results=[_describe(node, context, r) for r in request.resources])


def refuse(
    _context: RequestContext, request: m.DescribeConfigsRequest, code: int
) -> m.DescribeConfigsResponse:
    """The error for every resource."""
    return m.DescribeConfigsResponse(results=[_refused(r, ErrorCode(code)) for r in request.resources])


def _refused(resource: Resource, code: ErrorCode) -> Result:
    return Result(code, code.name, resource.resource_type, resource.resource_name)


def _describe(node: Node, context: RequestContext, resource: Resource) -> Result:
    if resource.resource_type == _BROKER:
        return Result(ErrorCode.NONE, None, resource.resource_type, resource.resource_name)
    if resource.resource_type != _TOPIC:
        return _refused(resource, ErrorCode.INVALID_REQUEST)
    topic = node.controller.topics.get(resource.resource_name)
    if topic is None:
        return _refused(resource, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.name in context.topic_errors:
        return _refused(resource, context.topic_errors[topic.name])
    keys = resource.configuration_keys
    return Result(
        ErrorCode.NONE,
        None,
        resource.resource_type,
        resource.resource_name,
        [
            m.DescribeConfigsResponse.DescribeConfigsResourceResult(
                name=config.name,
                value=config.value,
                config_source=config.source,
                config_type=config.type,
                documentation=None,
            )
            for config in topic_configs(topic.configs)
            if not keys or config.name in keys
        ],
    )
