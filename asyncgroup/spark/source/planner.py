"""Plan a batch: the ranges to read between two offsets, and the data losses between them. Pure.

The rules are those of Spark's `KafkaOffsetReaderAdmin.getOffsetRangesFromResolvedOffsets` and
`KafkaMicroBatchStream.verifyEndOffsetForTriggerAvailableNow`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source import errors
from asyncgroup.spark.source.settings import ReadSettings
from asyncgroup.spark.source.splitting import pack, pack_small, split

__all__ = ["BatchPlan", "check_available_now", "plan_batch", "split_into_tasks", "usable_cores"]

Offsets: TypeAlias = Mapping[TopicPartition, int]


class BatchPlan(NamedTuple):
    """A planned batch."""

    ranges: list[OffsetRange]
    """To be read; one for each partition with new records."""
    losses: list[errors.DataLossError]
    """Data losses that were detected."""


def plan_batch(
    start: Offsets,
    end: Offsets,
    earliest_of_new: Offsets,
    *,
    group_id: str | None = None,
    replays_first: bool = False,
) -> BatchPlan:
    """Plan a batch from `start` to `end`.

    Partitions that are only in `end` are new: they start at their offset in `earliest_of_new`, and were deleted again if
    they have none there. Partitions that are only in `start` were deleted; Spark has another error code for that with a
    `group_id`. `replays_first` says that another process repeats the query's first batch: then `start` was looked up
    again, and may be after `end` without any loss.
    """
    losses: list[errors.DataLossError] = []
    new = sorted(end.keys() - start.keys())
    if gone := [tp for tp in new if tp not in earliest_of_new]:
        losses.append(errors.initial_offset_not_found(gone))
    losses += [
        errors.added_partition_does_not_start_from_zero(tp, earliest_of_new[tp])
        for tp in new
        if earliest_of_new.get(tp, 0)
    ]
    if deleted := sorted(start.keys() - end.keys()):
        losses.append(errors.partitions_deleted(deleted, group_id))
    begins = {**earliest_of_new, **start}
    ranges = []
    for tp in sorted(end.keys() & begins.keys()):
        first, last = begins[tp], end[tp]
        if first < last:
            ranges.append(OffsetRange(tp.topic, tp.partition, first, last))
        elif first > last and not replays_first:
            losses.append(errors.partition_offset_changed(tp, first, last))
    return BatchPlan(ranges, losses)


def check_available_now(
    prefetched: Offsets, end: Offsets, latest: Offsets, *, replayed: bool = False
) -> None:
    """Check that a batch of Trigger.AvailableNow ends within the offsets found at the trigger's start, which still exist.

    A `replayed` batch was planned before the trigger started: partitions may have been added since. Raises SourceError.
    """
    if not replayed and prefetched.keys() != end.keys():
        raise errors.mismatched_partitions_with_prefetched(prefetched, end)
    if any(offset > prefetched.get(tp, offset) for tp, offset in end.items()):
        raise errors.end_offset_beyond_prefetched(prefetched, end)
    if end.keys() - latest.keys():
        raise errors.lost_partitions_with_available_now(latest, end)
    if any(offset > latest[tp] for tp, offset in end.items()):
        raise errors.end_offset_beyond_latest(latest, end)


def split_into_tasks(ranges: Iterable[OffsetRange], settings: ReadSettings) -> list[tuple[OffsetRange, ...]]:
    """Return the ranges of each Spark task, according to `minPartitions`, `maxRecordsPerPartition` and `tasks`."""
    pieces = split(ranges, settings.min_partitions, settings.max_records_per_partition)
    if settings.tasks == "auto":
        return pack_small(pieces, usable_cores(), settings.min_partitions or 1)
    return pack(pieces, settings.tasks)


def usable_cores() -> int:
    """Return the number of cores of the driver's machine that this process may use.

    A Python source gets no information about Spark's master or executors (`python_streaming_source_runner.py`). In a
    cluster this number only affects how small ranges are distributed: large ranges have a task each anyway.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
