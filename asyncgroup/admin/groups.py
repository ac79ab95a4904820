"""Groups as an administrator sees them: which there are, and their members with what these have and are to get."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from asyncgroup.admin.arguments import one_of, several
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests import groups as requests
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.groups import ClassicGroup, ListedGroup, ModernGroup
from asyncgroup.cluster.requests.results import Results, raise_first
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    DecodeError,
    ErrorCode,
    UnsupportedVersionError,
)
from asyncgroup.topic_partition import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned

__all__ = [
    "GroupDescription",
    "GroupListing",
    "GroupsListed",
    "MemberDescription",
    "checked_states",
    "checked_types",
    "describe_groups",
    "list_groups",
    "other_types",
]

CONSUMER: Final = "consumer"
"""The protocol type whose assignments are decoded, and the type of a group of the consumer protocol."""


STATES: Final = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Stable",
    "Empty",
    "Dead",
    "NotReady",
)
"""`GroupState` in Kafka; `Assigning` and `Reconciling` are of consumer groups, `NotReady` of streams groups."""

TYPES: Final = ("classic", "consumer", "share", "streams")
"""`GroupType` in Kafka."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list."""

    group_id: str
    """Its id."""
    protocol_type: str
    """`consumer`, `connect` and others; empty for a group that only has committed offsets."""
    state: str
    """Kafka's name of the state, such as `Stable`; empty before Kafka 2.6."""
    group_type: str
    """`classic`, `consumer`, `share` or `streams`; empty before Kafka 3.8."""


@dataclass(frozen=True, slots=True)
class GroupsListed:
    """The groups of the nodes that answered, and the errors of the others."""

    groups: tuple[GroupListing, ...]
    """Each group once, sorted by id."""
    errors: Mapping[int, AsyncGroupError]
    """The error of each node that did not answer, by node id; the groups that it coordinates are missing."""

    def raise_first(self) -> tuple[GroupListing, ...]:
        """Return the groups if all nodes answered. Raises the first error otherwise."""
        raise_first(self.errors)
        return self.groups


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group."""

    member_id: str
    """Its id."""
    group_instance_id: str | None
    """The instance id of a static member (KIP-345)."""
    client_id: str
    """The client id of its requests."""
    host: str
    """The address from which it joined."""
    assignment: tuple[TopicPartition, ...]
    """The partitions that it has, sorted; empty for members of other protocol types than `consumer`."""
    target_assignment: tuple[TopicPartition, ...] | None = None
    """The partitions that it is to have; None in a classic group."""
    epoch: int | None = None
    """The member epoch; None in a classic group."""
    is_upgraded: bool | None = None
    """Whether a member of a consumer group uses the consumer protocol; None if the broker does not say it."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members."""

    group_id: str
    """Its id."""
    group_type: str
    """`classic` or `consumer`."""
    state: str
    """Kafka's name of the state, such as `Stable` or `Empty`."""
    protocol_type: str
    """`consumer` for groups of consumers."""
    assignor: str
    """The assignor that the members agreed on, or that the coordinator uses; empty without members."""
    members: tuple[MemberDescription, ...]
    """Its members, sorted by id."""
    group_epoch: int | None = None
    """The epoch of the group; None in a classic group."""
    assignment_epoch: int | None = None
    """The epoch of the target assignment; None in a classic group."""


# --- list -------------------------------------------------------------------------------------------------------------


def checked_states(states: Iterable[str]) -> list[str]:
    """Return the states. Raises ConfigError for one that Kafka does not have."""
    return [one_of("state", each, STATES) for each in several("states", states)]


def checked_types(types: Iterable[str]) -> list[str]:
    """Return the types. Raises ConfigError for one that Kafka does not have."""
    return [one_of("type", each, TYPES) for each in several("types", types)]


async def list_groups(
    cluster: ClusterClient, *, states: Iterable[str], types: Iterable[str], budget: RequestBudget
) -> GroupsListed:
    """Return the groups of all nodes, each once."""
    await budget.limit(cluster.refresh())  # a new node coordinates groups as well
    found = await requests.list_groups(cluster, states=states, types=types, retry=budget.node_retry())
    unique: dict[str, ListedGroup] = {}
    for group in (group for groups in found.values.values() for group in groups):
        known = unique.get(group.group_id)
        if known is None or _liveness(group) > _liveness(known):
            unique[group.group_id] = group
    listed = (
        GroupListing(name, each.protocol_type, each.group_state, each.group_type)
        for name, each in sorted(unique.items())
    )
    return GroupsListed(tuple(listed), dict(found.errors))


async def other_types(
    cluster: ClusterClient, group_ids: Collection[str], budget: RequestBudget
) -> dict[str, str]:
    """Return the types of those groups that a description did not find because they are neither classic nor consumer groups."""
    if not group_ids:
        return {}
    listed = await requests.list_groups(cluster, retry=budget.node_retry())
    types = {group.group_id: group.group_type for part in listed.values.values() for group in part}
    known = (None, "", "classic", CONSUMER)
    return {name: types[name] for name in group_ids if types.get(name) not in known}


def _liveness(group: ListedGroup) -> int:
    """Return the rank of a state: a former coordinator may still list the group as it was, without its members."""
    return {"Dead": 0, "": 1, "Empty": 1}.get(group.group_state, 2)


# --- describe ---------------------------------------------------------------------------------------------------------


async def describe_groups(
    cluster: ClusterClient, group_ids: Iterable[str], budget: RequestBudget
) -> Results[str, GroupDescription]:
    """Return each group; those that are not of the consumer protocol are asked for as classic ones, as Java does.

    GROUP_ID_NOT_FOUND for a group that does not exist, with old brokers as well as new ones.
    """
    wanted = list(dict.fromkeys(group_ids))
    # of several coordinators, one that does not answer must leave time for the second request to the others
    limits = budget.node_retry if len(wanted) > 1 else budget.retry
    modern = await requests.describe_consumer_groups(cluster, wanted, retry=limits())
    others = [name for name, error in modern.errors.items() if _is_other_type(error)]
    classic = await requests.describe_groups(cluster, others, retry=limits())
    results: Results[str, GroupDescription] = Results()
    results.errors |= {name: error for name, error in modern.errors.items() if name not in others}
    results.errors |= classic.errors
    for name, described in modern.values.items():
        results.values[name] = _modern(described)
    for name, group in classic.values.items():
        if group.group_state == "Dead":  # below version 6 of DescribeGroups an unknown group is not an error
            results.errors[name] = BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"members of group {name!r}")
        else:
            results.values[name] = _classic(group)
    return results.in_order(wanted)


def _is_other_type(error: AsyncGroupError) -> bool:
    codes = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
    return isinstance(error, UnsupportedVersionError) or (
        isinstance(error, BrokerError) and error.code in codes
    )


def _modern(group: ModernGroup) -> GroupDescription:
    members = (
        MemberDescription(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.client_host,
            assignment=_partitions(member.assignment),
            target_assignment=_partitions(member.target_assignment),
            epoch=member.member_epoch,
            is_upgraded=None if member.member_type < 0 else member.member_type == 1,
        )
        for member in group.members
    )
    return GroupDescription(
        group_id=group.group_id,
        group_type=CONSUMER,
        state=group.group_state,
        protocol_type=CONSUMER,
        assignor=group.assignor_name,
        members=_sorted(members),
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
    )


def _partitions(assignment: m.ConsumerGroupDescribeResponse.Assignment) -> tuple[TopicPartition, ...]:
    topics = assignment.topic_partitions
    return tuple(sorted(TopicPartition(each.topic_name, n) for each in topics for n in each.partitions))


def _classic(group: ClassicGroup) -> GroupDescription:
    members = (
        MemberDescription(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            host=member.client_host,
            assignment=_assigned(bytes(member.member_assignment)) if group.protocol_type == CONSUMER else (),
        )
        for member in group.members
    )
    return GroupDescription(
        group_id=group.group_id,
        group_type="classic",
        state=group.group_state,
        protocol_type=group.protocol_type,
        assignor=group.protocol_data,
        members=_sorted(members),
    )


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment; none during a rebalance, or if its bytes are invalid: the leader wrote them."""
    if not data:
        return ()
    try:
        topics = decode_versioned(m.ConsumerProtocolAssignment, data).assigned_partitions
    except DecodeError:
        return ()
    return tuple(sorted({TopicPartition(each.topic, n) for each in topics for n in each.partitions}))


def _sorted(members: Iterable[MemberDescription]) -> tuple[MemberDescription, ...]:
    return tuple(sorted(members, key=lambda member: member.member_id))
