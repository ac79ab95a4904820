"""Plan a batch: the ranges to read between two offsets, the data losses between them, and the ranges of each task. Pure.

The rules are those of Spark's `KafkaOffsetReaderAdmin.getOffsetRangesFromResolvedOffsets` and
`KafkaMicroBatchStream.verifyEndOffsetForTriggerAvailableNow`.

`minPartitions` and `maxRecordsPerPartition` split ranges exactly as Spark's source does (`KafkaOffsetRangeCalculator`).
`tasks` combines several ranges in a task, since each task of a Python source costs tens of milliseconds, even if it reads
little.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.errors import DataLossError, SourceError
from asyncgroup.spark.source.options.settings import ReadSettings

__all__ = [
    "TASK_OFFSETS",
    "BatchPlan",
    "check_available_now",
    "pack",
    "pack_small",
    "plan_batch",
    "split",
    "split_into_tasks",
    "usable_cores",
]

Offsets: TypeAlias = Mapping[TopicPartition, int]

TASK_OFFSETS: Final = 10_000
"""Number of offsets from which a range gets its own task: reading them takes about as long as starting a task."""


class BatchPlan(NamedTuple):
    """A planned batch."""

    ranges: list[OffsetRange]
    """To be read; one for each partition with new records."""
    losses: list[DataLossError]
    """Data losses that were detected."""


def plan_batch(
    start: Offsets,
    end: Offsets,
    earliest_of_new: Offsets,
    *,
    group_id: str | None = None,
    replays_first: bool = False,
    from_log_start: Collection[TopicPartition] = (),
) -> BatchPlan:
    """Plan a batch from `start` to `end`.

    Partitions that are only in `end` are new: they start at their offset in `earliest_of_new`, and were deleted again if
    they have none there. Partitions that are only in `start` were deleted; Spark has another error code for that with a
    `group_id`. `replays_first` says that another process repeats the query's first batch: then `start` was looked up
    again, and may be after `end` without any loss. Partitions `from_log_start` belong to the start as well, which is the
    first offset that their logs have: it need not be 0.
    """
    losses: list[DataLossError] = []
    # sorted, so that errors and ranges are the same in each run of a batch
    new = sorted(end.keys() - start.keys())
    if gone := [tp for tp in new if tp not in earliest_of_new]:
        losses.append(
            DataLossError("KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", partitions=gone)
        )
    losses += [
        DataLossError(
            "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
            topicPartition=tp,
            startOffset=first,
        )
        for tp in new
        if tp not in from_log_start and (first := earliest_of_new.get(tp, 0))
    ]
    # also those whose start is that of the log: they were found, and are gone now
    if deleted := sorted({*start, *from_log_start} - end.keys()):
        losses.append(_partitions_deleted(deleted, group_id))
    # `start` counts where both have a partition: it is what the query has read
    begins = {**earliest_of_new, **start}
    ranges = []
    for tp in sorted(end.keys() & begins.keys()):
        first, last = begins[tp], end[tp]
        if first < last:
            ranges.append(OffsetRange(tp.topic, tp.partition, first, last))
        elif first > last and not replays_first:
            changed = "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED"
            losses.append(DataLossError(changed, topicPartition=tp, prevOffset=first, newOffset=last))
    return BatchPlan(ranges, losses)


def _partitions_deleted(partitions: list[TopicPartition], group_id: str | None) -> DataLossError:
    """Spark's code for queries with a `kafka.group.id` says that partitions may have been reassigned to another member.

    That cannot happen here, since a query does not join its group; the code is used for compatibility.
    """
    if group_id is None:
        return DataLossError("KAFKA_DATA_LOSS.PARTITIONS_DELETED", partitions=partitions)
    code = "KAFKA_DATA_LOSS.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT"
    return DataLossError(code, partitions=partitions, groupId=group_id)


def check_available_now(
    prefetched: Offsets, end: Offsets, latest: Offsets, *, replayed: bool = False
) -> None:
    """Check that a batch of Trigger.AvailableNow ends within the offsets found at the trigger's start, which still exist.

    A `replayed` batch was planned before the trigger started: partitions may have been added since. Raises SourceError.
    """
    # check in Spark's order, so that users get the codes that they know from Spark
    if not replayed and prefetched.keys() != end.keys():
        raise SourceError(
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED",
            tpsForPrefetched=prefetched.keys(),
            tpsForEndOffset=end.keys(),
        )
    if any(offset > prefetched.get(tp, offset) for tp, offset in end.items()):
        code = "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED"
        raise SourceError(code, prefetchedOffset=prefetched, endOffset=end)
    if end.keys() - latest.keys():
        code = "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW"
        raise SourceError(code, tpsForLatestOffset=latest.keys(), tpsForEndOffset=end.keys())
    if any(offset > latest[tp] for tp, offset in end.items()):
        code = "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW"
        raise SourceError(code, latestOffset=latest, endOffset=end)


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
    # in a container the affinity is smaller than the machine
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Split ranges as Spark's source does, which reads each with a task; keep the order, omit empty ranges.

    `max_records` (`maxRecordsPerPartition`) limits the offsets of each range. If there are then fewer than
    `min_partitions` ranges, larger ones are divided in proportion to their size, into approximately that many.
    """
    found = [part for part in ranges if _size(part) > 0]
    if max_records is not None:
        found = [
            piece
            for part in found
            for piece in _divided(part, math.ceil(float(_size(part)) / float(max_records)))
        ]
    # enough as they are: Spark does not join ranges either
    if min_partitions is None or len(found) >= min_partitions:
        return found
    return _spread(found, min_partitions)


def _spread(ranges: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Divide ranges larger than an equal share of all offsets, in proportion; the others stay whole, counted as one each."""
    total = sum(map(_size, ranges))
    small = [part for part in ranges if _share(_size(part), total, min_partitions) == 1]
    rest = total - sum(map(_size, small))
    # each small range is a task already
    wanted = max(min_partitions - len(small), 1)
    # by partition, not by range, as in Spark: either none or all ranges of a partition are divided
    kept = {(part.topic, part.partition) for part in small}
    pieces = []
    for part in ranges:
        whole = (part.topic, part.partition) in kept
        pieces += _divided(part, 1 if whole else _share(_size(part), rest, wanted))
    return pieces


def _share(size: int, total: int, parts: int) -> int:
    """Return `size`'s share of `parts`, rounded like Java's Math.round; at least 1."""
    share = float(size) / float(total) * parts
    whole = math.floor(share)
    return max(whole + (share - whole >= 0.5), 1)


def _divided(part: OffsetRange, parts: int) -> list[OffsetRange]:
    """Divide a range into about equal pieces, of which later ones may be larger; omit empty ones."""
    pieces, start, left = [], part.start, _size(part)
    for rank in range(parts):
        # of what is left, so that rounding does not add up
        size = left // (parts - rank)
        left -= size
        if size:
            pieces.append(part._replace(start=start, end=start + size))
        start += size
    return pieces


def pack(ranges: Iterable[OffsetRange], tasks: int | None = None) -> list[tuple[OffsetRange, ...]]:
    """Return the ranges of each task: at most `tasks` groups (None: one for each range) with about the same offsets.

    Deterministic. A group keeps the order of the ranges, so a partition's offsets increase within it. Ranges are assigned
    in order of size, each to the group with the fewest offsets: at most a third worse than the optimum.
    """
    found = list(ranges)
    if tasks is None or tasks >= len(found):
        return [(part,) for part in found]
    # (offsets, ranges, group): ties are broken by the number of ranges, so that empty ranges do not leave a group empty
    loads = [(0, 0, group) for group in range(tasks)]
    groups: list[list[int]] = [[] for _ in range(tasks)]
    for rank in sorted(range(len(found)), key=lambda rank: (-_size(found[rank]), rank)):
        load, count, group = loads[0]
        groups[group].append(rank)
        heapq.heapreplace(loads, (load + _size(found[rank]), count + 1, group))
    return [tuple(found[rank] for rank in sorted(members)) for members in sorted(groups, key=min)]


def pack_small(ranges: Iterable[OffsetRange], cores: int, least: int = 1) -> list[tuple[OffsetRange, ...]]:
    """Return the ranges of each task for `tasks=auto`: each large range has its own task, small ones are combined.

    Large ranges have `TASK_OFFSETS` offsets or more. Small ranges get one task per `TASK_OFFSETS` offsets, but enough tasks
    to use all `cores`, and to have `least` tasks with the large ones. The order is that of `pack`.
    """
    found = list(ranges)
    small = [part for part in found if _size(part) < TASK_OFFSETS]
    large = len(found) - len(small)
    # tasks that are worth their start; idle cores are used in any case
    worth = math.ceil(sum(map(_size, small)) / TASK_OFFSETS)
    packed = pack(small, max(worth, cores - large, least - large, 1))
    rank = {part: number for number, part in enumerate(found)}
    alone = [(part,) for part in found if _size(part) >= TASK_OFFSETS]
    return sorted([*packed, *alone], key=lambda parts: rank[parts[0]])


def _size(part: OffsetRange) -> int:
    return part.end - part.start
