"""Where each leader epoch of a log begins (Kafka's `LeaderEpochFileCache`)."""

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
        """An epoch starts at the log's end. One that appended nothing is forgotten."""
        while self.entries and self.entries[-1][1] >= end_offset:
            self.entries.pop()
        self.entries.append((leader_epoch, end_offset))

    def appended(self, leader_epoch: int, offset: int) -> None:
        """A batch of this epoch went to `offset`."""
        if not self.entries or self.entries[-1][0] < leader_epoch:
            self.start(leader_epoch, offset)

    def first(self, start_offset: int) -> int:
        """The epoch of the log's first offset, -1 if there is none."""
        count = bisect_right(self.entries, start_offset, key=lambda entry: entry[1])
        return self.entries[count - 1][0] if count else -1

    def end_of(self, leader_epoch: int, end_offset: int) -> tuple[int, int]:
        """The last epoch that is not above `leader_epoch`, and where it ends; (-1, -1) if unknown (KIP-320)."""
        if leader_epoch < 0 or not self.entries or leader_epoch > self.entries[-1][0]:
            return -1, -1
        if leader_epoch == self.entries[-1][0]:
            return leader_epoch, end_offset
        above = bisect_right(self.entries, (leader_epoch, 1 << 63))
        floor = self.entries[above - 1][0] if above else leader_epoch
        return floor, self.entries[above][1]

    def cut_end(self, end_offset: int) -> None:
        """The log ends here now (`truncateFromEnd`)."""
        self.entries = [(epoch, start) for epoch, start in self.entries if start < end_offset]

    def cut_front(self, start_offset: int) -> None:
        """The log starts here now: the epoch that this offset belongs to begins here (`truncateFromStart`)."""
        kept = [(epoch, start) for epoch, start in self.entries if start > start_offset]
        first = self.first(start_offset)
        self.entries = kept if first < 0 else [(first, start_offset), *kept]
