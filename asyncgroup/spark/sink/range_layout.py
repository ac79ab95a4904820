"""Which stored ranges a reader sees, which ones nothing needs any more, and which small ones should become one.

Pure. A directory of ranges is nothing but a set of names: each names a range of offsets and a version. Whatever
overlaps, at every offset the highest version is the one that counts, so each offset is read exactly once in every state
that a crash, a second delivery or a compaction can leave behind; and to replace a range is to add one of a higher
version. Nothing has to happen at the same time as anything else.
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
    """Rows of the offsets from `start` to before `end`, in a directory of their own.

    `version` counts from 1 and decides between ranges that overlap; `token` makes the name unique; `empty` says that
    the range is known to have no rows.
    """

    topic: str
    partition: int
    start: int
    end: int
    version: int
    token: str
    empty: bool = False

    @property
    def name(self) -> str:
        """Its directory, relative to the sink's; `topic=` keeps names like `_schemas` from being hidden."""
        suffix = ".empty" if self.empty else ""
        offsets = f"offsets={self.start}-{self.end}.v{self.version}.{self.token}{suffix}"
        return f"topic={self.topic}/partition={self.partition}/{offsets}"

    @classmethod
    def parse(cls, name: str) -> StoredRange | None:
        """The range of a directory's name; None for what is none of ours."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        start, end, version = (int(found[key]) for key in ("start", "end", "version"))
        return cls(
            found["topic"], int(found["partition"]), start, end, version, found["token"], bool(found["empty"])
        )


class RangeSlice(NamedTuple):
    """What a reader takes of a stored range: the rows from offset `start` to before `end`."""

    stored: StoredRange
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether that is all of the range."""
        return self.start == self.stored.start and self.end == self.stored.end


class Compaction(NamedTuple):
    """A compaction: these pieces, which follow each other without a gap, become one range."""

    slices: tuple[RangeSlice, ...]
    version: int

    def stored(self, token: str) -> StoredRange:
        """The range that it becomes."""
        first, last = self.slices[0], self.slices[-1]
        empty = all(slice_.stored.empty for slice_ in self.slices)
        topic, partition = first.stored.topic, first.stored.partition
        return StoredRange(topic, partition, first.start, last.end, self.version, token, empty)


def visible_slices(ranges: Iterable[StoredRange]) -> list[RangeSlice]:
    """What a reader takes, in order of topic, partition and offset; no offset twice."""
    by_partition = sorted(ranges)
    return [
        slice_
        for _, group in groupby(by_partition, key=lambda each: each[:2])
        for slice_ in _visible_of_partition(list(group))
    ]


def _visible_of_partition(ranges: list[StoredRange]) -> Iterator[RangeSlice]:
    """A sweep over the offsets; the heap holds the ranges that have begun, the one that counts on top."""
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
    """The ranges of which a reader takes nothing. All of them can go, in any order, without a reader's noticing."""
    ranges = list(ranges)
    seen = {slice_.stored for slice_ in visible_slices(ranges)}
    return [each for each in ranges if each not in seen]


def next_version(ranges: Iterable[StoredRange], start: int, end: int) -> int:
    """The version that a delivery of this range needs to count; `ranges` are those of its partition."""
    return 1 + max((each.version for each in ranges if each.start < end and start < each.end), default=0)


def ranges_replaced_by(new: StoredRange, ranges: Iterable[StoredRange]) -> list[StoredRange]:
    """Those of `ranges` of which `new` has taken the last visible row: an earlier delivery, usually."""
    before = list(ranges)
    seen = {slice_.stored for slice_ in visible_slices(before)}
    return [each for each in unused_ranges([*before, new]) if each in seen]


def committed_slices(ranges: Sequence[StoredRange]) -> list[RangeSlice]:
    """The visible pieces of one partition whose offsets are committed, as far as that can be told from here.

    A batch of a partition is begun only after the one before it was committed. So everything before the last range's
    start is, and will not be delivered again.
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
    """The compactions that the committed ranges of one partition are due for; `size_of` and `target` are bytes.

    Each result has about `target` bytes; what has as many already stays. From the newest range backwards one joins its
    successors if it isn't larger than all of them together, so that a row is written again only a logarithmic number
    of times; with `everything` any small ones are joined.
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
    """A lone range is merged only to get rid of the part of it that does not count."""
    due = len(group) > 1 or (group and not group[0].is_whole)
    return [Compaction(tuple(group), version)] if due else []


def _runs(slices: Iterable[RangeSlice]) -> Iterator[list[RangeSlice]]:
    """Pieces that follow each other without a gap."""
    run: list[RangeSlice] = []
    for slice_ in slices:
        if run and run[-1].end != slice_.start:
            yield run
            run = []
        run.append(slice_)
    if run:
        yield run
