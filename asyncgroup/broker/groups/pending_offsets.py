"""Offsets committed in transactions that are still open (KIP-98, KIP-447; Kafka's `OffsetMetadataManager`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from asyncgroup.broker.groups.requests import OffsetAndMetadata
from asyncgroup.model import TopicPartition

__all__ = ["PendingOffset", "PendingOffsets"]


class PendingOffset(NamedTuple):
    """An offset in an open transaction."""

    record_offset: int
    """The offset of its record in `__consumer_offsets`."""
    offset: OffsetAndMetadata


class PendingOffsets:
    """Pending offsets by producer id and group. A later commit of the same producer replaces an earlier one."""

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
        """Add `offsets`, which wait for the producer's marker."""
        groups = self._by_producer.setdefault(producer_id, {})
        kept = groups.setdefault(group_id, {})
        kept.update({tp: PendingOffset(record_offset, offset) for tp, offset in offsets.items()})

    def partitions(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which the group has pending offsets."""
        if not self._by_producer:
            return ()
        return {tp for groups in self._by_producer.values() for tp in groups.get(group_id, ())}

    def pop(self, producer_id: int, group_id: str) -> dict[TopicPartition, PendingOffset]:
        """Remove and return the producer's pending offsets for a group."""
        groups = self._by_producer.get(producer_id, {})
        removed = groups.pop(group_id, {})
        if not groups:
            self._by_producer.pop(producer_id, None)
        return removed

    def groups(self, producer_id: int) -> list[str]:
        """Return the groups for which the producer has pending offsets."""
        return list(self._by_producer.get(producer_id, ()))

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        """Remove the group's pending offsets of a partition, of all producers."""
        for groups in self._by_producer.values():
            groups.get(group_id, {}).pop(partition, None)

    def for_topic(self, topic: str) -> Iterator[tuple[str, TopicPartition]]:
        """Yield the (group, partition) pairs of a topic."""
        for groups in self._by_producer.values():
            for group_id, kept in groups.items():
                yield from ((group_id, tp) for tp in kept if tp.topic == topic)

    def has_open_transaction(self, group_id: str) -> bool:
        """Whether a transaction with offsets of the group is open, even if tombstones removed those offsets."""
        return any(group_id in groups for groups in self._by_producer.values())
