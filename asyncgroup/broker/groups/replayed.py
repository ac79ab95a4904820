"""The in-memory state of one partition of `__consumer_offsets`.

`apply` and `end_transaction` are used both for loading a log and for each append to it, so the state in
memory always equals what the next coordinator will load. They correspond to the `replay` methods of Kafka's
`OffsetMetadataManager` and `GroupMetadataManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from asyncgroup.broker.groups.pending_offsets import PendingOffsets
from asyncgroup.broker.groups.records import (
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
    decode_record,
)
from asyncgroup.broker.groups.requests import GroupSnapshot, OffsetAndMetadata
from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition
from asyncgroup.wire.batch_view import BatchView, iter_batches
from asyncgroup.wire.control import ControlType, read_control_type
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import decode_batch

__all__ = ["ReplayedPartition"]

log = logging.getLogger(__name__)


class ReplayedPartition:
    """The groups and offsets in the partition with the number `partition`."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.groups: dict[str, GroupSnapshot] = {}
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
        if isinstance(record, GroupRecord):
            if record.snapshot is None:
                self.groups.pop(record.group_id, None)
            else:
                self.groups[record.group_id] = record.snapshot
        elif record.offset is None:
            self._remove_offset(record)
        else:
            self.groups.setdefault(record.group_id, _simple_group(record.group_id))
            if producer_id < 0:
                self._put_offset(record_offset, record.group_id, record.partition, record.offset)
            else:
                offsets = {record.partition: record.offset}
                self._pending.add(record.group_id, producer_id, offsets, record_offset)

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
