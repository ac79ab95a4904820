"""`RecordQueue`: records that claims have delivered and that are not in a batch yet. Pure state, no I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MAX_CHUNK_BYTES", "MAX_CHUNK_ROWS", "Chunk", "RecordQueue", "chunk_ranges"]

MAX_CHUNK_ROWS: Final = 16_000
MAX_CHUNK_BYTES: Final = 1024 * 1024
"""The most records and wire bytes that are converted to Arrow in one step on the event loop: a few milliseconds.

A thread for the conversion took a sixth more CPU time, since it competes with the loop for the interpreter; smaller chunks
also took more. The cost: with records of 200 bytes at full speed the event loop is blocked for 20 to 30 ms at a time
instead of 5, which is short enough for heartbeats.
"""

MAX_QUEUED_BATCHES: Final = 2
"""How many batches may be queued while the function runs: with one it would be idle while the next is put together from
many small fetches, more would only cost memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive records of one partition, as Arrow data."""

    tp: TopicPartition
    start: int
    end: int
    """The offset after the last record."""
    at: float
    """The loop's time when the records came."""
    records: pa.RecordBatch
    leader_epoch: int = -1
    """Leader epoch of the last record, -1 if unknown."""
    rows: int = field(init=False)
    bytes: int = field(init=False)
    """Size of `records`; stored, because pyarrow computes it at every access."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", self.records.num_rows)
        object.__setattr__(self, "bytes", self.records.nbytes)

    def before(self, offset: int) -> Chunk | None:
        """Return the part before `offset`; None if it has no records."""
        if self.end <= offset:
            return self
        rows = bisect_left(self.records["offset"].to_pylist(), offset)
        return Chunk(self.tp, self.start, offset, self.at, self.records.slice(0, rows)) if rows else None


class RecordQueue:
    """Chunks in order of arrival, which is fair to all partitions and keeps the order of each.

    A batch has at most `max_rows` rows and `max_bytes` bytes (as Arrow data), or is one chunk if that alone is larger.
    When two batches are queued, a partition may add a chunk only if it has none in the queue.
    """

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.rows = 0
        self.bytes = 0
        self._chunks: deque[Chunk] = deque()
        self._waiting: Counter[TopicPartition] = Counter()
        """Number of chunks in the queue by partition; without zeros."""

    def __repr__(self) -> str:
        return f"<RecordQueue: {self.rows} rows, {self.bytes} bytes of {len(self._waiting)} partitions>"

    @property
    def oldest(self) -> float | None:
        """The loop's time when the first chunk came; None if the queue is empty."""
        return self._chunks[0].at if self._chunks else None

    @property
    def is_full(self) -> bool:
        """Whether the queue holds enough for a full batch."""
        return self.rows >= self.max_rows or self.bytes >= self.max_bytes

    @property
    def has_room(self) -> bool:
        """Whether fewer than two full batches are queued."""
        return (
            self.rows < MAX_QUEUED_BATCHES * self.max_rows
            and self.bytes < MAX_QUEUED_BATCHES * self.max_bytes
        )

    def accepts(self, tp: TopicPartition) -> bool:
        """Return whether a partition may add a chunk: while there is room, or if it has none in the queue."""
        return self.has_room or not self._waiting[tp]

    def next_start(self, tp: TopicPartition, default: int) -> int:
        """Return the start of a partition's first chunk; `default` if it has none."""
        return next((chunk.start for chunk in self._chunks if chunk.tp == tp), default)

    def rewind(self, tp: TopicPartition, offset: int) -> int:
        """Drop a partition's records from `offset` on; return where the range of its next chunk must start."""
        waiting = [chunk for chunk in self._chunks if chunk.tp == tp]
        self.drop(tp)
        for chunk in waiting:
            if (part := chunk.before(offset)) is None:
                return min(chunk.start, offset)
            self.put(part)
        return offset

    def put(self, chunk: Chunk) -> None:
        """Append a chunk."""
        self._chunks.append(chunk)
        self._count(chunk, 1)

    def requeue(self, chunks: Iterable[Chunk]) -> None:
        """Put the chunks of a batch that was not processed back, before all others."""
        for chunk in reversed(list(chunks)):
            self._chunks.appendleft(chunk)
            self._count(chunk, 1)

    def pop_batch(self, is_alive: Callable[[TopicPartition], bool] = lambda _: True) -> list[Chunk]:
        """Remove and return the next batch; chunks of partitions that are not alive are dropped. May be empty."""
        for tp in [tp for tp in self._waiting if not is_alive(tp)]:
            self.drop(tp)
        taken: list[Chunk] = []
        rows = size = 0
        while self._chunks:
            chunk = self._chunks[0]
            rows, size = rows + chunk.rows, size + chunk.bytes
            if taken and (rows > self.max_rows or size > self.max_bytes):
                break
            taken.append(self._chunks.popleft())
            self._count(chunk, -1)
        return taken

    def drop(self, tp: TopicPartition) -> None:
        """Remove all chunks of a partition."""
        if not self._waiting[tp]:
            return
        waiting, self._chunks = self._chunks, deque()
        for chunk in waiting:
            if chunk.tp == tp:
                self._count(chunk, -1)
            else:
                self._chunks.append(chunk)

    def _count(self, chunk: Chunk, sign: int) -> None:
        self.rows += sign * chunk.rows
        self.bytes += sign * chunk.bytes
        self._waiting[chunk.tp] += sign
        if not self._waiting[chunk.tp]:
            del self._waiting[chunk.tp]


def chunk_ranges(chunks: Iterable[Chunk]) -> tuple[OffsetRange, ...]:
    """Return one range for each partition in `chunks`, sorted; the chunks of a partition must be consecutive."""
    ranges: dict[TopicPartition, OffsetRange] = {}
    for chunk in chunks:
        start = ranges[chunk.tp].start if chunk.tp in ranges else chunk.start
        ranges[chunk.tp] = OffsetRange(*chunk.tp, start, chunk.end)
    return tuple(sorted(ranges.values()))
