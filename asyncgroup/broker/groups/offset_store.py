"""The group coordinator's store: groups and offsets, written to `__consumer_offsets` and read from memory.

Kafka's counterpart is `CoordinatorRuntime` with its `CoordinatorLoader`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from asyncgroup.broker.clock import Clock
from asyncgroup.broker.groups.interfaces import FindExpired, OffsetsLog, WriteCallback
from asyncgroup.broker.groups.offsets_writer import OffsetsWriter
from asyncgroup.broker.groups.records import CoordinatorRecord, GroupRecord, OffsetRecord
from asyncgroup.broker.groups.replayed import ReplayedPartition
from asyncgroup.broker.groups.requests import GroupSnapshot, OffsetAndMetadata
from asyncgroup.broker.timers import Timers
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["OffsetStore"]

_NO_OFFSETS: Final[Mapping[TopicPartition, OffsetAndMetadata]] = {}


class OffsetStore:
    """Durable storage for groups and offsets: `__consumer_offsets`, with its content in memory.

    It serves the groups of loaded partitions only. Each write is one batch; it is acknowledged through its
    `WriteCallback`, at once or later, and reads see acknowledged writes. `partition` is the number of a partition of
    `__consumer_offsets`, `partition_of` maps a group id to its partition; for `clock` and `append_delay` see `OffsetsWriter`.
    """

    def __init__(
        self,
        log: OffsetsLog,
        timers: Timers,
        partition_of: Callable[[str], int],
        clock: Clock,
        *,
        append_delay: float = 0.0,
    ) -> None:
        self._log = log
        self._partition_of = partition_of
        self._partitions: dict[int, ReplayedPartition] = {}
        self._writer = OffsetsWriter(log, timers, clock, self._partitions, append_delay)

    def __repr__(self) -> str:
        return f"<OffsetStore {len(self._partitions)} partitions>"

    # -- partitions ------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether `__consumer_offsets` exists."""
        return self._log.exists()

    def load(self, partition: int) -> Iterable[GroupSnapshot]:
        """Read the partition into memory. Return its groups, including those with offsets only."""
        replayed = self._partitions[partition] = ReplayedPartition(partition)
        for data in self._log.read(partition):
            replayed.replay(data)
        return list(replayed.groups.values())

    def unload(self, partition: int) -> None:
        """Drop the partition from memory; pending writes to it fail with NOT_COORDINATOR."""
        self._partitions.pop(partition, None)
        self._writer.fail(partition)

    def _replayed_of(self, group_id: str) -> ReplayedPartition | None:
        return self._partitions.get(self._partition_of(group_id))

    # -- reading ---------------------------------------------------------------------------------------------

    def offsets(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""
        replayed = self._replayed_of(group_id)
        return _NO_OFFSETS if replayed is None else replayed.offsets(group_id)

    def unstable_partitions(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which a group has offsets in an open transaction."""
        replayed = self._replayed_of(group_id)
        return () if replayed is None else replayed.unstable_partitions(group_id)

    def has_open_transactions(self, group_id: str) -> bool:
        """Whether a transaction with offsets of the group is open, even if tombstones removed those offsets."""
        replayed = self._replayed_of(group_id)
        return replayed is not None and replayed.has_open_transactions(group_id)

    def after_writes(self, group_id: str, done: WriteCallback) -> None:
        """Call `done` after all earlier writes to the group's partition are answered."""
        self._writer.after_writes(self._partition_of(group_id), done)

    def is_idle(self, group_id: str) -> bool:
        """Whether no write to the group's partition is pending."""
        return self._writer.is_idle(self._partition_of(group_id))

    def on_high_watermark_updated(self, partition: int) -> None:
        """Answer the writes below the partition's high watermark, which may have moved."""
        self._writer.on_high_watermark_updated(partition)

    # -- writing ---------------------------------------------------------------------------------------------

    def write_group(self, snapshot: GroupSnapshot, done: WriteCallback) -> None:
        """Append a group metadata record."""
        partition = self._partition_of(snapshot.group_id)
        self._writer.write(partition, lambda: [GroupRecord(snapshot.group_id, snapshot)], done)

    def write_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], done: WriteCallback
    ) -> None:
        """Append offset commit records."""
        partition = self._partition_of(group_id)
        self._writer.write(partition, lambda: _offset_records(group_id, offsets), done)

    def write_pending_offsets(
        self,
        group_id: str,
        producer: tuple[int, int],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        done: WriteCallback,
    ) -> None:
        """Append offset commit records in a transaction of `producer` (id, epoch).

        They take effect with its commit marker.
        """
        partition = self._partition_of(group_id)
        self._writer.write(partition, lambda: _offset_records(group_id, offsets), done, producer)

    def remove_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], done: WriteCallback
    ) -> None:
        """Append tombstones for those of the group's offsets that exist at the time of the append.

        Pending and unreplicated offsets are included.
        """
        to_remove = list(partitions)

        def records() -> list[CoordinatorRecord]:
            known = {
                *self.offsets(group_id),
                *self.unstable_partitions(group_id),
                *self._unreplicated_commits(group_id),
            }
            return _tombstones((group_id, tp) for tp in to_remove if tp in known)

        self._writer.write(self._partition_of(group_id), records, done)

    def remove_expired(self, group_id: str, find: FindExpired, done: WriteCallback) -> None:
        """Append tombstones for the offsets that `find` returns; it is called at the time of the append.

        Earlier commits are in the log by then and known to `find`, later ones follow the tombstones: no commit is lost.
        """

        def records() -> list[CoordinatorRecord]:
            expired = find(self._unreplicated_commits(group_id))
            tombstones = _tombstones((group_id, tp) for tp in expired.partitions)
            return [*tombstones, GroupRecord(group_id, None)] if expired.group else tombstones

        self._writer.write(self._partition_of(group_id), records, done)

    def remove_topic(self, topic: str) -> None:
        """Append tombstones for all offsets of a topic."""
        for replayed in list(self._partitions.values()):
            records = partial(self._topic_tombstones, replayed, topic)
            self._writer.write(replayed.partition, records, _ignore)

    def remove_group(self, group_id: str, done: WriteCallback) -> None:
        """Append tombstones for the group and all its offsets."""

        def records() -> list[CoordinatorRecord]:
            known = [*self.offsets(group_id), *self.unstable_partitions(group_id)]
            unreplicated = (
                tp
                for name, tp in self._unreplicated_offsets(self._partition_of(group_id))
                if name == group_id
            )
            to_remove = dict.fromkeys([*known, *unreplicated])
            return [*_tombstones((group_id, tp) for tp in to_remove), GroupRecord(group_id, None)]

        self._writer.write(self._partition_of(group_id), records, done)

    def _topic_tombstones(self, replayed: ReplayedPartition, topic: str) -> list[CoordinatorRecord]:
        unreplicated = (
            key for key in self._unreplicated_offsets(replayed.partition) if key[1].topic == topic
        )
        return _tombstones(dict.fromkeys([*replayed.for_topic(topic), *unreplicated]))

    def _unreplicated_offsets(self, partition: int) -> Iterator[tuple[str, TopicPartition]]:
        """Yield the (group, partition) pairs of offsets that are in the log, but not replicated."""
        for record in self._writer.unreplicated_records(partition):
            if isinstance(record, OffsetRecord):
                yield record.group_id, record.partition

    def _unreplicated_commits(self, group_id: str) -> set[TopicPartition]:
        """Return the group's partitions whose last unreplicated record is a commit, not a tombstone."""
        partitions: set[TopicPartition] = set()
        for record in self._writer.unreplicated_records(self._partition_of(group_id)):
            if isinstance(record, OffsetRecord) and record.group_id == group_id:
                (partitions.discard if record.offset is None else partitions.add)(record.partition)
        return partitions

    def end_transaction(self, producer_id: int, partition: int, *, commit: bool) -> None:
        """Commit or drop the producer's pending offsets in `partition`, where its marker was just appended."""
        if partition in self._partitions:  # else it is being loaded, including the marker
            self._writer.end_transaction(partition, producer_id, commit=commit)


def _offset_records(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[CoordinatorRecord]:
    return [OffsetRecord(group_id, tp, offset) for tp, offset in offsets.items()]


def _tombstones(keys: Iterable[tuple[str, TopicPartition]]) -> list[CoordinatorRecord]:
    return [OffsetRecord(group_id, tp, None) for group_id, tp in keys]


def _ignore(_error: ErrorCode) -> None:
    """For the tombstones of a deleted topic: if the write fails, the offsets stay until they expire."""
