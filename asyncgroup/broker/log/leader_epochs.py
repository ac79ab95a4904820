"""Start offsets of a log's leader epochs (Kafka's `LeaderEpochFileCache`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

__all__ = ["LeaderEpochs"]


class LeaderEpochs:
    """`entries`: (leader epoch, its first offset), ascending."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries = list(entries)

    def __repr__(self) -> str:
        return f"<LeaderEpochs {self.entries}>"

    def start(self, leader_epoch: int, end_offset: int) -> None:
        """Begin an epoch at the log end offset; remove earlier epochs that appended nothing."""
        while self.entries and self.entries[-1][1] >= end_offset:
            self.entries.pop()
        self.entries.append((leader_epoch, end_offset))

    def first(self, start_offset: int) -> int:
        """Return the epoch of the log start offset, -1 if there is none."""
        count = bisect_right(self.entries, start_offset, key=lambda entry: entry[1])
        return self.entries[count - 1][0] if count else -1

    def end_offset_for(self, leader_epoch: int, end_offset: int) -> tuple[int, int]:
        """Return the largest epoch up to `leader_epoch` and its end offset, (-1, -1) if unknown (KIP-320)."""
        if leader_epoch < 0 or not self.entries or leader_epoch > self.entries[-1][0]:
            return -1, -1
        if leader_epoch == self.entries[-1][0]:
            return leader_epoch, end_offset
        above = bisect_right(self.entries, (leader_epoch, 1 << 63))
        floor = self.entries[above - 1][0] if above else leader_epoch
        return floor, self.entries[above][1]

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that begin at the new log end offset or later (`truncateFromEnd`)."""
        self.entries = [(epoch, start) for epoch, start in self.entries if start < end_offset]

    def truncate_from_start(self, start_offset: int) -> None:
        """Let the epoch of the new log start offset begin there; remove the ones before (`truncateFromStart`)."""
        kept = [(epoch, start) for epoch, start in self.entries if start > start_offset]
        first = self.first(start_offset)
        self.entries = kept if first < 0 else [(first, start_offset), *kept]
