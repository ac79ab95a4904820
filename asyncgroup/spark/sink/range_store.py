"""`RangeStore`: store batches in a directory of ranges, remove replaced ranges, join small ones.

Each method may be interrupted at any point by a crash or a file system error: readers still find each row exactly once,
and the next call continues from what it finds. `range_layout` explains why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

from asyncgroup.errors import UsageError
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.sink.range_files import STAGING, RangeFiles, StorageError
from asyncgroup.spark.sink.range_layout import (
    Compaction,
    RangeSlice,
    StoredRange,
    next_version,
    plan_compactions,
    ranges_replaced_by,
    unused_ranges,
    visible_slices,
)

__all__ = ["JoinSlices", "RangeStore", "WriteRanges", "staged_name"]

_log = logging.getLogger("asyncgroup.spark")

RANGE: Final = "__asyncgroup_range"

WriteRanges = Callable[[str], None]
"""Writes the rows of a batch below the given directory, those of range n in `staged_name(n)`, if there are any."""

JoinSlices = Callable[[Sequence[RangeSlice], str], None]
"""Writes the rows of some slices into the given directory."""


Partitions = dict[tuple[str, int], list[StoredRange]]
"""Stored ranges by topic and partition."""


def staged_name(number: int) -> str:
    """Return the staging directory of a batch's nth range, as Spark names it when it partitions by the column RANGE."""
    return f"{RANGE}={number}"


class RangeStore:
    """Stores batches and joins small ranges. `token()` returns unique names, `target` is the size of a joined range."""

    def __init__(self, files: RangeFiles, token: Callable[[], str], *, target: int) -> None:
        self._files = files
        self._token = token
        self._target = target  # bytes
        self._counts_after_compaction: dict[tuple[str, int], int] = {}
        """How many visible slices each partition had after its last compaction by this object."""

    def __repr__(self) -> str:
        return f"<RangeStore in {self._files!r}>"

    # --- deliveries ---------------------------------------------------------------------------------------------

    def deliver(self, ranges: Sequence[OffsetRange], write: WriteRanges) -> Partitions:
        """Store a batch; when this returns, readers see each of its ranges in place of older ranges of the same offsets.

        Returns the ranges that are now stored of the batch's partitions.
        """
        token = self._token()
        staging = f"{STAGING}/{token}"
        try:
            write(staging)
        except Exception:
            self._discard(staging)
            raise
        staged = set(self._files.children(staging))
        partitions = self._list(ranges)
        for number, part in enumerate(ranges):
            name = staged_name(number)
            self._put_in_place(part, token, f"{staging}/{name}" if name in staged else None, partitions)
        self._files.remove(staging)
        return partitions

    def _list(self, ranges: Sequence[OffsetRange]) -> Partitions:
        """Return the stored ranges of the partitions of a batch, with one listing."""
        concerned = {part[:2] for part in ranges}
        stored = self._files.ranges(*ranges[0][:2]) if len(concerned) == 1 else self._files.ranges()
        found: Partitions = {tp: [] for tp in concerned}
        for each in stored:
            if each[:2] in concerned:
                found[each[:2]].append(each)
        return found

    def _put_in_place(
        self, part: OffsetRange, token: str, staged: str | None, partitions: Partitions
    ) -> None:
        present = partitions[part[:2]]
        version = next_version(present, part.start, part.end)
        stored = StoredRange(*part, version, token, empty=staged is None)
        if staged is None:
            self._files.mkdir(stored.name)
        else:
            self._files.rename(staged, stored.name)
        # only after the new range is in place; a reader that has started with the old one may fail and must retry
        replaced = ranges_replaced_by(stored, present)
        self._remove(replaced)
        partitions[part[:2]] = sorted({*present, stored}.difference(replaced))

    def _discard(self, staging: str) -> None:
        """Remove the staging directory of a failed write; if that fails, `vacuum` removes it later."""
        try:
            self._files.remove(staging)
        except Exception as error:  # noqa: BLE001  the caller raises the error of the write
            _log.warning("%r: %s could not be removed: %s", self._files, staging, error)

    # --- compaction ---------------------------------------------------------------------------------------------

    def compact_fullest(self, partitions: Partitions, join: JoinSlices, limit: int) -> None:
        """Compact the partition with the most new ranges, if these are more than `limit` since its last compaction.

        Failures are only logged: the batch is stored, and the next one tries again.
        """
        if not self._files.has_atomic_rename:
            return
        try:
            grown = {
                tp: len(visible_slices(stored)) - self._counts_after_compaction.get(tp, 0)
                for tp, stored in partitions.items()
            }
            fullest = max(grown, key=lambda tp: grown[tp])
            if grown[fullest] > limit:
                self._compact(partitions[fullest], join, everything=False)
        except Exception:  # noqa: BLE001  the batch is stored in any case
            _log.exception("%r: compaction failed; it is retried with the next batch", self._files)

    def compact(self, join: JoinSlices) -> int:
        """Join the small committed ranges of all partitions; return how many ranges were joined.

        Raises UsageError if the file system renames by copying: an interrupted compaction could hide rows.
        """
        if not self._files.has_atomic_rename:
            raise UsageError(
                f"{self._files!r}: ranges cannot be joined on a file system that renames directories by copying"
            )
        partitions = groupby(self._files.ranges(), key=lambda stored: stored[:2])
        return sum(self._compact(list(ranges), join, everything=True) for _, ranges in partitions)

    def _compact(self, ranges: list[StoredRange], join: JoinSlices, *, everything: bool) -> int:
        # ranges joined by earlier compactions were kept until now for readers that had started
        self._remove(unused_ranges(ranges))
        compactions = plan_compactions(
            ranges, lambda stored: self._files.size(stored.name), self._target, everything=everything
        )
        done = [
            compaction
            for compaction in compactions
            if self._run_compaction(compaction, join, frozenset(ranges))
        ]
        topic, partition = ranges[0].topic, ranges[0].partition
        taken = sum(len(compaction.slices) for compaction in done)
        self._counts_after_compaction[topic, partition] = len(visible_slices(ranges)) - taken + len(done)
        return taken

    def _run_compaction(
        self, compaction: Compaction, join: JoinSlices, known: frozenset[StoredRange]
    ) -> bool:
        """Join ranges; return False, without effect, if other ranges of these offsets were stored since."""
        token = self._token()
        stored, staging = compaction.stored(token), f"{STAGING}/{token}"
        if stored.empty:
            self._files.mkdir(stored.name)
            return True
        try:
            join([slice_ for slice_ in compaction.slices if not slice_.stored.empty], staging)
        except Exception:
            self._discard(staging)
            raise
        present = set(self._files.ranges(stored.topic, stored.partition)) - known
        if any(each.start < stored.end and stored.start < each.end for each in present):
            # the group's offsets were reset and records are read again, or another member compacts: theirs is newer
            self._files.remove(staging)
            return False
        self._files.rename(staging, stored.name)
        return True

    # --- removal ------------------------------------------------------------------------------------------------

    def vacuum(self, stale_after: float) -> int:
        """Remove unused ranges, and staging directories older than `stale_after` seconds; return how many directories."""
        hidden = unused_ranges(self._files.ranges())
        self._remove(hidden)
        staged = [f"{STAGING}/{child}" for child in self._files.children(STAGING)]
        stale = [name for name in staged if self._files.age(name) >= stale_after]
        for name in stale:
            self._files.remove(name)
        return len(hidden) + len(stale)

    def _remove(self, ranges: Iterable[StoredRange]) -> None:
        """Remove ranges atomically, by renaming them first: a reader must not find a part of one."""
        for stored in ranges:
            gone = f"{STAGING}/{self._token()}"
            try:
                self._files.rename(stored.name, gone)
            except StorageError:
                gone = stored.name  # another member has renamed it, or the file system refuses
            self._files.remove(gone)
