"""The range and roundrobin assignors, with the same assignments as Java's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from asyncgroup.group.assignors.protocol import MemberSubscription
from asyncgroup.group.assignors.racks import PartitionRacks
from asyncgroup.group.assignors.range_by_rack import assign_ranges_by_rack
from asyncgroup.model import TopicPartition

__all__ = ["RangeAssignor", "RoundRobinAssignor"]


class RangeAssignor:
    """Assigns consecutive ranges per topic, so that equal partition numbers of several topics go to one member.

    With 4 partitions and 3 members the first member gets two (`RangeAssignor.java`).
    """

    name = "range"

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        """Return the partitions by member id."""
        assignment: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        subscribers: dict[str, list[str]] = {topic: [] for topic in sorted(counts)}
        for member in sorted(members, key=lambda m: m.order):
            for topic in set(member.topics).intersection(counts):
                subscribers[topic].append(member.member_id)
        for topic, member_ids in subscribers.items():
            start = 0
            for index, member_id in enumerate(member_ids):
                size = counts[topic] // len(member_ids) + (index < counts[topic] % len(member_ids))
                assignment[member_id] += [TopicPartition(topic, p) for p in range(start, start + size)]
                start += size
        return assignment

    def assign_by_rack(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int], racks: PartitionRacks
    ) -> dict[str, list[TopicPartition]]:
        """Return the partitions by member id; see `RackAware`."""
        return assign_ranges_by_rack(members, counts, racks)


class RoundRobinAssignor:
    """Assigns the partitions of all topics one by one to the subscribed members (`RoundRobinAssignor.java`)."""

    name = "roundrobin"

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        """Return the partitions by member id."""
        assignment: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        ordered = [(m.member_id, frozenset(m.topics)) for m in sorted(members, key=lambda m: m.order)]
        circle = cycle(ordered)
        for topic in sorted({topic for _, topics in ordered for topic in topics if topic in counts}):
            for partition in range(counts[topic]):
                # at least one member subscribes to the topic, so this ends within one round
                taker = next(member_id for member_id, topics in circle if topic in topics)
                assignment[taker].append(TopicPartition(topic, partition))
        return assignment
