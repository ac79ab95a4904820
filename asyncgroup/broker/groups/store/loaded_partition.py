"""A partition of `__consumer_offsets` that a node has loaded: its content, and the writes not applied to it yet.

It also computes the tombstones of deletions, which cover what exists at the time of the append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from asyncgroup.broker.clock import TimerKey
from asyncgroup.broker.groups.shared.interfaces import FindExpired, WriteCallback
from asyncgroup.broker.groups.store.coordinator_records import CoordinatorRecord, OffsetRecord
from asyncgroup.broker.groups.store.replayed import ReplayedPartition
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["DeferredEvent", "LoadedPartition", "QueuedWrite", "RecordsSupplier"]


@dataclass(slots=True, eq=False)
class QueuedWrite:
    """A batch that waits for `append_delay`."""

    records: RecordsSupplier
    producer: tuple[int, int]
    done: WriteCallback
    timer: TimerKey | None
    """None: it is appended right after the write before it in the queue."""


@dataclass(slots=True, eq=False)
class DeferredEvent:
    """A batch or marker in the log that takes effect when the high watermark reaches `end_offset`."""

    end_offset: int
    apply: Callable[[], None]
    """Applies it to the in-memory state."""
    done: WriteCallback | None
    """None once called, and for markers, which have no caller."""
    records: Sequence[CoordinatorRecord] = ()
    timer: TimerKey | None = None

    def answer(self, error: ErrorCode) -> None:
        """Call `done`, at most once: a write that timed out is still applied when it is replicated."""
        done, self.done = self.done, None
        if done is not None:
            done(error)


class LoadedPartition:
    """The partition with this `number`. A write is first in `queued`, then in `deferred`, then applied to `replayed`."""

    __slots__ = ("deferred", "number", "queued", "replayed")

    def __init__(self, number: int) -> None:
        self.number = number
        self.replayed = ReplayedPartition(number)
        """The content up to the high watermark."""
        self.queued: deque[QueuedWrite] = deque()
        """Writes that are not in the log yet."""
        self.deferred: deque[DeferredEvent] = deque()
        """Writes and markers in the log, above the high watermark."""

    def __repr__(self) -> str:
        return (
            f"<LoadedPartition {self.number} {len(self.queued)} queued, {len(self.deferred)} not replicated>"
        )

    @property
    def is_idle(self) -> bool:
        """Whether no write is queued or waits for replication."""
        return not self.queued and not self.deferred

    def _unreplicated_offsets(self) -> Iterator[OffsetRecord]:
        """Yield the commits and tombstones of offsets that are in the log, but not applied yet."""
        for event in self.deferred:
            for record in event.records:
                if isinstance(record, OffsetRecord):
                    yield record

    def _unreplicated_commits(self, group_id: str) -> set[TopicPartition]:
        """Return the group's partitions whose last unreplicated record is a commit, not a tombstone."""
        partitions: set[TopicPartition] = set()
        for record in self._unreplicated_offsets():
            if record.group_id == group_id:
                (partitions.discard if record.offset is None else partitions.add)(record.partition)
        return partitions

    # -- tombstones ------------------------------------------------------------------------------------------

    def offset_tombstones(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> list[CoordinatorRecord]:
        """Return tombstones for those of the group's offsets that exist, pending and unreplicated ones included."""
        known = {
            *self.replayed.offsets(group_id),
            *self.replayed.unstable_partitions(group_id),
            *self._unreplicated_commits(group_id),
        }
        return _tombstones((group_id, tp) for tp in partitions if tp in known)

    def group_tombstones(self, group_id: str, group: Iterable[CoordinatorRecord]) -> list[CoordinatorRecord]:
        """Return tombstones for all offsets of a group, followed by `group`, those for the group itself."""
        known = [*self.replayed.offsets(group_id), *self.replayed.unstable_partitions(group_id)]
        unreplicated = (each.partition for each in self._unreplicated_offsets() if each.group_id == group_id)
        to_remove = dict.fromkeys([*known, *unreplicated])
        return [*_tombstones((group_id, tp) for tp in to_remove), *group]

    def topic_tombstones(self, topic: str) -> list[CoordinatorRecord]:
        """Return tombstones for all offsets of a topic."""
        unreplicated = (
            (each.group_id, each.partition)
            for each in self._unreplicated_offsets()
            if each.partition.topic == topic
        )
        return _tombstones(dict.fromkeys([*self.replayed.for_topic(topic), *unreplicated]))

    def expired_tombstones(
        self, group_id: str, find: FindExpired, group: Callable[[], Iterable[CoordinatorRecord]]
    ) -> list[CoordinatorRecord]:
        """Return tombstones for the group's offsets that `find` returns, and those of `group` if it has expired."""
        expired = find(self._unreplicated_commits(group_id))
        tombstones = _tombstones((group_id, tp) for tp in expired.partitions)
        return [*tombstones, *group()] if expired.group else tombstones


def _tombstones(keys: Iterable[tuple[str, TopicPartition]]) -> list[CoordinatorRecord]:
    return [OffsetRecord(group_id, tp, None) for group_id, tp in keys]


RecordsSupplier: TypeAlias = Callable[[LoadedPartition], list[CoordinatorRecord]]
"""Returns the records to write. Called at the time of the append, so that tombstones cover what exists then."""
