"""A directory of ranges at work: deliveries go in, replaced ranges go out, small ones are joined.

Every method may break off anywhere, by a crash or by an error of the file system: a reader finds each row once all the
same, and the next call goes on from what it finds. See `range_layout` for the reason.
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
"""Writes the rows of a batch below a directory, those of range number n at `staged_name(n)`; no rows, no directory."""

JoinSlices = Callable[[Sequence[RangeSlice], str], None]
"""Writes the rows of some pieces into a directory."""


Partitions = dict[tuple[str, int], list[StoredRange]]
"""Stored ranges by topic and partition."""


def staged_name(number: int) -> str:
    """The directory of a batch's nth range before it is put into its place, as Spark names it when it splits by RANGE."""
    return f"{RANGE}={number}"


class RangeStore:
    """Puts deliveries into place and joins small ranges. `token()` makes names that nobody else has."""

    def __init__(self, files: RangeFiles, token: Callable[[], str], *, target: int) -> None:
        self._files, self._token, self._target = files, token, target
        self._counts_after_compaction: dict[tuple[str, int], int] = {}
        """How many visible pieces a partition had after its last compaction by us."""

    def __repr__(self) -> str:
        return f"<RangeStore in {self._files!r}>"

    # --- deliveries ---------------------------------------------------------------------------------------------

    def deliver(self, ranges: Sequence[OffsetRange], write: WriteRanges) -> Partitions:
        """Store a batch; when this returns, each range can be read and has replaced what was there of its offsets.

        Returns what is stored now of the partitions concerned.
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
        """What is stored of the partitions of a batch, by one listing."""
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
        # only after the new one is in place; a reader that has begun with the old one may fail, and tries again
        replaced = ranges_replaced_by(stored, present)
        self._remove(replaced)
        partitions[part[:2]] = sorted({*present, stored}.difference(replaced))

    def _discard(self, staging: str) -> None:
        """Leave nothing of a write that failed, if that can be; `vacuum` finds the rest."""
        try:
            self._files.remove(staging)
        except Exception as error:  # noqa: BLE001  the failure of the write is what counts
            _log.warning("%r: %s could not be removed: %s", self._files, staging, error)

    # --- compaction ---------------------------------------------------------------------------------------------

    def compact_fullest(self, partitions: Partitions, join: JoinSlices, limit: int) -> None:
        """Compact the fullest one of these partitions, if it has got more than `limit` ranges since the last time.

        A failure is logged and no more: the batch is stored, and the next one tries again.
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
        except Exception:  # noqa: BLE001  whatever it was, the batch is stored
            _log.exception("%r: small ranges could not be joined; the next batch tries again", self._files)

    def compact(self, join: JoinSlices) -> int:
        """Join the small committed ranges of all partitions; returns how many ranges went into others.

        Raises UsageError where renaming is copying: a compaction that breaks off there could hide rows.
        """
        if not self._files.has_atomic_rename:
            raise UsageError(
                f"{self._files!r}: ranges cannot be joined where directories are renamed by copying"
            )
        partitions = groupby(self._files.ranges(), key=lambda stored: stored[:2])
        return sum(self._compact(list(ranges), join, everything=True) for _, ranges in partitions)

    def _compact(self, ranges: list[StoredRange], join: JoinSlices, *, everything: bool) -> int:
        # what earlier compactions have joined stayed until now, for readers that had begun
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
        """Join; False if it took so long that something else has come to these offsets meanwhile."""
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
            # the group was rewound and reads again, or somebody else compacts: theirs is the newer one
            self._files.remove(staging)
            return False
        self._files.rename(staging, stored.name)
        return True

    # --- what is left over --------------------------------------------------------------------------------------

    def vacuum(self, stale_after: float) -> int:
        """Remove what no reader sees, and what deliveries that broke off have left; returns how many directories."""
        hidden = unused_ranges(self._files.ranges())
        self._remove(hidden)
        staged = [f"{STAGING}/{child}" for child in self._files.children(STAGING)]
        stale = [name for name in staged if self._files.age(name) >= stale_after]
        for name in stale:
            self._files.remove(name)
        return len(hidden) + len(stale)

    def _remove(self, ranges: Iterable[StoredRange]) -> None:
        """Take ranges away in one step each: a reader must not find a part of one and take it for all."""
        for stored in ranges:
            gone = f"{STAGING}/{self._token()}"
            try:
                self._files.rename(stored.name, gone)
            except StorageError:
                gone = stored.name  # somebody else was faster, or the file system cannot do it
            self._files.remove(gone)
