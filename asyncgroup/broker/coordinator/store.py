"""Groups and offsets in memory, for the life of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from asyncgroup.broker.coordinator.calls import CommittedOffset, GroupSnapshot
from asyncgroup.broker.coordinator.pending_offsets import PendingOffsets
from asyncgroup.broker.coordinator.ports import Written
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["MemoryOffsetStore"]


class MemoryOffsetStore:
    """An `OffsetStore` whose writes are durable at once and shared by all nodes.

    `partition_of` maps a group id to its partition of `__consumer_offsets`.
    """

    def __init__(self, partition_of: Callable[[str], int]) -> None:
        self._partition_of = partition_of
        self._groups: dict[str, GroupSnapshot] = {}
        self._offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._numbers: dict[tuple[str, TopicPartition], int] = {}
        self._written = 0
        self._pending = PendingOffsets()

    def write_group(self, snapshot: GroupSnapshot, done: Written) -> None:
        """Keep `snapshot`."""
        self._groups[snapshot.group_id] = snapshot
        done(ErrorCode.NONE)

    def write_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], done: Written
    ) -> None:
        """Keep `offsets`."""
        self._written += 1
        self._offsets.setdefault(group_id, {}).update(offsets)
        self._numbers.update(dict.fromkeys(((group_id, tp) for tp in offsets), self._written))
        done(ErrorCode.NONE)

    def write_pending_offsets(
        self,
        group_id: str,
        producer_id: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        done: Written,
    ) -> None:
        """Keep `offsets` apart until the transaction ends."""
        self._written += 1
        self._pending.add(group_id, producer_id, offsets, self._written)
        done(ErrorCode.NONE)

    def end_transaction(self, producer_id: int, partition: int, *, commit: bool) -> None:
        """Let the transaction's offsets count, except where a later commit stands already, or forget them."""
        for group_id in self._pending.groups(producer_id):
            if self._partition_of(group_id) != partition:
                continue
            for tp, (number, offset) in self._pending.take(producer_id, group_id).items():
                if commit and number > self._numbers.get((group_id, tp), 0):
                    self._offsets.setdefault(group_id, {})[tp] = offset
                    self._numbers[group_id, tp] = number

    def pending(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions with offsets in open transactions."""
        return self._pending.of(group_id)

    def remove_group(self, group_id: str) -> None:
        """Forget the group and its offsets."""
        self._groups.pop(group_id, None)
        for tp in self._offsets.pop(group_id, ()):
            self._numbers.pop((group_id, tp), None)
        self._pending.remove_group(group_id)

    def groups(self, partition: int) -> Iterable[GroupSnapshot]:
        """The groups of one partition, those with offsets only included."""
        for group_id in {**self._groups, **dict.fromkeys([*self._offsets, *self._pending.all_groups()])}:
            if self._partition_of(group_id) == partition:
                yield self._groups.get(group_id) or GroupSnapshot(
                    group_id=group_id,
                    generation_id=0,
                    protocol_type=None,
                    protocol_name=None,
                    leader=None,
                    members=(),
                )

    def offsets(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """The committed offsets of a group."""
        return self._offsets.get(group_id, {})

    def remove_topic(self, topic: str) -> None:
        """Forget the offsets of a deleted topic, as Kafka's coordinators do."""
        self._pending.remove_topic(topic)
        for group_id, offsets in self._offsets.items():
            for partition in [p for p in offsets if p.topic == topic]:
                del offsets[partition]
                self._numbers.pop((group_id, partition), None)
