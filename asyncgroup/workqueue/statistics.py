"""Counts of a work queue since it was opened, and the number of its records in each state."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.model import TopicPartition

__all__ = ["PartitionStatistics", "QueueCounts", "QueueStatistics"]


@dataclass(slots=True)
class QueueCounts:
    """Counts of deliveries and records since the queue was opened."""

    delivered: int = 0
    """Deliveries that have begun, repeated ones included."""
    acked: int = 0
    """Records that were acknowledged."""
    nacked: int = 0
    """Deliveries that were nacked, or whose handler raised."""
    expired: int = 0
    """Deliveries whose ack timeout has passed."""
    reconsumed: int = 0
    """Records that were copied to a retry topic."""
    dead_lettered: int = 0
    """Records that were copied to a dead letter topic."""


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """The records of one partition that a queue has now."""

    tp: TopicPartition
    """Topic and partition."""
    base: int
    """The first offset that is not acknowledged: the offset of the next commit."""
    lag: int
    """Offsets up to the high watermark that are not acknowledged; of read_committed queues, up to the last stable offset."""
    queued: int
    """Records that have arrived and are not being delivered."""
    acquired: int
    """Deliveries that are not ended."""
    waiting: int
    """Records that wait for the end of a delay: nacked, or delayed by their producer."""
    publishing: int
    """Records that are being copied to a retry or dead letter topic."""
    window: int
    """Offsets from `base` to the last acknowledged one."""
    metadata_bytes: int
    """Bytes of the metadata of the last commit."""
    is_full: bool
    """Whether the window is nearly too large for a commit, so that no record above it is delivered."""
    open_for: float = 0.0
    """Seconds for which the delivery that was not renewed for longest is open: since the first call of `statistics()` that saw it
    open, so at most the time between two calls too little."""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Counts of a work queue, and its records by state and partition."""

    counts: QueueCounts
    """Deliveries and records since the queue was opened."""
    partitions: tuple[PartitionStatistics, ...]
    """The partitions that are assigned, sorted."""
    handlers: int
    """Handlers of `run` that run now."""
    at_close: tuple[PartitionStatistics, ...] = ()
    """The partitions that a closed queue had last, sorted, as they were after their last delivery; empty before."""

    @property
    def acquired(self) -> int:
        """Deliveries that are not ended."""
        return sum(partition.acquired for partition in self.partitions)

    @property
    def queued(self) -> int:
        """Records that have arrived and are not being delivered."""
        return sum(partition.queued for partition in self.partitions)

    @property
    def waiting(self) -> int:
        """Records that wait for the end of a delay."""
        return sum(partition.waiting for partition in self.partitions)

    @property
    def open_for(self) -> float:
        """Seconds for which the longest open delivery is open; see `PartitionStatistics.open_for`."""
        return max((partition.open_for for partition in self.partitions), default=0.0)

    @property
    def lag(self) -> int:
        """The sum of the lags of all partitions."""
        return sum(partition.lag for partition in self.partitions)

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics as dicts, lists, strings and numbers, ready for JSON."""
        return {
            **asdict(self.counts),
            "handlers": self.handlers,
            "acquired": self.acquired,
            "queued": self.queued,
            "waiting": self.waiting,
            "open_for": self.open_for,
            "lag": self.lag,
            "partitions": [asdict(each) | {"tp": str(each.tp)} for each in self.partitions],
        }


for _class in (PartitionStatistics, QueueStatistics):
    add_foreign_names(_class, {"in_hand": "statistics.acquired"})
