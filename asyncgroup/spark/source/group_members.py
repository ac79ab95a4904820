"""Look up a group's members: a query can commit offsets only to a group without members."""

from __future__ import annotations

from typing import Final, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode
from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.offsets import GROUP_LANE
from asyncgroup.wire import messages as m

__all__ = ["Members", "group_members"]

Members: TypeAlias = list[str]
"""One text per member, with member id, client id and host."""

_NO_GROUP: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID)


async def group_members(cluster: ClusterClient, group_id: str) -> Members:
    """Return the members of a group of the classic or the consumer protocol; none if the group does not exist.

    Makes no retries. Raises BrokerError if the coordinator is not found or the group may not be described, TransportError.
    """
    response = await cluster.coordinators.request(
        group_id, m.DescribeGroupsRequest(groups=[group_id]), lane=GROUP_LANE
    )
    classic = response.groups[0]
    if classic.error_code not in (ErrorCode.NONE, *_NO_GROUP):
        raise _error(cluster, group_id, classic.error_code)
    if classic.members:
        return [_shown(member.client_id, member.client_host, member.member_id) for member in classic.members]
    # DescribeGroups reports a group of the consumer protocol (KIP-848) as missing or dead
    if classic.error_code or classic.group_state == "Dead":
        return await _consumer_members(cluster, group_id)
    return []


async def _consumer_members(cluster: ClusterClient, group_id: str) -> Members:
    request = m.ConsumerGroupDescribeRequest(group_ids=[group_id])
    try:
        response = await cluster.coordinators.request(group_id, request, lane=GROUP_LANE)
    except AsyncGroupError as error:
        if error.retriable:
            raise
        return []  # brokers without KIP-848 have no such groups
    found = response.groups[0]
    if found.error_code in _NO_GROUP:
        return []
    if found.error_code:
        raise _error(cluster, group_id, found.error_code)
    return [_shown(member.client_id, member.client_host, member.member_id) for member in found.members]


def _error(cluster: ClusterClient, group_id: str, code: int) -> BrokerError:
    if code == ErrorCode.NOT_COORDINATOR:
        cluster.coordinators.mark_unknown(group_id)
    return BrokerError(code, f"members of group {group_id!r}")


def _shown(client_id: str, host: str, member_id: str) -> str:
    member, client, where = (
        printable(each, MAX_TEXT_LENGTH) for each in (member_id, client_id, host.removeprefix("/"))
    )
    return f"{member} (client {client!r} at {where})"
