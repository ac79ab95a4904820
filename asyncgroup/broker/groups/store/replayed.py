"""The in-memory state of one partition of `__consumer_offsets`, with the pending offsets of open transactions.

`apply` and `end_transaction` are used both for loading a log and for each append to it, so the state in
memory always equals what the next coordinator will load. They correspond to the `replay` methods of Kafka's
`OffsetMetadataManager` and `GroupMetadataManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from asyncgroup.broker.groups.consumer.consumer_group_records import replay
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.shared.requests import GroupSnapshot, OffsetAndMetadata
from asyncgroup.broker.groups.store.coordinator_records import (
    ConsumerGroupRecord,
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
    decode_record,
)
from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition
from asyncgroup.wire.batch_view import BatchView, iter_batches
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import ControlType, decode_batch, read_control_type

__all__ = ["PendingOffset", "PendingOffsets", "ReplayedPartition"]

log = logging.getLogger(__name__)


class ReplayedPartition:
    """The groups and offsets in the partition with the number `partition`."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.groups: dict[str, GroupSnapshot] = {}
        self.consumer_groups: dict[str, ModernGroup] = {}
        """Groups with the consumer protocol, by id; a group is either here or in `groups`."""
        self._offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self._record_offsets: dict[tuple[str, TopicPartition], int] = {}
        """The log offset of the record of each committed offset."""
        self._pending = PendingOffsets()

    def __repr__(self) -> str:
        return f"<ReplayedPartition {self.partition} {len(self.groups)} groups, {len(self._record_offsets)} offsets>"

    # -- reading ---------------------------------------------------------------------------------------------

    def offsets(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""
        return self._offsets.get(group_id, {})

    def unstable_partitions(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which a group has offsets in an open transaction."""
        return self._pending.partitions(group_id)

    def for_topic(self, topic: str) -> Collection[tuple[str, TopicPartition]]:
        """Return the (group, partition) pairs with an offset of this topic, committed or pending."""
        found = dict.fromkeys(key for key in self._record_offsets if key[1].topic == topic)
        return found | dict.fromkeys(self._pending.for_topic(topic))

    # -- replaying -------------------------------------------------------------------------------------------

    def replay(self, data: Buffer) -> None:
        """Apply complete record batches of the log."""
        for batch in iter_batches(data):
            try:
                self._replay_batch(batch)
            except AsyncGroupError:
                # Kafka would not load the partition at all; here the rest of it is still used.
                log.exception("__consumer_offsets-%d: skipped a batch that cannot be read", self.partition)

    def _replay_batch(self, batch: BatchView) -> None:
        if batch.is_control:
            kind = read_control_type(batch)
            if kind is not None:
                self.end_transaction(batch.producer_id, commit=kind is ControlType.COMMIT)
            return
        for record in decode_batch("__consumer_offsets", self.partition, batch):
            decoded = decode_record(record.key, record.value)
            if decoded is not None:
                self.apply(record.offset, batch.producer_id, decoded)

    def apply_all(self, base_offset: int, producer_id: int, records: Iterable[CoordinatorRecord]) -> None:
        """Apply the records of one batch."""
        for record_offset, record in enumerate(records, base_offset):
            self.apply(record_offset, producer_id, record)

    def apply(self, record_offset: int, producer_id: int, record: CoordinatorRecord) -> None:
        """Apply the record at offset `record_offset`; `producer_id` is -1 outside of transactions."""
        if isinstance(record, ConsumerGroupRecord):
            self._apply_to_consumer_group(record)
        elif isinstance(record, GroupRecord):
            if record.snapshot is None:
                self.groups.pop(record.group_id, None)
            else:
                self.groups[record.group_id] = record.snapshot
                self.consumer_groups.pop(record.group_id, None)
        elif record.offset is None:
            self._remove_offset(record)
        else:
            if record.group_id not in self.consumer_groups:
                self.groups.setdefault(record.group_id, _simple_group(record.group_id))
            if producer_id < 0:
                self._put_offset(record_offset, record.group_id, record.partition, record.offset)
            else:
                offsets = {record.partition: record.offset}
                self._pending.add(record.group_id, producer_id, offsets, record_offset)

    def _apply_to_consumer_group(self, record: ConsumerGroupRecord) -> None:
        group_id = record.group_id
        group = replay(self.consumer_groups.get(group_id), record)
        if group is None:
            self.consumer_groups.pop(group_id, None)
        else:
            self.consumer_groups[group_id] = group
            self.groups.pop(group_id, None)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Commit the transaction's offsets, except those with a later commit outside of it, or drop them."""
        for group_id in self._pending.groups(producer_id):
            for tp, (record_offset, offset) in self._pending.pop(producer_id, group_id).items():
                if commit and record_offset > self._record_offsets.get((group_id, tp), -1):
                    self._put_offset(record_offset, group_id, tp, offset)

    def _put_offset(
        self, record_offset: int, group_id: str, tp: TopicPartition, offset: OffsetAndMetadata
    ) -> None:
        self._offsets.setdefault(group_id, {})[tp] = offset
        self._record_offsets[group_id, tp] = record_offset

    def _remove_offset(self, record: OffsetRecord) -> None:
        self._pending.remove(record.group_id, record.partition)
        if self._record_offsets.pop((record.group_id, record.partition), None) is not None:
            offsets = self._offsets[record.group_id]
            del offsets[record.partition]
            if not offsets:
                del self._offsets[record.group_id]

    def has_open_transactions(self, group_id: str) -> bool:
        """Whether a transaction with offsets of the group is open, even if tombstones removed those offsets."""
        return self._pending.has_open_transaction(group_id)


def _simple_group(group_id: str) -> GroupSnapshot:
    """Return a group that has offsets only and never had a member."""
    return GroupSnapshot(
        group_id=group_id, generation_id=0, protocol_type=None, protocol_name=None, leader=None, members=()
    )


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
