"""The assignor `range`: each topic's partitions in consecutive ranges, one for each subscribed member.

Members with the same subscription get the same partitions of topics with the same number of partitions, as joins need
(Kafka's `RangeAssignor`).
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from asyncgroup.broker.groups.consumer.assignors import MemberSpec
from asyncgroup.broker.groups.consumer.consumer_group_member import TargetAssignment, TopicIdPartition

__all__ = ["assign_range"]


def assign_range(
    members: Mapping[str, MemberSpec], partitions: Mapping[UUID, int]
) -> dict[str, TargetAssignment]:
    """Return the target of every member."""
    order = sorted(members, key=lambda member_id: _order(member_id, members[member_id]))
    targets: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in order}
    for topic_id, count in partitions.items():
        subscribed = [member_id for member_id in order if topic_id in members[member_id].topics]
        start = 0
        for number, member_id in enumerate(subscribed):
            end = start + count // len(subscribed) + (number < count % len(subscribed))
            targets[member_id] += (TopicIdPartition(topic_id, index) for index in range(start, end))
            start = end
    return {member_id: frozenset(found) for member_id, found in targets.items()}


def _order(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    """Static members come first, ordered by instance id, so that they keep their ranges when their member ids change."""
    return member.instance_id is None, member_id if member.instance_id is None else member.instance_id
