"""The racks of replicas, and which members are in a rack with a replica of a partition (KIP-881)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.group.assignors.protocol import MemberSubscription
from asyncgroup.model import TopicPartition

__all__ = ["PartitionRacks", "RackMatches", "replica_racks"]

PartitionRacks: TypeAlias = Mapping[TopicPartition, frozenset[str]]
"""The racks of a partition's replicas; brokers without a rack are left out."""

_NONE: Final[frozenset[int]] = frozenset()


def replica_racks(view: ClusterView, topics: Iterable[str]) -> dict[TopicPartition, frozenset[str]]:
    """Return the racks of the replicas of these topics; those of brokers that are down are unknown."""
    racks = {node_id: broker.rack for node_id, broker in view.brokers.items()}
    return {
        TopicPartition(topic, number): frozenset(
            rack for replica in partition.replicas if (rack := racks.get(replica))
        )
        for topic in topics
        if topic in view.topics
        for number, partition in view.topics[topic].partitions.items()
    }


class RackMatches:
    """Compares the racks of members, given by their index, with those of partitions.

    A member without a rack matches every partition. Replicas count also while they are offline or out of sync, as in Java.
    """

    def __init__(
        self,
        members: Sequence[MemberSubscription],
        partitions: Iterable[TopicPartition],
        racks: PartitionRacks,
    ) -> None:
        self._racks = {tp: racks.get(tp, frozenset()) for tp in partitions}
        self._members = {index: member.rack_id for index, member in enumerate(members) if member.rack_id}
        everywhere = frozenset().union(*self._racks.values())
        self._has_replicas = bool(everywhere)  # whether any broker has a rack
        self.has_racks = bool(self._members)
        """Whether any member has a rack."""
        self.matters = not everywhere.isdisjoint(self._members.values()) and any(
            found != everywhere for found in self._racks.values()
        )
        """Whether Java compares racks: not if no member has the rack of a replica, nor if all partitions have replicas in the
        same racks (`useRackAwareAssignment` in its `AbstractPartitionAssignor`)."""
        self._mismatched: dict[frozenset[str], frozenset[int]] = {}  # by the racks of a partition

    def matches(self, member: int, tp: TopicPartition) -> bool:
        """Whether a replica is in the member's rack."""
        rack = self._members.get(member)
        return rack is None or rack in self._racks[tp]

    def mismatched(self, tp: TopicPartition) -> frozenset[int]:
        """Return the members whose rack has no replica of the partition; none if no broker has a rack."""
        if not self._has_replicas:
            return _NONE
        racks = self._racks[tp]
        if racks not in self._mismatched:
            others = frozenset(index for index, rack in self._members.items() if rack not in racks)
            self._mismatched[racks] = others
        return self._mismatched[racks]
