"""Groups and offsets in the log of `__consumer_offsets`, one batch a write, and in memory for reading (Kafka's
`CoordinatorRuntime` with its `PartitionWriter` and `CoordinatorLoader`).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.broker.coordinator.calls import CommittedOffset, GroupSnapshot
from asyncgroup.broker.coordinator.ports import Clock, OffsetsLog, Timers, Written
from asyncgroup.broker.coordinator.records import (
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
    encode_record,
)
from asyncgroup.broker.coordinator.replayed import ReplayedPartition
from asyncgroup.broker.errors import Refused
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.records import BatchBuilder

__all__ = ["APPEND_ERRORS", "LogOffsetStore"]

APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What clients of a coordinator are told when an append fails
(`GroupMetadataManager.appendGroupMetadataErrorToResponseError`); other codes stay what they are.
"""

_NOBODY: Final = (-1, -1)
_ONE_BATCH: Final = 2**31 - 1
_NOTHING: Final[Mapping[TopicPartition, CommittedOffset]] = {}


_Records: TypeAlias = Callable[[], list[CoordinatorRecord]]
"""What to write, said when its turn comes: tombstones are for what is there by then."""


class _Append(NamedTuple):
    """A batch on its way into the log."""

    records: _Records
    producer: tuple[int, int]
    done: Written
    timer: tuple[str, int, int]


class LogOffsetStore:
    """An `OffsetStore` over the partitions that its node leads.

    `partition_of` maps a group id to its partition, `clock` stamps the records. With an `append_delay` (seconds) a batch
    enters the log that much later: until then it may be lost, and nobody has been told that it is there. What the topic's
    replicas have is what is in the log, as all of them share it.
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
        self._log, self._timers, self._partition_of, self._clock = log, timers, partition_of, clock
        self._append_delay = append_delay
        self._partitions: dict[int, ReplayedPartition] = {}
        self._on_their_way: dict[int, deque[_Append]] = {}
        self._sent = 0

    def __repr__(self) -> str:
        return f"<LogOffsetStore {len(self._partitions)} partitions>"

    # -- partitions ------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is anything to load."""
        return self._log.exists()

    def load(self, partition: int) -> Iterable[GroupSnapshot]:
        """Read the partition into memory; its groups, those with offsets only included."""
        replayed = self._partitions[partition] = ReplayedPartition(partition)
        for data in self._log.read(partition):
            replayed.replay(data)
        return list(replayed.groups.values())

    def unload(self, partition: int) -> None:
        """Forget the partition; what is being written to it fails with NOT_COORDINATOR."""
        self._partitions.pop(partition, None)
        self._fail(self._on_their_way.pop(partition, ()), ErrorCode.NOT_COORDINATOR)

    def _of(self, group_id: str) -> ReplayedPartition | None:
        return self._partitions.get(self._partition_of(group_id))

    # -- reading ---------------------------------------------------------------------------------------------

    def offsets(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """The committed offsets of a group."""
        replayed = self._of(group_id)
        return _NOTHING if replayed is None else replayed.offsets(group_id)

    def pending(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions for which a group has offsets in an open transaction."""
        replayed = self._of(group_id)
        return () if replayed is None else replayed.pending(group_id)

    def has_open_transactions(self, group_id: str) -> bool:
        """Whether a transaction with offsets of this group is open."""
        replayed = self._of(group_id)
        return replayed is not None and replayed.has_open_transactions(group_id)

    # -- writing ---------------------------------------------------------------------------------------------

    def write_group(self, snapshot: GroupSnapshot, done: Written) -> None:
        """Append a group-metadata record."""
        self._write(snapshot.group_id, lambda: [GroupRecord(snapshot.group_id, snapshot)], done)

    def write_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], done: Written
    ) -> None:
        """Append offset-commit records."""
        self._write(group_id, lambda: _offset_records(group_id, offsets), done)

    def write_pending_offsets(
        self,
        group_id: str,
        producer: tuple[int, int],
        offsets: Mapping[TopicPartition, CommittedOffset],
        done: Written,
    ) -> None:
        """Append offset-commit records of a transaction of `producer` (id, epoch)."""
        self._write(group_id, lambda: _offset_records(group_id, offsets), done, producer)

    def remove_offsets(self, group_id: str, partitions: Iterable[TopicPartition], done: Written) -> None:
        """Append tombstones for a group's offsets, pending ones included."""
        doomed = list(partitions)
        self._write(group_id, lambda: _tombstones((group_id, tp) for tp in doomed), done)

    def remove_topic(self, topic: str) -> None:
        """Append tombstones for all offsets of a topic."""
        for replayed in list(self._partitions.values()):
            tombstones = functools.partial(_topic_tombstones, replayed, topic)
            self._write_to(replayed.number, tombstones, _ignore, _NOBODY)

    def remove_group(self, group_id: str, done: Written) -> None:
        """Append tombstones for the group and all its offsets."""

        def records() -> list[CoordinatorRecord]:
            places = dict.fromkeys([*self.offsets(group_id), *self.pending(group_id)])
            return [*_tombstones((group_id, tp) for tp in places), GroupRecord(group_id, None)]

        self._write(group_id, records, done)

    def end_transaction(self, producer_id: int, partition: int, *, commit: bool) -> None:
        """The marker of a producer's transaction was appended to `partition`."""
        replayed = self._partitions.get(partition)
        if replayed is None:
            return  # its leader is loading the partition, marker included
        appends = self._on_their_way.get(partition)
        if appends:
            # They came too late for their transaction (the verification guard of KIP-890).
            late = [append for append in appends if append.producer[0] == producer_id]
            self._on_their_way[partition] = deque(a for a in appends if a.producer[0] != producer_id)
            self._fail(late, ErrorCode.INVALID_TXN_STATE)
        replayed.end_transaction(producer_id, commit=commit)

    # -- appending -------------------------------------------------------------------------------------------

    def _write(
        self, group_id: str, records: _Records, done: Written, producer: tuple[int, int] = _NOBODY
    ) -> None:
        self._write_to(self._partition_of(group_id), records, done, producer)

    def _write_to(self, partition: int, records: _Records, done: Written, producer: tuple[int, int]) -> None:
        if partition not in self._partitions:
            done(ErrorCode.NOT_COORDINATOR)
        elif self._append_delay <= 0:
            self._append(partition, records(), done, producer)
        else:
            self._sent += 1
            timer = ("append", partition, self._sent)
            self._on_their_way.setdefault(partition, deque()).append(_Append(records, producer, done, timer))
            self._timers.schedule(timer, self._append_delay, lambda: self._arrive(partition))

    def _arrive(self, partition: int) -> None:
        """One more batch is replicated: the oldest, whichever timer fired."""
        append = self._on_their_way[partition].popleft()
        self._append(partition, append.records(), append.done, append.producer)

    def _fail(self, appends: Iterable[_Append], error: ErrorCode) -> None:
        for append in appends:
            self._timers.cancel(append.timer)
            append.done(error)

    def _append(
        self, partition: int, records: list[CoordinatorRecord], done: Written, producer: tuple[int, int]
    ) -> None:
        if not records:
            done(ErrorCode.NONE)
            return
        try:
            base_offset = self._log.append(partition, self._batch(records, producer))
        except Refused as error:
            done(APPEND_ERRORS.get(error.code, error.code))
            return
        self._partitions[partition].apply_all(base_offset, producer[0], records)
        done(ErrorCode.NONE)

    def _batch(self, records: list[CoordinatorRecord], producer: tuple[int, int]) -> bytes:
        builder = BatchBuilder(
            size_limit=_ONE_BATCH,
            transactional=producer != _NOBODY,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=0,
        )
        now = self._clock()
        for record in records:
            builder.append(now, *encode_record(record))
        return builder.build()


def _offset_records(
    group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> list[CoordinatorRecord]:
    return [OffsetRecord(group_id, tp, offset) for tp, offset in offsets.items()]


def _tombstones(places: Iterable[tuple[str, TopicPartition]]) -> list[CoordinatorRecord]:
    return [OffsetRecord(group_id, tp, None) for group_id, tp in places]


def _topic_tombstones(replayed: ReplayedPartition, topic: str) -> list[CoordinatorRecord]:
    return _tombstones(replayed.of_topic(topic))


def _ignore(_error: ErrorCode) -> None:
    """For tombstones that nobody waits for: what stays is found again by the next check."""
