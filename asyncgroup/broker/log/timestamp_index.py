"""Index of the largest timestamp of each batch of a log (in place of Kafka's `TimeIndex`).

Timestamps need not ascend, so a binary search is not possible. A tree of maxima is kept instead: the largest
timestamp of every 32 batches, of every 32 of those, and so on. A search reads at most 64 numbers per level.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

__all__ = ["TimestampIndex"]

_FANOUT: Final = 32


class TimestampIndex:
    """Timestamps by position. Position 0 is the first timestamp that was not dropped from the front."""

    __slots__ = ("_dropped", "_levels")

    def __init__(self) -> None:
        self._levels: list[list[int]] = [[]]
        """Level 0 has the timestamps; each higher level has the maximum of each block of 32 entries of the level below.

        When a part of a block is dropped from the front, its maximum is not recomputed: it is an upper bound.
        """
        self._dropped = 0
        """Number of timestamps dropped from the front; blocks are aligned to the undropped numbering."""

    def __repr__(self) -> str:
        return f"<TimestampIndex {len(self)}>"

    def __len__(self) -> int:
        return len(self._levels[0])

    def add(self, timestamp: int) -> None:
        """Append a timestamp."""
        self._levels[0].append(timestamp)
        self._summarize(self._dropped + len(self) - 1, timestamp)

    def _summarize(self, number: int, timestamp: int) -> None:
        """Update the higher levels for the last timestamp, whose number counts from the first ever added."""
        dropped = self._dropped
        for level in range(1, len(self._levels) + 1):
            number //= _FANOUT
            dropped //= _FANOUT
            if level == len(self._levels):
                if number == dropped:  # a level with a single block is not needed
                    return
                # the top level has got its second block: add a level above it, beginning with the first block's maximum
                below = self._levels[-1]
                first = (dropped + 1) * _FANOUT - self._first(level - 1)
                self._levels.append([max(below[:first])])
            blocks = self._levels[level]
            if number - dropped == len(blocks):
                blocks.append(timestamp)
            elif blocks[-1] < timestamp:
                blocks[-1] = timestamp

    def _first(self, level: int) -> int:
        """Return the number of the first entry of a level, counted from the first ever added."""
        return self._dropped // int(_FANOUT**level)

    def drop_front(self, count: int) -> None:
        """Remove the first `count` timestamps."""
        before = [self._first(level) for level in range(len(self._levels))]
        self._dropped += count
        for level, blocks in enumerate(self._levels):
            del blocks[: self._first(level) - before[level]]

    def truncate(self, count: int) -> None:
        """Remove all but the first `count` timestamps."""
        del self._levels[0][count:]
        if not count:
            del self._levels[1:]
            return
        last = self._dropped + count - 1
        for level in range(1, len(self._levels)):
            last //= _FANOUT
            blocks, first = self._levels[level], self._first(level)
            del blocks[last - first + 1 :]
            blocks[-1] = max(self._block(level, last))  # the last block may have lost its maximum

    def _block(self, level: int, number: int) -> list[int]:
        """Return the entries of a block that have not been dropped."""
        first = self._first(level - 1)
        start = number * _FANOUT - first
        return self._levels[level - 1][max(start, 0) : start + _FANOUT]

    def first_at_least(self, timestamp: int, start: int = 0) -> int | None:
        """Return the first position from `start` on whose timestamp is `timestamp` or later; None if there is none."""
        number, level = self._dropped + start, 0
        while True:
            first = self._first(level)
            entries = self._levels[level]
            # search to the end of the block, then continue one level up with the next block
            end = (
                len(entries) if level + 1 == len(self._levels) else (number // _FANOUT + 1) * _FANOUT - first
            )
            for place in range(max(number - first, 0), min(end, len(entries))):
                if entries[place] >= timestamp:
                    found = self._descend(level, first + place, timestamp)
                    if found is not None:
                        return found - self._dropped
            if level + 1 == len(self._levels):
                return None
            number, level = number // _FANOUT + 1, level + 1

    def _descend(self, level: int, number: int, timestamp: int) -> int | None:
        """Return the first late enough timestamp below an entry, None if it has been dropped."""
        while level:
            start = max(number * _FANOUT, self._first(level - 1))
            place = next((i for i, one in enumerate(self._block(level, number)) if one >= timestamp), None)
            if place is None:
                return None
            number, level = start + place, level - 1
        return number

    def latest_first(self) -> Iterator[int]:
        """Yield the positions lazily by descending timestamp, equal ones by position."""
        top = len(self._levels) - 1
        first = self._first(top)
        # Order: larger timestamp, lower position, higher level (a block comes before its own entries).
        heap = [
            (-entry, (first + place) * _FANOUT**top, -top) for place, entry in enumerate(self._levels[top])
        ]
        heapq.heapify(heap)
        while heap:
            _, position, level = heapq.heappop(heap)
            if not level:
                yield position - self._dropped
                continue
            number = position // _FANOUT**-level
            start = max(number * _FANOUT, self._first(-level - 1))
            for place, entry in enumerate(self._block(-level, number)):
                heapq.heappush(heap, (-entry, (start + place) * _FANOUT ** (-level - 1), level + 1))
