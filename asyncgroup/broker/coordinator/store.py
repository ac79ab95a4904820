"""Groups and offsets in memory, for the life of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from asyncgroup.broker.coordinator.calls import CommittedOffset, GroupSnapshot
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

    def write_group(self, snapshot: GroupSnapshot, done: Written) -> None:
        """Keep `snapshot`."""
        self._groups[snapshot.group_id] = snapshot
        done(ErrorCode.NONE)

    def write_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], done: Written
    ) -> None:
        """Keep `offsets`."""
        self._offsets.setdefault(group_id, {}).update(offsets)
        done(ErrorCode.NONE)

    def remove_group(self, group_id: str) -> None:
        """Forget the group and its offsets."""
        self._groups.pop(group_id, None)
        self._offsets.pop(group_id, None)

    def groups(self, partition: int) -> Iterable[GroupSnapshot]:
        """The groups of one partition, those with offsets only included."""
        for group_id in {**self._groups, **dict.fromkeys(self._offsets)}:
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
        for offsets in self._offsets.values():
            for partition in [p for p in offsets if p.topic == topic]:
                del offsets[partition]
