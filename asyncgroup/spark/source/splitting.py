"""Distribute a batch's ranges to Spark tasks: split large ranges, then combine small ones.

`minPartitions` and `maxRecordsPerPartition` split ranges exactly as Spark's source does (`KafkaOffsetRangeCalculator`).
`tasks` combines several ranges in a task, since each task of a Python source costs tens of milliseconds, even if it reads
little.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Final

from asyncgroup.spark.ranges import OffsetRange

__all__ = ["TASK_OFFSETS", "pack", "pack_small", "split"]

TASK_OFFSETS: Final = 10_000
"""Number of offsets from which a range gets its own task: reading them takes about as long as starting a task."""


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
    if min_partitions is None or len(found) >= min_partitions:
        return found
    return _spread(found, min_partitions)


def _spread(ranges: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Divide ranges larger than an equal share of all offsets, in proportion; the others stay whole, counted as one each."""
    total = sum(map(_size, ranges))
    small = [part for part in ranges if _share(_size(part), total, min_partitions) == 1]
    rest = total - sum(map(_size, small))
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
    worth = math.ceil(sum(map(_size, small)) / TASK_OFFSETS)
    packed = pack(small, max(worth, cores - large, least - large, 1))
    rank = {part: number for number, part in enumerate(found)}
    alone = [(part,) for part in found if _size(part) >= TASK_OFFSETS]
    return sorted([*packed, *alone], key=lambda parts: rank[parts[0]])


def _size(part: OffsetRange) -> int:
    return part.end - part.start
