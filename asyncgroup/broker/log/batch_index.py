"""In-memory index of a log's batches: lookup by offset or timestamp, and sizes of ranges of batches.

Batches are in offset order; compaction may leave gaps between them. Timestamps need not ascend, so `TimestampIndex` (in
place of Kafka's `TimeIndex`) is a tree of maxima: the largest timestamp of every 32 batches, of every 32 of those, and so
on. A search reads at most 64 numbers per level.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from asyncgroup.wire.batch_view import BatchView, batch_at

__all__ = ["BatchIndex", "SegmentChunk", "StoredBatch", "TimestampIndex"]


class SegmentChunk(Protocol):
    """A contiguous range of bytes; one read does not go beyond its end."""

    @property
    def used(self) -> int:
        """The position after the last batch."""

    def read(self, position: int, size: int) -> memoryview | bytes:
        """Return `size` bytes from `position` on; later changes of the log do not affect them."""


class StoredBatch(NamedTuple):
    """The location of a batch, and the header fields that the index needs."""

    base_offset: int
    max_timestamp: int
    chunk: SegmentChunk
    position: int
    size: int

    def bytes(self) -> memoryview | bytes:
        """Read the bytes of the batch."""
        return self.chunk.read(self.position, self.size)

    def read(self) -> BatchView:
        """Read the batch."""
        batch = batch_at(self.bytes())
        assert batch is not None
        return batch


class BatchIndex:
    """The batches of a log by offset. A batch's number is its position in `batches`, from 0."""

    __slots__ = ("_byte_ends", "batches", "last_offsets", "timestamps")

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.last_offsets: list[int] = []
        self.timestamps = TimestampIndex()
        """The largest timestamp of each batch."""
        self._byte_ends: list[int] = []
        """End of each batch in bytes, counted from the first batch ever added; removing batches does not shift it."""

    def __repr__(self) -> str:
        return f"<BatchIndex {len(self.batches)} batches, {self.size} bytes>"

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return self._byte_ends[-1] - self._byte_ends[0] + self.batches[0].size if self.batches else 0

    def add(self, batch: StoredBatch, last_offset: int) -> None:
        """Append a batch."""
        self._byte_ends.append((self._byte_ends[-1] if self._byte_ends else 0) + batch.size)
        self.batches.append(batch)
        self.last_offsets.append(last_offset)
        self.timestamps.add(batch.max_timestamp)

    def find(self, offset: int) -> int:
        """Return the number of the batch that holds `offset`, or of the next one if `offset` is in a gap."""
        return bisect_left(self.last_offsets, offset)

    def count_before(self, end: int | None) -> int:
        """Return how many batches end before the offset `end` (None: all batches)."""
        return len(self.batches) if end is None else bisect_left(self.last_offsets, end)

    def end_within(self, first: int, max_bytes: int) -> int:
        """Return the largest `stop` such that the batches `first` to `stop` - 1 take at most `max_bytes`."""
        start = self._byte_ends[first] - self.batches[first].size
        return bisect_right(self._byte_ends, start + max_bytes, first)

    def size_between(self, first: int, stop: int) -> int:
        """Return the size in bytes of the batches `first` to `stop` - 1."""
        if stop <= first:
            return 0
        return self._byte_ends[stop - 1] - self._byte_ends[first] + self.batches[first].size

    def find_byte(self, first: int, count: int) -> int:
        """Return the number of the batch that holds the last of the `count` bytes from the start of batch `first`."""
        start = self._byte_ends[first] - self.batches[first].size
        return bisect_left(self._byte_ends, start + count, first)

    def replace(self, first: int, stop: int, batches: Iterable[tuple[StoredBatch, int]]) -> None:
        """Replace the batches `first` to `stop` - 1."""
        following = list(zip(self.batches[stop:], self.last_offsets[stop:], strict=True))
        self.truncate(first)
        for batch, last_offset in [*batches, *following]:
            self.add(batch, last_offset)

    def drop_front(self, count: int) -> None:
        """Remove the first `count` batches."""
        del self.batches[:count], self.last_offsets[:count], self._byte_ends[:count]
        self.timestamps.drop_front(count)

    def truncate(self, count: int) -> None:
        """Remove all but the first `count` batches."""
        del self.batches[count:], self.last_offsets[count:], self._byte_ends[count:]
        self.timestamps.truncate(count)


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
