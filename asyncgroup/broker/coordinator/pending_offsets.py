"""Offsets committed inside transactions that are still open (KIP-98, KIP-447; Kafka's `OffsetMetadataManager`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from asyncgroup.broker.coordinator.requests import OffsetAndMetadata
from asyncgroup.model import TopicPartition

__all__ = ["PendingOffset", "PendingOffsets"]


class PendingOffset(NamedTuple):
    """An offset that waits for its marker; `record_offset` is the offset of its record in the log."""

    record_offset: int
    offset: OffsetAndMetadata


class PendingOffsets:
    """By producer id and group. A later write of the same producer replaces an earlier one."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[str, dict[TopicPartition, PendingOffset]]] = {}

    def __repr__(self) -> str:
        return f"<PendingOffsets of {len(self._by_producer)} producers>"

    def add(
        self,
        group_id: str,
        producer_id: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        record_offset: int,
    ) -> None:
        """Keep `offsets` until the producer's marker."""
        groups = self._by_producer.setdefault(producer_id, {})
        kept = groups.setdefault(group_id, {})
        kept.update({tp: PendingOffset(record_offset, offset) for tp, offset in offsets.items()})

    def partitions(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions of a group whose offsets are not stable."""
        if not self._by_producer:
            return ()
        return {tp for groups in self._by_producer.values() for tp in groups.get(group_id, ())}

    def pop(self, producer_id: int, group_id: str) -> dict[TopicPartition, PendingOffset]:
        """What a producer left for a group; it is pending no more."""
        groups = self._by_producer.get(producer_id, {})
        taken = groups.pop(group_id, {})
        if not groups:
            self._by_producer.pop(producer_id, None)
        return taken

    def groups(self, producer_id: int) -> list[str]:
        """The groups that a producer left offsets for."""
        return list(self._by_producer.get(producer_id, ()))

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        """A tombstone: forget the group's offset of this partition, whoever left it."""
        for groups in self._by_producer.values():
            groups.get(group_id, {}).pop(partition, None)

    def for_topic(self, topic: str) -> Iterator[tuple[str, TopicPartition]]:
        """The (group, partition) pairs of one topic."""
        for groups in self._by_producer.values():
            for group_id, kept in groups.items():
                yield from ((group_id, tp) for tp in kept if tp.topic == topic)

    def has_open_transaction(self, group_id: str) -> bool:
        """Whether some transaction with offsets of this group is open."""
        return any(group_id in groups for groups in self._by_producer.values())
