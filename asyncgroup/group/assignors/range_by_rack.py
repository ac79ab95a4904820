"""The range assignment with racks: the same plans as Java's `RangeAssignor` with `client.rack` (KIP-881).

Each member gets as many partitions of each topic as without racks. Among these, those with a replica in its rack are
assigned first. Topics with the same subscribers and the same number of partitions are co-partitioned: equal numbers go to
one member if its rack has a replica of all of them. The rest is assigned in ranges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from asyncgroup.group.assignors.protocol import MemberSubscription
from asyncgroup.group.assignors.racks import PartitionRacks, RackMatches
from asyncgroup.model import TopicPartition

__all__ = ["assign_ranges_by_rack"]


def assign_ranges_by_rack(
    members: Sequence[MemberSubscription], counts: Mapping[str, int], racks: PartitionRacks
) -> dict[str, list[TopicPartition]]:
    """Return sorted partitions by member id."""
    ordered = sorted(members, key=lambda member: member.order)
    topics = [_Topic(topic, counts[topic], ordered, racks) for topic in sorted(counts)]
    if any(topic.matches.matters for topic in topics):
        _assign_matching(topics)
    for topic in topics:
        topic.assign(lambda _member, _tp: True)
    assignment: dict[str, list[TopicPartition]] = {member.member_id: [] for member in ordered}
    for topic in topics:
        for member_id, partitions in topic.assigned.items():
            assignment[member_id] += partitions
    return {member_id: sorted(partitions) for member_id, partitions in assignment.items()}


class _Topic:
    """The partitions of a topic, and how many each subscriber may get: the first ones get one more if they don't divide."""

    def __init__(
        self, name: str, partitions: int, members: Iterable[MemberSubscription], racks: PartitionRacks
    ) -> None:
        subscribers = [member for member in members if name in member.topics]
        self.name = name
        self.member_ids = [member.member_id for member in subscribers]
        self.left = [TopicPartition(name, number) for number in range(partitions)]
        self.matches = RackMatches(subscribers, self.left, racks)
        self.assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in self.member_ids}
        self._share, self._extra = divmod(partitions, len(subscribers)) if subscribers else (0, 0)

    @property
    def co_partitioning(self) -> tuple[frozenset[str], int]:
        """The key of topics whose equal numbers belong together: subscribers and partitions; 0 if none has a rack."""
        return frozenset(self.member_ids), len(self.left) if self.matches.has_racks else 0

    def room(self, member: int) -> int:
        """Return how many more partitions the member may get."""
        had = len(self.assigned[self.member_ids[member]])
        return max(0, self._share + (self._extra > 0) - had)

    def give(self, member: int, partitions: Sequence[TopicPartition]) -> None:
        """Assign some of the partitions that are left."""
        mine = self.assigned[self.member_ids[member]]
        mine += partitions
        self._extra -= bool(partitions) and len(mine) > self._share
        given = set(partitions)
        self.left = [tp for tp in self.left if tp not in given]

    def assign(self, may_have: Callable[[int, TopicPartition], bool]) -> None:
        """Assign to each subscriber in turn the first partitions that it may have, as many as there is room for."""
        for member in range(len(self.member_ids)):
            found = [tp for tp in self.left if may_have(member, tp)]
            self.give(member, found[: self.room(member)])


def _assign_matching(topics: Iterable[_Topic]) -> None:
    """Assign partitions to members with a replica in their rack."""
    together: defaultdict[tuple[frozenset[str], int], list[_Topic]] = defaultdict(list)
    for topic in topics:
        together[topic.co_partitioning].append(topic)
    for (_, partitions), alike in together.items():
        if len(alike) > 1:
            _assign_co_partitioned(alike, partitions)
        elif alike[0].matches.matters:
            alike[0].assign(alike[0].matches.matches)


def _assign_co_partitioned(topics: Sequence[_Topic], partitions: int) -> None:
    """Assign a partition of all these topics to the first member that has room and a replica of all of them in its rack."""
    members = range(len(topics[0].member_ids))
    for number in range(partitions):
        for member in members:
            if all(
                topic.room(member) and topic.matches.matches(member, TopicPartition(topic.name, number))
                for topic in topics
            ):
                for topic in topics:
                    topic.give(member, [TopicPartition(topic.name, number)])
                break
