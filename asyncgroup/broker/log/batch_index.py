"""In-memory index of a log's batches: lookup by offset or timestamp, and sizes of ranges of batches.

Batches are in offset order; compaction may leave gaps between them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from asyncgroup.broker.log.segments import StoredBatch
from asyncgroup.broker.log.timestamp_index import TimestampIndex

__all__ = ["BatchIndex"]


class BatchIndex:
    """The batches of a log by offset. A batch's number is its position in `batches`, from 0."""

    __slots__ = ("_byte_ends", "batches", "last_offsets", "timestamps")

    def __init__(self, batches: Iterable[tuple[StoredBatch, int]] = ()) -> None:
        self.batches: list[StoredBatch] = []
        self.last_offsets: list[int] = []
        self.timestamps = TimestampIndex()
        """The largest timestamp of each batch."""
        self._byte_ends: list[int] = []
        """End of each batch in bytes, counted from the first batch ever added; removing batches does not shift it."""
        for batch, last_offset in batches:
            self.add(batch, last_offset)

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
