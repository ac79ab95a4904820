"""ConsumerGroupHeartbeat (68), versions 0-1: join, stay in or leave a group with the consumer protocol (KIP-848).

From version 1 on the client makes its member id, and may subscribe by a regular expression.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from asyncgroup.broker.errors import shortened
from asyncgroup.broker.groups.consumer.consumer_group_member import TopicIdPartition, by_topic
from asyncgroup.broker.groups.consumer.heartbeat_messages import MemberHeartbeat, MemberHeartbeatResult
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.purgatory import complete_future, new_future
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 1)

Response = m.ConsumerGroupHeartbeatResponse


def handle(
    node: Node, context: RequestContext, request: m.ConsumerGroupHeartbeatRequest
) -> asyncio.Future[Response] | Response:
    """Pass the request to the coordinator; the response is sent when its changes are written."""
    if not node.controller.features.level("group.version"):
        return error_response(context, request, ErrorCode.UNSUPPORTED_VERSION)
    for name in request.subscribed_topic_names or ():
        if name in context.topic_errors:
            return error_response(context, request, context.topic_errors[name])
    future = new_future(Response)

    def reply(result: MemberHeartbeatResult) -> None:
        complete_future(future, lambda: _response(result))

    topics, timeout = request.subscribed_topic_names, request.rebalance_timeout_ms
    node.coordinator.consumer_heartbeat(
        MemberHeartbeat(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout=None if timeout == -1 else timeout / 1000,
            topics=None if topics is None else frozenset(topics),
            regex=request.subscribed_topic_regex,
            server_assignor=request.server_assignor,
            owned=_owned(request.topic_partitions),
            client_id=context.client_id,
            client_host=context.client_host,
        ),
        context.api_version,
        reply,
    )
    return future


def error_response(
    _context: RequestContext, _request: m.ConsumerGroupHeartbeatRequest, code: int
) -> Response:
    """Return the error."""
    return Response(error_code=code, error_message=ErrorCode(code).name)


def _owned(
    topics: Iterable[m.ConsumerGroupHeartbeatRequest.TopicPartitions] | None,
) -> frozenset[TopicIdPartition] | None:
    if topics is None:
        return None
    return frozenset(TopicIdPartition(t.topic_id, index) for t in topics for index in t.partitions)


def _response(result: MemberHeartbeatResult) -> Response:
    if result.error:
        text = None
        if result.error is not ErrorCode.UNKNOWN_SERVER_ERROR:
            text = shortened(result.error_message or result.error.name)
        return Response(error_code=result.error, error_message=text)
    response = Response(
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=round(result.heartbeat_interval * 1000),
    )
    if result.assignment is not None:
        response.assignment = Response.Assignment(
            [Response.TopicPartitions(*each) for each in by_topic(result.assignment).items()]
        )
    return response


register("ConsumerGroupHeartbeat", VERSIONS, handle, error_response)
