"""What a static leader that returns after a restart learns about the current assignment, which it does not replace (KIP-814)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError
from asyncgroup.group.classic.group_members import describe_assignment
from asyncgroup.model import TopicPartition

__all__ = ["CurrentAssignment", "describe_current_assignment"]

_log = logging.getLogger("asyncgroup.group")


class CurrentAssignment(NamedTuple):
    """The assignment of the current generation, as far as its leader has to know it."""

    partition_counts: Mapping[str, int]
    """The number of partitions by topic that it was made for: up to the last one that a member has."""
    unassigned: frozenset[TopicPartition] = frozenset()
    """Partitions below these numbers that no member has."""


async def describe_current_assignment(
    cluster: ClusterClient, group_id: str, partition_counts: Mapping[str, int], *, lane: str
) -> CurrentAssignment:
    """Return the current assignment of these topics, by DescribeGroups; `partition_counts` are the present ones.

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
