"""How a batch becomes Spark tasks: ranges are split (`KafkaOffsetRangeCalculator`) and then packed (ours).

`minPartitions` and `maxRecordsPerPartition` give the ranges that Spark's source would give. `tasks` packs them, since
each task of a Python source costs tens of milliseconds, however little it reads.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Final

from asyncgroup.spark.ranges import OffsetRange

__all__ = ["TASK_OFFSETS", "pack", "pack_small", "split"]

TASK_OFFSETS: Final = 10_000
"""Offsets that are worth a task of their own: reading them takes about as long as Spark needs to start the task."""


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """The ranges that Spark's source reads by a task each, in the order given; those without offsets are left out.

    `max_records` (`maxRecordsPerPartition`) limits the offsets of each. Then `min_partitions` divides the ranges that
    are larger than others, in proportion, if there are fewer: about that many come out, a few more or less.
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
    """Ranges that are a fair part of the whole, or less, stay as they are and count for one each; the rest is divided."""
    total = sum(map(_size, ranges))
    small = [part for part in ranges if _share(_size(part), total, min_partitions) == 1]
    rest = total - sum(map(_size, small))
    wanted = max(min_partitions - len(small), 1)
    # by partition, not by range, as in Spark: of a partition that was cut into pieces, none or all are divided
    kept = {(part.topic, part.partition) for part in small}
    pieces = []
    for part in ranges:
        whole = (part.topic, part.partition) in kept
        pieces += _divided(part, 1 if whole else _share(_size(part), rest, wanted))
    return pieces


def _share(size: int, total: int, parts: int) -> int:
    """`size`'s share of `parts`, rounded as Java's Math.round does; at least 1."""
    share = float(size) / float(total) * parts
    whole = math.floor(share)
    return max(whole + (share - whole >= 0.5), 1)


def _divided(part: OffsetRange, parts: int) -> list[OffsetRange]:
    """About equal pieces, the later ones being the larger; those without offsets are left out."""
    pieces, start, left = [], part.start, _size(part)
    for rank in range(parts):
        size = left // (parts - rank)
        left -= size
        if size:
            pieces.append(part._replace(start=start, end=start + size))
        start += size
    return pieces


def pack(ranges: Iterable[OffsetRange], tasks: int | None = None) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task: at most `tasks` groups (None: one for each range), about equal in their offsets.

    The same ranges give the same groups. A group keeps the order in which the ranges were given, so a partition's
    offsets rise within it. Largest first, each to the group that has the least: never more than a third above the best.
    """
    found = list(ranges)
    if tasks is None or tasks >= len(found):
        return [(part,) for part in found]
    # how many ranges a group has decides among equals, lest ranges without offsets leave a group empty
    loads = [(0, 0, group) for group in range(tasks)]
    groups: list[list[int]] = [[] for _ in range(tasks)]
    for rank in sorted(range(len(found)), key=lambda rank: (-_size(found[rank]), rank)):
        load, count, group = loads[0]
        groups[group].append(rank)
        heapq.heapreplace(loads, (load + _size(found[rank]), count + 1, group))
    return [tuple(found[rank] for rank in sorted(members)) for members in sorted(groups, key=min)]


def pack_small(ranges: Iterable[OffsetRange], cores: int, least: int = 1) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task, by `tasks=auto`: a large range is a task of its own, small ones are packed.

    Large is `TASK_OFFSETS` or more. The small ones get as many tasks as they have times that, at least as many as keep
    `cores` busy, and with the large ones at least `least` in all. The order is that of `pack`.
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
