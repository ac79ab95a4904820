"""DescribeGroups (15), versions 0-6: the state and members of groups.

An unknown group is an error from version 6 on (KIP-1043); before it is described as dead.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.errors import shortened
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 6)

ALL_GROUP_OPERATIONS: Final = 0b1101_0100_1000
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS as bits (KIP-430)."""

Described = m.DescribeGroupsResponse.DescribedGroup


def handle(node: Node, context: RequestContext, request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
    """Describe the groups; member metadata is included for stable groups only."""
    described = [_describe(node, context, group_id) for group_id in request.groups]
    if request.include_authorized_operations:
        for group in described:
            if not group.error_code:
                group.authorized_operations = ALL_GROUP_OPERATIONS
    return m.DescribeGroupsResponse(groups=described)


def error_response(
    _context: RequestContext, request: m.DescribeGroupsRequest, code: int
) -> m.DescribeGroupsResponse:
    """Return the error for every group."""
    return m.DescribeGroupsResponse(
        groups=[Described(code, group_id=group_id) for group_id in request.groups]
    )


def _describe(node: Node, context: RequestContext, group_id: str) -> Described:
    if error := node.coordinator.error_for(group_id):
        return Described(error, group_id=group_id)
    group = node.coordinator.groups.get(group_id)
    if group is None:
        described = Described(group_id=group_id, group_state=str(ClassicGroupState.DEAD))
        if context.api_version >= 6:
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            modern = node.coordinator.consumer_groups.get(group_id) is not None
            problem = "is not a classic group" if modern else "not found"
            described.error_message = shortened(f"Group {group_id} {problem}.")
        return described
    stable = group.state is ClassicGroupState.STABLE
    return Described(
        group_id=group_id,
        group_state=str(group.state),
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=_members(group, stable=stable),
    )


def _members(group: ClassicGroup, *, stable: bool) -> list[m.DescribeGroupsResponse.DescribedGroupMember]:
    return [
        m.DescribeGroupsResponse.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client.id,
            client_host=member.client.host,
            member_metadata=member.metadata(group.protocol_name) if stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]


register("DescribeGroups", VERSIONS, handle, error_response)
