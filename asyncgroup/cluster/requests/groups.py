"""List groups at all nodes; describe and delete them, and remove their members, at their coordinators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.requests.fan_out import request_apart, request_each
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import AtCoordinator, ByCoordinator, ByNode, Target
from asyncgroup.cluster.requests.unanswered import Unanswered
from asyncgroup.errors import BrokerError, ErrorCode, UnsupportedVersionError
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = [
    "ClassicGroup",
    "ListedGroup",
    "MemberToRemove",
    "ModernGroup",
    "delete_groups",
    "describe_consumer_groups",
    "describe_groups",
    "list_groups",
    "remove_members",
]

ClassicGroup: TypeAlias = "m.DescribeGroupsResponse.DescribedGroup"
ModernGroup: TypeAlias = "m.ConsumerGroupDescribeResponse.DescribedGroup"

ListedGroup: TypeAlias = "m.ListGroupsResponse.ListedGroup"

STATES_VERSION: Final = 4
"""The lowest version of ListGroups that filters by state (KIP-518, Kafka 2.6)."""
TYPES_VERSION: Final = 5
"""The lowest version of ListGroups that filters by type (KIP-848, Kafka 3.8)."""
MEMBERS_VERSION: Final = 3
"""The lowest version of LeaveGroup with several members, and with static ones by instance id (KIP-345, Kafka 2.4)."""


async def list_groups(
    cluster: ClusterClient,
    *,
    states: Iterable[str] = (),
    types: Iterable[str] = (),
    retry: RetryLoop | None = None,
) -> Results[int, list[ListedGroup]]:
    """Return the groups that each node coordinates, or the node's error; no filter means all. Raises ClosedError.

    A group whose coordinator moves during the call may be listed by two nodes, or by none. A node that cannot filter has
    UnsupportedVersionError.
    """
    # once: an iterator would be empty when the message is built for the second node
    wanted_states, wanted_types = list(states), list(types)

    def build(version: int) -> m.ListGroupsRequest:
        # each node may have another version; one that cannot filter would return all its groups
        if wanted_types and version < TYPES_VERSION:
            raise UnsupportedVersionError("this broker does not list groups by type (Kafka 3.8 does)")
        if wanted_states and version < STATES_VERSION:
            raise UnsupportedVersionError("this broker does not list groups by state (Kafka 2.6 does)")
        return m.ListGroupsRequest(states_filter=wanted_states, types_filter=wanted_types)

    async def ask(target: Target, nodes: list[int]) -> Results[int, list[ListedGroup]]:
        response = await target.request(m.ListGroupsRequest, build)
        # `nodes` has one node: the others have their own request
        if response.error_code:
            return Results.failed(nodes, BrokerError(response.error_code, f"groups of {target}"))
        return Results(dict.fromkeys(nodes, response.groups))

    nodes = sorted(cluster.view.brokers)
    return await request_apart(nodes, ByNode(cluster), ask, api="ListGroups", retry=retry)


async def describe_groups(
    cluster: ClusterClient,
    group_ids: Iterable[str],
    *,
    lane: str = CONTROL,
    retry: RetryLoop | None = None,
) -> Results[str, ClassicGroup]:
    """Return what the coordinators know of groups of the classic protocol (DescribeGroups). Raises ClosedError.

    `lane` is the purpose of the connections. A group that does not exist has the state "Dead", from version 6 on the error
    GROUP_ID_NOT_FOUND; so has one of the consumer protocol.
    """

    async def ask(target: Target, asked: list[str]) -> Results[str, ClassicGroup]:
        request = m.DescribeGroupsRequest(groups=asked)
        response = await target.request(m.DescribeGroupsRequest, lambda _: request, lane=lane)
        results: Results[str, ClassicGroup] = Results()
        for group in response.groups:
            if group.error_code:
                results.errors[group.group_id] = _error(group.error_code, group.group_id, group.error_message)
            else:
                results.values[group.group_id] = group
        return results

    return await request_apart(group_ids, ByCoordinator(cluster), ask, api="DescribeGroups", retry=retry)


async def describe_consumer_groups(
    cluster: ClusterClient,
    group_ids: Iterable[str],
    *,
    lane: str = CONTROL,
    retry: RetryLoop | None = None,
) -> Results[str, ModernGroup]:
    """As `describe_groups`, of groups of the consumer protocol (ConsumerGroupDescribe, KIP-848)."""

    async def ask(target: Target, asked: list[str]) -> Results[str, ModernGroup]:
        request = m.ConsumerGroupDescribeRequest(group_ids=asked)
        response = await target.request(m.ConsumerGroupDescribeRequest, lambda _: request, lane=lane)
        results: Results[str, ModernGroup] = Results()
        for group in response.groups:
            if group.error_code:
                results.errors[group.group_id] = _error(group.error_code, group.group_id, group.error_message)
            else:
                results.values[group.group_id] = group
        return results

    return await request_apart(
        group_ids, ByCoordinator(cluster), ask, api="ConsumerGroupDescribe", retry=retry
    )


def _error(code: int, group_id: str, detail: str | None) -> BrokerError:
    return BrokerError(code, f"members of group {group_id!r}", detail)


async def delete_groups(
    cluster: ClusterClient, group_ids: Iterable[str], *, retry: RetryLoop | None = None
) -> Results[str, None]:
    """Delete groups without members; return the error of each one that could not be deleted. Raises ClosedError."""

    async def ask(target: Target, asked: list[str]) -> Results[str, None]:
        request = m.DeleteGroupsRequest(groups_names=asked)
        response = await target.request(m.DeleteGroupsRequest, lambda _: request)
        codes = {result.group_id: result.error_code for result in response.results}
        # one response has the results of several groups, each by itself
        errors = {name: BrokerError(code, f"deleting group {name!r}") for name, code in codes.items() if code}
        return Results({name: None for name, code in codes.items() if not code}, {**errors})

    return await request_apart(group_ids, ByCoordinator(cluster), ask, api="DeleteGroups", retry=retry)


class MemberToRemove(NamedTuple):
    """A member, by its member id or, if it is static, by its instance id (KIP-345)."""

    member_id: str = ""
    """Its member id; empty if the instance id names it."""
    group_instance_id: str | None = None
    """The instance id of a static member. Beside a member id, a member that has taken the instance over is not removed."""

    def __str__(self) -> str:
        if self.group_instance_id is None:
            return f"member {self.member_id!r}"
        of = f" of member {self.member_id!r}" if self.member_id else ""
        return f"static member {self.group_instance_id!r}{of}"


async def remove_members(
    cluster: ClusterClient,
    group_id: str,
    members: Iterable[MemberToRemove],
    *,
    reason: str,
    retry: RetryLoop | None = None,
) -> Results[MemberToRemove, None]:
    """Remove members from a group with one LeaveGroup request; return the error of each one that was not. Raises ClosedError.

    One that is unknown after a request without a response was removed by it. Brokers before Kafka 2.4 remove one member by
    its member id; UnsupportedVersionError for others.
    """
    unanswered: Unanswered[MemberToRemove] = Unanswered(ErrorCode.UNKNOWN_MEMBER_ID)

    async def ask(target: Target, asked: list[MemberToRemove]) -> Results[MemberToRemove, None]:
        # known when the message is built, and needed to read the response
        sent_in = MEMBERS_VERSION

        def build(version: int) -> m.LeaveGroupRequest:
            nonlocal sent_in
            sent_in = version
            return _leave(group_id, asked, reason, version)

        async def send() -> Results[MemberToRemove, None]:
            response = await target.request(m.LeaveGroupRequest, build)
            codes = {_name(each): each.error_code for each in response.members}
            # older responses have no members: the error of the group applies to each of them
            if sent_in < MEMBERS_VERSION or response.error_code:
                codes = dict.fromkeys(map(_name, asked), response.error_code)
            return _left(group_id, asked, codes)

        return await unanswered.track(asked, send)

    route: AtCoordinator[MemberToRemove] = AtCoordinator(cluster, group_id)
    return await request_each(members, route, ask, api="LeaveGroup", retry=retry)


def _leave(group_id: str, members: list[MemberToRemove], reason: str, version: int) -> m.LeaveGroupRequest:
    if version < MEMBERS_VERSION:
        # before anything is sent: removing some of them would be half of the call
        if len(members) > 1 or members[0].group_instance_id is not None:
            raise UnsupportedVersionError(
                "this broker removes one member by its member id (Kafka 2.4 several and static ones)"
            )
        return m.LeaveGroupRequest(group_id=group_id, member_id=members[0].member_id)
    identity = m.LeaveGroupRequest.MemberIdentity
    leaving = [identity(each.member_id, each.group_instance_id, reason) for each in members]
    return m.LeaveGroupRequest(group_id=group_id, members=leaving)


def _name(member: MemberToRemove | m.LeaveGroupResponse.MemberResponse) -> tuple[str | None, str]:
    """Return what names a member. A static one may be named without its member id, and have it in the response."""
    instance = member.group_instance_id
    return (None, member.member_id) if instance is None else (instance, "")


def _left(
    group_id: str, asked: list[MemberToRemove], codes: Mapping[tuple[str | None, str], int]
) -> Results[MemberToRemove, None]:
    results: Results[MemberToRemove, None] = Results()
    for member in asked:
        code = codes.get(_name(member))
        if code:
            results.errors[member] = BrokerError(code, f"removing {member} from group {group_id!r}")
        # `fan_out` makes an error of a member that the response does not name
        elif code is not None:
            results.values[member] = None
    return results
