"""Offsets committed inside transactions that are still open (KIP-98, KIP-447; Kafka's `OffsetMetadataManager`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from asyncgroup.broker.coordinator.calls import CommittedOffset
from asyncgroup.model import TopicPartition

__all__ = ["Pending", "PendingOffsets"]


class Pending(NamedTuple):
    """An offset that waits for its marker; `number` says when it was written, among all writes."""

    number: int
    offset: CommittedOffset


class PendingOffsets:
    """By producer id and group. A later write of the same producer replaces an earlier one."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[str, dict[TopicPartition, Pending]]] = {}

    def __repr__(self) -> str:
        return f"<PendingOffsets of {len(self._by_producer)} producers>"

    def add(
        self, group_id: str, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset], number: int
    ) -> None:
        """Keep `offsets` until the producer's marker."""
        groups = self._by_producer.setdefault(producer_id, {})
        kept = groups.setdefault(group_id, {})
        kept.update({tp: Pending(number, offset) for tp, offset in offsets.items()})

    def of(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions of a group whose offsets are not stable."""
        if not self._by_producer:
            return ()
        return {tp for groups in self._by_producer.values() for tp in groups.get(group_id, ())}

    def take(self, producer_id: int, group_id: str) -> dict[TopicPartition, Pending]:
        """What a producer left for a group; it is pending no more."""
        groups = self._by_producer.get(producer_id, {})
        taken = groups.pop(group_id, {})
        if not groups:
            self._by_producer.pop(producer_id, None)
        return taken

    def groups(self, producer_id: int) -> list[str]:
        """The groups that a producer left offsets for."""
        return list(self._by_producer.get(producer_id, ()))

    def all_groups(self) -> list[str]:
        """The groups that anybody left offsets for."""
        return [group_id for groups in self._by_producer.values() for group_id in groups]

    def remove_group(self, group_id: str) -> None:
        """Forget a group's."""
        for producer_id in list(self._by_producer):
            self.take(producer_id, group_id)

    def remove_topic(self, topic: str) -> None:
        """Forget a deleted topic's."""
        for kept in self._all():
            for tp in [tp for tp in kept if tp.topic == topic]:
                del kept[tp]

    def _all(self) -> Iterator[dict[TopicPartition, Pending]]:
        for groups in self._by_producer.values():
            yield from groups.values()
