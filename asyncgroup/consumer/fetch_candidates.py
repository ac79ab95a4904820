"""FetchCandidates: which partitions of a broker can be asked for next, known without looking at the others. Pure state."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from asyncgroup.consumer.fetch_plan import PlannedFetch
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.model import TopicPartition

__all__ = ["FetchCandidates"]


class FetchCandidates:
    """The partitions of one broker in order of precedence, and the sets that a plan needs.

    A partition that has changed is looked at again by the next plan, which calls `set_ready`, `set_full` or `set_idle`
    for it. A plan costs as much as has changed, however many partitions there are.
    """

    __slots__ = ("_ranks", "_sequence", "changed", "full", "partitions", "ready")

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, TopicPartitionState] = {}
        """All, in order of precedence."""
        self._ranks: dict[TopicPartition, int] = {}  # the same order, for sorting a few
        self._sequence = count()
        self.changed: dict[TopicPartition, None] = {}
        """The partitions to look at again."""
        self.ready: dict[TopicPartition, PlannedFetch] = {}
        """The partitions that are fetchable and not asked for yet."""
        self.full: set[TopicPartition] = set()
        """The partitions that only their full buffers keep out of the next fetch."""

    def __repr__(self) -> str:
        return f"<FetchCandidates: {len(self.ready)} of {len(self.partitions)} ready, {len(self.changed)} changed>"

    def add(self, partition: TopicPartitionState) -> None:
        """Add a partition, as the last one."""
        tp = partition.tp
        self.partitions[tp] = partition
        self._ranks[tp] = next(self._sequence)
        self.changed[tp] = None

    def remove(self, tp: TopicPartition) -> None:
        """Remove a partition."""
        del self.partitions[tp], self._ranks[tp]
        self.changed.pop(tp, None)
        self.set_idle(tp)

    def has(self, partition: TopicPartitionState) -> bool:
        """Return whether this very object is a member, and not another one of the same name."""
        return self.partitions.get(partition.tp) is partition

    def mark(self, partition: TopicPartitionState) -> None:
        """Have the next plan look at a partition, if it is a member."""
        if self.has(partition):
            self.changed[partition.tp] = None

    def mark_all(self) -> None:
        """Have the next plan look at all partitions."""
        self.changed = dict.fromkeys(self.partitions)

    def take_changed(self) -> list[TopicPartitionState]:
        """Return the partitions to look at."""
        changed, self.changed = self.changed, {}
        return [self.partitions[tp] for tp in changed]

    def rotate(self, served: Iterable[TopicPartition]) -> None:
        """Move partitions that got records to the end, so that each comes first in turn.

        A broker fills a response in the order of the request, and returns a batch larger than the requested bytes for the
        first partition only (KIP-74), so those without records have to move up (`SubscriptionState.movePartitionToEnd` in
        Java). Within a session the broker does the same; partitions that return to the session are added at its end.
        """
        for tp in served:
            if tp in self.partitions:
                self.partitions[tp] = self.partitions.pop(tp)
                self._ranks[tp] = next(self._sequence)

    def in_order(self, tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return members in order of precedence."""
        return sorted(tps, key=self._ranks.__getitem__)

    # --- the sets -----------------------------------------------------------------------------------------------

    def set_ready(self, planned: PlannedFetch) -> None:
        """A partition can be asked for."""
        tp = planned.partition.tp
        self.full.discard(tp)
        self.ready[tp] = planned

    def set_full(self, tp: TopicPartition) -> None:
        """A partition has to wait until its reader makes room."""
        self.ready.pop(tp, None)
        self.full.add(tp)

    def set_idle(self, tp: TopicPartition) -> None:
        """A partition is not to be fetched."""
        self.ready.pop(tp, None)
        self.full.discard(tp)

    def take_ready(self, tps: Iterable[TopicPartition]) -> list[PlannedFetch]:
        """Remove and return partitions that are asked for now, in order of precedence."""
        return [self.ready.pop(tp) for tp in self.in_order(tps)]
