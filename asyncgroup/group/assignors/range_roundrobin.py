"""Assignors without a memory: Java's range and roundrobin, plan for plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from asyncgroup.group.assignors.protocol import MemberSubscription
from asyncgroup.model import TopicPartition

__all__ = ["RangeAssignor", "RoundRobinAssignor"]


class RangeAssignor:
    """Consecutive ranges of each topic, so that equal numbers of different topics meet in one member.

    Of 4 partitions over 3 members the first gets two (`RangeAssignor.java`).
    """

    name = "range"

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        """Partitions by member id."""
        plan: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        subscribers: dict[str, list[str]] = {topic: [] for topic in sorted(counts)}
        for member in sorted(members, key=lambda m: m.order):
            for topic in set(member.topics).intersection(counts):
                subscribers[topic].append(member.member_id)
        for topic, member_ids in subscribers.items():
            start = 0
            for index, member_id in enumerate(member_ids):
                size = counts[topic] // len(member_ids) + (index < counts[topic] % len(member_ids))
                plan[member_id] += [TopicPartition(topic, p) for p in range(start, start + size)]
                start += size
        return plan


class RoundRobinAssignor:
    """All partitions of all topics dealt out one by one to the members that subscribe (`RoundRobinAssignor.java`)."""

    name = "roundrobin"

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        """Partitions by member id."""
        plan: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        ordered = [(m.member_id, frozenset(m.topics)) for m in sorted(members, key=lambda m: m.order)]
        circle = cycle(ordered)
        for topic in sorted({topic for _, topics in ordered for topic in topics if topic in counts}):
            for partition in range(counts[topic]):
                # some member subscribes, so one round is enough to come to it
                taker = next(member_id for member_id, topics in circle if topic in topics)
                plan[taker].append(TopicPartition(topic, partition))
        return plan
