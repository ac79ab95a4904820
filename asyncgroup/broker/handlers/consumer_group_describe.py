"""ConsumerGroupDescribe (69), versions 0-1: the epochs and members of groups with the consumer protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable

from asyncgroup.broker.errors import shortened
from asyncgroup.broker.groups.consumer.consumer_group_member import (
    ConsumerGroupMember,
    TopicIdPartition,
    by_topic,
)
from asyncgroup.broker.groups.consumer.consumer_group_records import member_fields
from asyncgroup.broker.groups.consumer.heartbeat import DEFAULT_ASSIGNOR
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.handlers.describe_groups import ALL_GROUP_OPERATIONS
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 1)

_CLASSIC_TYPE, _CONSUMER_TYPE = 0, 1
"""The member types of members with the classic and the consumer protocol (version 1)."""

Response = m.ConsumerGroupDescribeResponse
Described = Response.DescribedGroup


def handle(node: Node, context: RequestContext, request: m.ConsumerGroupDescribeRequest) -> Response:
    """Describe the groups, each with its own error."""
    if not node.controller.features.level("group.version"):
        return error_response(context, request, ErrorCode.UNSUPPORTED_VERSION)
    described = [_describe(node, group_id) for group_id in request.group_ids]
    if request.include_authorized_operations:
        for group in described:
            if not group.error_code:
                group.authorized_operations = ALL_GROUP_OPERATIONS
    return Response(groups=described)


def error_response(_context: RequestContext, request: m.ConsumerGroupDescribeRequest, code: int) -> Response:
    """Return the error for every group."""
    return Response(groups=[Described(code, group_id=group_id) for group_id in request.group_ids])


def _describe(node: Node, group_id: str) -> Described:
    if not group_id:
        return Described(ErrorCode.INVALID_GROUP_ID, group_id=group_id)
    if error := node.coordinator.error_for(group_id):
        return Described(error, group_id=group_id)
    group = node.coordinator.consumer_groups.get(group_id)
    if group is None:
        classic = group_id in node.coordinator.groups
        text = f"Group {group_id} {'is not a consumer group' if classic else 'not found'}."
        return Described(ErrorCode.GROUP_ID_NOT_FOUND, shortened(text), group_id)
    return Described(
        group_id=group_id,
        group_state=str(group.state),
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or DEFAULT_ASSIGNOR,
        members=[_member(node, group, member) for member in group.members.values()],
    )


def _member(node: Node, group: ModernGroup, member: ConsumerGroupMember) -> Response.Member:
    return Response.Member(
        member_id=member.member_id,
        **member_fields(member),
        member_epoch=member.epoch,
        assignment=_assignment(node, [*member.assigned, *member.revoking]),
        target_assignment=_assignment(node, group.target(member)),
        member_type=_CONSUMER_TYPE if member.classic is None else _CLASSIC_TYPE,
    )


def _assignment(node: Node, partitions: Iterable[TopicIdPartition]) -> Response.Assignment:
    """Return the partitions of topics that still exist."""
    names = {
        topic_id: node.coordinator.consumer_groups.topics.name_of(topic_id) for topic_id, _ in partitions
    }
    return Response.Assignment(
        [
            Response.TopicPartitions(topic_id, name, indexes)
            for topic_id, indexes in by_topic(partitions).items()
            if (name := names[topic_id]) is not None
        ]
    )


register("ConsumerGroupDescribe", VERSIONS, handle, error_response)
