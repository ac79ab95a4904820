"""Rules for stored ranges: which ones a reader uses, which can be removed, which small ones should be joined. Pure.

The state is a set of directory names, each with a range of offsets and a version. Ranges may overlap: at each offset the
range with the highest version is valid. So each offset is read exactly once in every state that a crash, a redelivery or
a compaction can leave, and a range is replaced by adding one with a higher version. No two changes have to be
made together atomically.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final, NamedTuple

__all__ = [
    "Compaction",
    "RangeSlice",
    "StoredRange",
    "committed_slices",
    "next_version",
    "plan_compactions",
    "ranges_replaced_by",
    "unused_ranges",
    "visible_slices",
]

_NAME: Final = re.compile(
    r"topic=(?P<topic>[^/]+)/partition=(?P<partition>\d+)/"
    r"offsets=(?P<start>\d+)-(?P<end>\d+)\.v(?P<version>\d+)\.(?P<token>[0-9a-f]+)(?P<empty>\.empty)?"
)


class StoredRange(NamedTuple):
    """A directory with the rows of the offsets from `start` (inclusive) to `end` (exclusive)."""

    topic: str
    partition: int
    start: int
    end: int
    version: int
    """Counts from 1; the highest one wins where ranges overlap."""
    token: str
    """Makes the name unique."""
    empty: bool = False
    """Whether the range is known to have no rows."""

    @property
    def name(self) -> str:
        """The directory, relative to the sink's; without `topic=` topics like `_schemas` would be hidden from Spark."""
        suffix = ".empty" if self.empty else ""
        offsets = f"offsets={self.start}-{self.end}.v{self.version}.{self.token}{suffix}"
        return f"topic={self.topic}/partition={self.partition}/{offsets}"

    @classmethod
    def parse(cls, name: str) -> StoredRange | None:
        """Return the range that a directory's name describes; None for other names."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        start, end, version = (int(found[key]) for key in ("start", "end", "version"))
        return cls(
            found["topic"], int(found["partition"]), start, end, version, found["token"], bool(found["empty"])
        )


class RangeSlice(NamedTuple):
    """The part of a stored range that a reader uses: the rows from offset `start` (inclusive) to `end` (exclusive)."""

    stored: StoredRange
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole range."""
        return self.start == self.stored.start and self.end == self.stored.end


class Compaction(NamedTuple):
    """A planned compaction: these slices, which are consecutive, are joined to one range."""

    slices: tuple[RangeSlice, ...]
    version: int

    def stored(self, token: str) -> StoredRange:
        """Return the resulting range."""
        first, last = self.slices[0], self.slices[-1]
        empty = all(slice_.stored.empty for slice_ in self.slices)
        topic, partition = first.stored.topic, first.stored.partition
        return StoredRange(topic, partition, first.start, last.end, self.version, token, empty)


def visible_slices(ranges: Iterable[StoredRange]) -> list[RangeSlice]:
    """Return the slices that a reader uses, by topic, partition and offset; they do not overlap."""
    by_partition = sorted(ranges)
    return [
        slice_
        for _, group in groupby(by_partition, key=lambda each: each[:2])
        for slice_ in _visible_of_partition(list(group))
    ]


def _visible_of_partition(ranges: list[StoredRange]) -> Iterator[RangeSlice]:
    """Sweep over the offsets; the heap `begun` holds the ranges that have started, the one with the highest version first.

    `last` is the slice that grows as long as the same range is valid. Ranges that have ended leave the heap when they are
    on top.
    """
    order = {each: rank for rank, each in enumerate(sorted(ranges, key=lambda each: each[4:6], reverse=True))}
    boundaries = sorted({offset for each in ranges for offset in (each.start, each.end)})
    begun: list[tuple[int, StoredRange]] = []
    upcoming = iter(ranges)
    candidate = next(upcoming, None)
    last: RangeSlice | None = None
    for start, end in pairwise(boundaries):
        while candidate is not None and candidate.start <= start:
            heapq.heappush(begun, (order[candidate], candidate))
            candidate = next(upcoming, None)
        while begun and begun[0][1].end <= start:
            heapq.heappop(begun)
        stored = begun[0][1] if begun else None
        if last is not None and last.stored is stored:
            last = last._replace(end=end)
            continue
        if last is not None:
            yield last
        last = None if stored is None else RangeSlice(stored, start, end)
    if last is not None:
        yield last


def unused_ranges(ranges: Iterable[StoredRange]) -> list[StoredRange]:
    """Return the ranges that readers do not use; they can be removed in any order."""
    ranges = list(ranges)
    seen = {slice_.stored for slice_ in visible_slices(ranges)}
    return [each for each in ranges if each not in seen]


def next_version(ranges: Iterable[StoredRange], start: int, end: int) -> int:
    """Return the version that a new range needs to win over overlapping ones; `ranges` are those of its partition."""
    return 1 + max((each.version for each in ranges if each.start < end and start < each.end), default=0)


def ranges_replaced_by(new: StoredRange, ranges: Iterable[StoredRange]) -> list[StoredRange]:
    """Return those of `ranges` that readers no longer use because of `new`, usually an earlier delivery."""
    before = list(ranges)
    seen = {slice_.stored for slice_ in visible_slices(before)}
    return [each for each in unused_ranges([*before, new]) if each in seen]


def committed_slices(ranges: Sequence[StoredRange]) -> list[RangeSlice]:
    """Return the visible slices of one partition that are known to be committed.

    A batch starts only after the commit of the one before. So everything before the start of the last range is committed,
    and will not be delivered again.
    """
    boundary = max((each.start for each in ranges), default=0)
    return [slice_ for slice_ in visible_slices(ranges) if slice_.end <= boundary]


def plan_compactions(
    ranges: Sequence[StoredRange],
    size_of: Callable[[StoredRange], int],
    target: int,
    *,
    everything: bool = False,
) -> list[Compaction]:
    """Return the compactions of the committed ranges of one partition; `size_of` and `target` are in bytes.

    Each result has about `target` bytes; larger ranges are left alone. From the newest range backwards, a range is joined
    with its successors if it is not larger than all of them together, so that each row is rewritten only a logarithmic
    number of times; with `everything` all small ranges are joined.
    """
    compactions = []
    version = 1 + max((each.version for each in ranges), default=0)
    for run in _runs(committed_slices(ranges)):
        group: list[RangeSlice] = []
        total = 0
        for slice_ in reversed(run):
            size = size_of(slice_.stored)
            fits = size < target and total < target and (everything or size <= total or not group)
            if not fits:
                compactions += _compaction(group, version)
                group, total = [], 0
            if size < target or not slice_.is_whole:
                group.insert(0, slice_)
                total += size
        compactions += _compaction(group, version)
    return sorted(compactions)


def _compaction(group: list[RangeSlice], version: int) -> list[Compaction]:
    """Return the compaction of a group, if needed; a single range is rewritten only if readers use just a part of it."""
    due = len(group) > 1 or (group and not group[0].is_whole)
    return [Compaction(tuple(group), version)] if due else []


def _runs(slices: Iterable[RangeSlice]) -> Iterator[list[RangeSlice]]:
    """Yield groups of consecutive slices, without gaps in between."""
    run: list[RangeSlice] = []
    for slice_ in slices:
        if run and run[-1].end != slice_.start:
            yield run
            run = []
        run.append(slice_)
    if run:
        yield run
