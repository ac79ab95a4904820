"""The largest timestamps of a log's batches, searched without looking at every batch (in place of Kafka's `TimeIndex`).

Timestamps need not ascend, so there is nothing to bisect: of every 32 batches the largest timestamp is kept, of every
32 of those the largest again, and so on. A search looks at no more than 64 numbers a level.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

__all__ = ["TimestampIndex"]

_FANOUT: Final = 32


class TimestampIndex:
    """Timestamps by position, from 0. Positions count from the first that was not dropped."""

    __slots__ = ("_dropped", "_levels")

    def __init__(self) -> None:
        self._levels: list[list[int]] = [[]]
        """The timestamps, then the largest of each block of 32 numbers of the level below. A block of which a part was
        dropped from the front keeps its number: it may be larger than what is left, never smaller.
        """
        self._dropped = 0
        """How many timestamps were dropped from the front, which says where the blocks begin."""

    def __repr__(self) -> str:
        return f"<TimestampIndex {len(self)}>"

    def __len__(self) -> int:
        return len(self._levels[0])

    def add(self, timestamp: int) -> None:
        """Add one at the end."""
        self._levels[0].append(timestamp)
        self._summarize(self._dropped + len(self) - 1, timestamp)

    def _summarize(self, number: int, timestamp: int) -> None:
        """Count the timestamp, which is the last one and has this number, into the levels above."""
        dropped = self._dropped
        for level in range(1, len(self._levels) + 1):
            number //= _FANOUT
            dropped //= _FANOUT
            if level == len(self._levels):
                if number == dropped:  # one block says nothing that its own numbers don't
                    return
                below = self._levels[-1]
                first = (dropped + 1) * _FANOUT - self._first(level - 1)
                self._levels.append([max(below[:first])])
            blocks = self._levels[level]
            if number - dropped == len(blocks):
                blocks.append(timestamp)
            elif blocks[-1] < timestamp:
                blocks[-1] = timestamp

    def _first(self, level: int) -> int:
        """The number of the first entry of a level, counted from the first that ever was."""
        return self._dropped // int(_FANOUT**level)

    def drop_front(self, count: int) -> None:
        """Forget the first ones."""
        before = [self._first(level) for level in range(len(self._levels))]
        self._dropped += count
        for level, blocks in enumerate(self._levels):
            del blocks[: self._first(level) - before[level]]

    def drop_behind(self, count: int) -> None:
        """Forget all but the first ones."""
        del self._levels[0][count:]
        if not count:
            del self._levels[1:]
            return
        last = self._dropped + count - 1
        for level in range(1, len(self._levels)):
            last //= _FANOUT
            blocks, first = self._levels[level], self._first(level)
            del blocks[last - first + 1 :]
            blocks[-1] = max(self._block(level, last))

    def _block(self, level: int, number: int) -> list[int]:
        """The entries below a block, as far as they are there."""
        first = self._first(level - 1)
        start = number * _FANOUT - first
        return self._levels[level - 1][max(start, 0) : start + _FANOUT]

    def first_at_least(self, timestamp: int, start: int = 0) -> int | None:
        """Return the first position from `start` on whose timestamp is `timestamp` or later; None if there is none."""
        number, level = self._dropped + start, 0
        while True:
            first = self._first(level)
            entries = self._levels[level]
            # up to the end of the block, then one level up, from the next block on
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
        """The first timestamp under an entry that is late enough; None if it was in the part that was dropped."""
        while level:
            start = max(number * _FANOUT, self._first(level - 1))
            place = next((i for i, one in enumerate(self._block(level, number)) if one >= timestamp), None)
            if place is None:
                return None
            number, level = start + place, level - 1
        return number

    def latest_first(self) -> Iterator[int]:
        """Yield the positions by descending timestamp, among equal ones by position; computed as they are asked for."""
        top = len(self._levels) - 1
        first = self._first(top)
        # Larger first, then lower positions; of an entry and the block that it is in the block first.
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
