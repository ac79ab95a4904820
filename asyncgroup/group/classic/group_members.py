"""The members of a group, of either protocol, as its coordinator describes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.groups import describe_consumer_groups, describe_groups
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode
from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.group.classic.join_requests import decode_assignment
from asyncgroup.model import TopicPartition

__all__ = [
    "CurrentAssignment",
    "DescribedMember",
    "describe_assignment",
    "describe_current_assignment",
    "describe_members",
]

_log = logging.getLogger("asyncgroup.group")

_NO_GROUP: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID)

_NO_CONSUMER_GROUP: Final = (*_NO_GROUP, ErrorCode.UNSUPPORTED_VERSION)
"""Kafka 3.8 and 3.9 offer ConsumerGroupDescribe, and answer UNSUPPORTED_VERSION as long as the consumer protocol is not enabled
(`KafkaApis.handleConsumerGroupDescribe`)."""


class DescribedMember(NamedTuple):
    """A member of a group; `str()` shows its member id, client id and host."""

    member_id: str
    client_id: str
    client_host: str
    group_instance_id: str | None

    def __str__(self) -> str:
        member, client, host = (
            printable(each, MAX_TEXT_LENGTH)
            for each in (self.member_id, self.client_id, self.client_host.removeprefix("/"))
        )
        return f"{member} (client {client!r} at {host})"


async def describe_members(cluster: ClusterClient, group_id: str, *, lane: str) -> list[DescribedMember]:
    """Return the members of a group of the classic or the consumer protocol; none if the group does not exist.

    `lane` is the purpose of the connection. Makes no retries. Raises BrokerError if the coordinator is not found or the group
    may not be described, TransportError.
    """
    try:
        classic = (await describe_groups(cluster, [group_id], lane=lane)).require()[group_id]
    except BrokerError as error:
        if error.code not in _NO_GROUP:
            raise
        return await _consumer_members(cluster, group_id, lane)
    if classic.members:
        return [
            DescribedMember(each.member_id, each.client_id, each.client_host, each.group_instance_id)
            for each in classic.members
        ]
    # DescribeGroups reports a group of the consumer protocol (KIP-848) as missing or dead
    return await _consumer_members(cluster, group_id, lane) if classic.group_state == "Dead" else []


async def _consumer_members(cluster: ClusterClient, group_id: str, lane: str) -> list[DescribedMember]:
    try:
        found = (await describe_consumer_groups(cluster, [group_id], lane=lane)).require()[group_id]
    except BrokerError as error:
        if error.code not in _NO_CONSUMER_GROUP:
            raise
        return []
    except AsyncGroupError as error:
        if error.retriable:
            raise
        return []  # brokers without KIP-848 have no such groups
    return [
        DescribedMember(each.member_id, each.client_id, each.client_host, each.instance_id)
        for each in found.members
    ]


async def describe_assignment(
    cluster: ClusterClient, group_id: str, *, lane: str
) -> frozenset[TopicPartition] | None:
    """Return the partitions that a classic group's members are assigned; None if it has no members.

    Makes no retries. Raises BrokerError, TransportError, AssignmentError for an assignment that is not one of consumers.
    """
    group = (await describe_groups(cluster, [group_id], lane=lane)).require()[group_id]
    if not group.members:
        return None
    return frozenset(
        tp for member in group.members for tp in decode_assignment(member.member_assignment).partitions
    )


class CurrentAssignment(NamedTuple):
    """The assignment of the current generation, as far as its leader has to know it."""

    partition_counts: Mapping[str, int]
    """The number of partitions by topic that it was made for: up to the last one that a member has."""
    unassigned: frozenset[TopicPartition] = frozenset()
    """Partitions below these numbers that no member has."""


async def describe_current_assignment(
    cluster: ClusterClient, group_id: str, partition_counts: Mapping[str, int], *, lane: str
) -> CurrentAssignment:
    """Return the current assignment of these topics for a static leader that returns after a restart, which does not replace it (KIP-814); `partition_counts` are the present ones.

    Partitions that were added while the leader was away are not assigned, and only the leader watches for them; Java's
    leader compares with the counts at its return and misses them. If DescribeGroups fails, the counts are the present ones.
    """
    try:
        assigned = await describe_assignment(cluster, group_id, lane=lane)
    except AsyncGroupError as error:
        _log.debug("group %s: could not describe the current assignment: %s", group_id, error)
        return CurrentAssignment(partition_counts)
    if assigned is None:
        return CurrentAssignment(partition_counts)
    counts = dict.fromkeys(partition_counts, 0)
    for topic, partition in assigned:
        if topic in counts:
            counts[topic] = max(counts[topic], partition + 1)
    known = {TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)}
    return CurrentAssignment(counts, frozenset(known - assigned))
