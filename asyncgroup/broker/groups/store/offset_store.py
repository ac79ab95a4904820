"""The group coordinator's store: groups and offsets, written to `__consumer_offsets` and read from memory.

A write passes through two queues of its partition, both in FIFO order: it waits for `append_delay` before it
enters the log, then for the high watermark. Only after that it is applied to the in-memory state and its
callback is called.

Kafka's counterpart is `CoordinatorRuntime` with its `CoordinatorLoader`, `PartitionWriter` and queue of deferred
events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, TypeAlias

from asyncgroup.broker.clock import Clock, TimerKey, Timers
from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.shared.interfaces import FindExpired, OffsetsLog, WriteCallback
from asyncgroup.broker.groups.shared.requests import GroupSnapshot, OffsetAndMetadata
from asyncgroup.broker.groups.store.coordinator_records import (
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
    encode_record,
)
from asyncgroup.broker.groups.store.loaded_partition import (
    DeferredEvent,
    LoadedPartition,
    QueuedWrite,
    RecordsSupplier,
)
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.records import BatchBuilder

__all__ = ["APPEND_ERRORS", "COMMIT_TIMEOUT", "NON_TRANSACTIONAL", "GroupTombstones", "OffsetStore"]

APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error that clients of the coordinator get when an append fails
(`GroupMetadataManager.appendGroupMetadataErrorToResponseError`); other codes are passed on unchanged.
"""

COMMIT_TIMEOUT: Final = 5.0
"""Seconds that a write may wait for replication before it is answered with an error (`offsets.commit.timeout.ms`)."""

NON_TRANSACTIONAL: Final = (-1, -1)
"""The producer (id, epoch) of writes outside of transactions."""

GroupTombstones: TypeAlias = Callable[[], Iterable[CoordinatorRecord]]
"""Returns the tombstones of a group, without its offsets."""

_NO_OFFSETS: Final[Mapping[TopicPartition, OffsetAndMetadata]] = {}
_NO_SIZE_LIMIT: Final = 2**31 - 1


class OffsetStore:
    """Durable storage for groups and offsets: `__consumer_offsets`, with its content in memory.

    It serves the groups of loaded partitions only. Each write is one batch; it is acknowledged through its
    `WriteCallback`, at once or later, and reads see acknowledged writes. `partition` is the number of a partition of
    `__consumer_offsets`, `partition_of` maps a group id to its partition. `clock` gives the timestamps of records. With
    an `append_delay` (seconds) a batch enters the log that much later, and is lost if the node dies before.
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
        self._timers = timers
        self._partition_of = partition_of
        self._clock = clock
        self._append_delay = append_delay
        self._partitions: dict[int, LoadedPartition] = {}
        self._timer_count = 0  # makes timer keys unique

    def __repr__(self) -> str:
        return f"<OffsetStore {len(self._partitions)} partitions>"

    # -- partitions ------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether `__consumer_offsets` exists."""
        return self._log.exists()

    def load(self, partition: int) -> Iterable[GroupSnapshot]:
        """Read the partition into memory. Return its classic groups, including those with offsets only."""
        loaded = self._partitions[partition] = LoadedPartition(partition)
        for data in self._log.read(partition):
            loaded.replayed.replay(data)
        return list(loaded.replayed.groups.values())

    def unload(self, partition: int) -> None:
        """Drop the partition from memory; pending writes to it fail with NOT_COORDINATOR."""
        loaded = self._partitions.pop(partition, None)
        if loaded is None:
            return
        self._fail_queued(loaded.queued, ErrorCode.NOT_COORDINATOR)
        for event in loaded.deferred:
            if event.timer is not None:
                self._timers.cancel(event.timer)
            event.answer(ErrorCode.NOT_COORDINATOR)

    def consumer_groups(self, partition: int) -> Iterable[ModernGroup]:
        """Return the groups with the consumer protocol in a loaded partition."""
        return list(self._partitions[partition].replayed.consumer_groups.values())

    def _loaded(self, group_id: str) -> LoadedPartition | None:
        return self._partitions.get(self._partition_of(group_id))

    # -- reading ---------------------------------------------------------------------------------------------

    def offsets(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""
        loaded = self._loaded(group_id)
        return _NO_OFFSETS if loaded is None else loaded.replayed.offsets(group_id)

    def unstable_partitions(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which a group has offsets in an open transaction."""
        loaded = self._loaded(group_id)
        return () if loaded is None else loaded.replayed.unstable_partitions(group_id)

    def has_open_transactions(self, group_id: str) -> bool:
        """Whether a transaction with offsets of the group is open, even if tombstones removed those offsets."""
        loaded = self._loaded(group_id)
        return loaded is not None and loaded.replayed.has_open_transactions(group_id)

    def is_idle(self, group_id: str) -> bool:
        """Whether no write to the group's partition is pending."""
        loaded = self._loaded(group_id)
        return loaded is None or loaded.is_idle

    # -- writing ---------------------------------------------------------------------------------------------

    def write_group(self, snapshot: GroupSnapshot, done: WriteCallback) -> None:
        """Append a group metadata record."""
        group_id = snapshot.group_id
        self._write(self._partition_of(group_id), lambda _: [GroupRecord(group_id, snapshot)], done)

    def write_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        done: WriteCallback,
        producer: tuple[int, int] = NON_TRANSACTIONAL,
    ) -> None:
        """Append offset commit records.

        Those in a transaction of `producer` (id, epoch) take effect with its commit marker.
        """
        records: list[CoordinatorRecord] = [
            OffsetRecord(group_id, tp, offset) for tp, offset in offsets.items()
        ]
        self._write(self._partition_of(group_id), lambda _: records, done, producer)

    def remove_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], done: WriteCallback
    ) -> None:
        """Append tombstones for those of the group's offsets that exist at the time of the append.

        Pending and unreplicated offsets are included.
        """
        to_remove = list(partitions)
        self._write(
            self._partition_of(group_id), lambda loaded: loaded.offset_tombstones(group_id, to_remove), done
        )

    def remove_expired(
        self, group_id: str, find: FindExpired, done: WriteCallback, group: GroupTombstones | None = None
    ) -> None:
        """Append tombstones for the offsets that `find` returns; it is called at the time of the append.

        Those of the group are what `group` returns, by default that of a classic group.

        Earlier commits are in the log by then and known to `find`, later ones follow the tombstones: no commit is lost.
        """
        removed = group or partial(_classic_tombstone, group_id)
        self._write(
            self._partition_of(group_id),
            lambda loaded: loaded.expired_tombstones(group_id, find, removed),
            done,
        )

    def remove_group(self, group_id: str, done: WriteCallback, group: GroupTombstones | None = None) -> None:
        """Append tombstones for the group and all its offsets; `group` as in `remove_expired`."""
        removed = group or partial(_classic_tombstone, group_id)
        self._write(
            self._partition_of(group_id),
            lambda loaded: loaded.group_tombstones(group_id, removed()),
            done,
        )

    def write_records(self, group_id: str, records: Iterable[CoordinatorRecord], done: WriteCallback) -> None:
        """Append records of a group as one batch; without records, wait for all earlier writes."""
        batch = list(records)
        if batch:
            self._write(self._partition_of(group_id), lambda _: batch, done)
        else:
            self.after_writes(group_id, done)

    def remove_topic(self, topic: str) -> None:
        """Append tombstones for all offsets of a topic."""
        for partition in list(self._partitions):
            self._write(partition, lambda loaded: loaded.topic_tombstones(topic), _ignore)

    def _write(
        self,
        partition: int,
        records: RecordsSupplier,
        done: WriteCallback,
        producer: tuple[int, int] = NON_TRANSACTIONAL,
    ) -> None:
        """Append a batch; an empty one appends nothing and is answered after all earlier writes."""
        loaded = self._partitions.get(partition)
        if loaded is None:
            done(ErrorCode.NOT_COORDINATOR)
        elif self._append_delay <= 0:
            self._append(loaded, records(loaded), done, producer)
        else:
            append_next = partial(self._append_next, loaded)
            timer = self._timer("append", loaded, self._append_delay, append_next)
            loaded.queued.append(QueuedWrite(records, producer, done, timer))

    def after_writes(self, group_id: str, done: WriteCallback) -> None:
        """Call `done` after all earlier writes to the group's partition are answered, at once if there are none."""
        loaded = self._loaded(group_id)
        if loaded is None:
            done(ErrorCode.NOT_COORDINATOR)
        elif loaded.queued:
            loaded.queued.append(QueuedWrite(lambda _: [], NON_TRANSACTIONAL, done, None))
        else:
            self._append(loaded, [], done, NON_TRANSACTIONAL)

    def end_transaction(self, producer_id: int, partition: int, *, commit: bool) -> None:
        """Commit or drop the producer's pending offsets in `partition`, where its marker was just appended.

        Queued writes of the transaction missed it: they fail with INVALID_TXN_STATE (the verification guard of
        KIP-890).
        """
        loaded = self._partitions.get(partition)
        if loaded is None:  # it is being loaded, including the marker
            return
        late = [one for one in loaded.queued if one.producer[0] == producer_id]
        loaded.queued = deque(one for one in loaded.queued if one.producer[0] != producer_id)
        self._fail_queued(late, ErrorCode.INVALID_TXN_STATE)
        # writes that waited only for those that failed
        self._append_untimed(loaded)
        ends = partial(loaded.replayed.end_transaction, producer_id, commit=commit)
        self._defer(loaded, DeferredEvent(self._log.end_offset(partition), ends, None))

    def _fail_queued(self, writes: Iterable[QueuedWrite], error: ErrorCode) -> None:
        for one in writes:
            if one.timer is not None:
                self._timers.cancel(one.timer)
            one.done(error)

    # -- appending -------------------------------------------------------------------------------------------

    def _append_next(self, loaded: LoadedPartition) -> None:
        """Append the oldest queued write, when the timer of any write fires, so that the order is kept."""
        one = loaded.queued.popleft()
        self._append(loaded, one.records(loaded), one.done, one.producer)
        self._append_untimed(loaded)

    def _append_untimed(self, loaded: LoadedPartition) -> None:
        """Append the writes without a timer at the head of the queue: the writes before them are in the log."""
        while loaded.queued and loaded.queued[0].timer is None:
            one = loaded.queued.popleft()
            self._append(loaded, one.records(loaded), one.done, one.producer)

    def _append(
        self,
        loaded: LoadedPartition,
        records: list[CoordinatorRecord],
        done: WriteCallback,
        producer: tuple[int, int],
    ) -> None:
        if not records and not loaded.deferred:
            done(ErrorCode.NONE)
            return
        try:
            base_offset = self._log.append(loaded.number, self._batch(records, producer)) if records else -1
        except Refused as error:
            done(APPEND_ERRORS.get(error.code, error.code))
            return
        apply = partial(loaded.replayed.apply_all, base_offset, producer[0], records)
        # without records it waits for all that are before it
        self._defer(loaded, DeferredEvent(self._log.end_offset(loaded.number), apply, done, records))

    def _batch(self, records: list[CoordinatorRecord], producer: tuple[int, int]) -> bytes:
        builder = BatchBuilder(
            size_limit=_NO_SIZE_LIMIT,
            transactional=producer != NON_TRANSACTIONAL,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=0,
        )
        now = self._clock()
        for record in records:
            builder.append(now, *encode_record(record))
        return builder.build()

    # -- replication -----------------------------------------------------------------------------------------

    def _defer(self, loaded: LoadedPartition, event: DeferredEvent) -> None:
        loaded.deferred.append(event)
        # events are applied in order: with others before it, this one waits for them
        if len(loaded.deferred) == 1 and self._log.high_watermark(loaded.number) >= event.end_offset:
            self._apply_replicated(loaded)
        elif event.done is not None:
            give_up = partial(event.answer, APPEND_ERRORS[ErrorCode.REQUEST_TIMED_OUT])
            event.timer = self._timer("replicas", loaded, COMMIT_TIMEOUT, give_up)

    def on_high_watermark_updated(self, partition: int) -> None:
        """Apply and answer the writes below the partition's high watermark, which may have moved."""
        loaded = self._partitions.get(partition)
        if loaded is not None:
            self._apply_replicated(loaded)

    def _apply_replicated(self, loaded: LoadedPartition) -> None:
        while loaded.deferred and self._log.high_watermark(loaded.number) >= loaded.deferred[0].end_offset:
            event = loaded.deferred.popleft()
            if event.timer is not None:
                self._timers.cancel(event.timer)
            # first: a client may read its commit as soon as it has the answer
            event.apply()
            event.answer(ErrorCode.NONE)

    def _timer(
        self, kind: str, loaded: LoadedPartition, delay: float, action: Callable[[], None]
    ) -> TimerKey:
        self._timer_count += 1
        key = (kind, loaded.number, self._timer_count)
        self._timers.schedule(key, delay, action)
        return key


def _classic_tombstone(group_id: str) -> list[CoordinatorRecord]:
    return [GroupRecord(group_id, None)]


def _ignore(_error: ErrorCode) -> None:
    """For the tombstones of a deleted topic: if the write fails, the offsets stay until they expire."""
