"""Which batch holds an offset or a timestamp, and how many bytes lie between two of them: a log's batches in order, with
gaps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from asyncgroup.broker.segments import Batch
from asyncgroup.broker.timestamp_index import TimestampIndex

__all__ = ["BatchIndex"]


class BatchIndex:
    """The batches of a log by offset. Numbers of batches count from the first that is still there."""

    __slots__ = ("_byte_ends", "batches", "last_offsets", "timestamps")

    def __init__(self, batches: Iterable[tuple[Batch, int]] = ()) -> None:
        self.batches: list[Batch] = []
        self.last_offsets: list[int] = []
        self.timestamps = TimestampIndex()
        """The largest timestamp of each batch."""
        self._byte_ends: list[int] = []
        for batch, last_offset in batches:
            self.add(batch, last_offset)

    def __repr__(self) -> str:
        return f"<BatchIndex {len(self.batches)} batches, {self.size} bytes>"

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return self._byte_ends[-1] - self._byte_ends[0] + self.batches[0].size if self.batches else 0

    def add(self, batch: Batch, last_offset: int) -> None:
        """One more batch at the end."""
        self._byte_ends.append((self._byte_ends[-1] if self._byte_ends else 0) + batch.size)
        self.batches.append(batch)
        self.last_offsets.append(last_offset)
        self.timestamps.add(batch.max_timestamp)

    def holding(self, offset: int) -> int:
        """The number of the batch that holds `offset`, or in a gap of the next one."""
        return bisect_left(self.last_offsets, offset)

    def before(self, end: int | None) -> int:
        """How many batches lie whole before the offset `end` (None: all)."""
        return len(self.batches) if end is None else bisect_left(self.last_offsets, end)

    def fitting(self, first: int, max_bytes: int) -> int:
        """Behind which number the batches from `first` on are more than `max_bytes`."""
        start = self._byte_ends[first] - self.batches[first].size
        return bisect_right(self._byte_ends, start + max_bytes, first)

    def bytes_of(self, first: int, stop: int) -> int:
        """Bytes of the batches `first` to `stop` - 1."""
        if stop <= first:
            return 0
        return self._byte_ends[stop - 1] - self._byte_ends[first] + self.batches[first].size

    def at_byte(self, first: int, count: int) -> int:
        """The number of the batch that the last of `count` bytes from `first` on belongs to."""
        start = self._byte_ends[first] - self.batches[first].size
        return bisect_left(self._byte_ends, start + count, first)

    def replace(self, first: int, stop: int, batches: Iterable[tuple[Batch, int]]) -> None:
        """Others take the place of the batches `first` to `stop` - 1."""
        behind = list(zip(self.batches[stop:], self.last_offsets[stop:], strict=True))
        self.drop_behind(first)
        for batch, last_offset in [*batches, *behind]:
            self.add(batch, last_offset)

    def drop_front(self, count: int) -> None:
        """Forget the first batches."""
        del self.batches[:count], self.last_offsets[:count], self._byte_ends[:count]
        self.timestamps.drop_front(count)

    def drop_behind(self, count: int) -> None:
        """Forget all batches but the first ones."""
        del self.batches[count:], self.last_offsets[count:], self._byte_ends[count:]
        self.timestamps.drop_behind(count)
