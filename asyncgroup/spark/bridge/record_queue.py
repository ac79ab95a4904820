"""What claims have handed over and no batch has taken yet; pure state."""

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

__all__ = ["Chunk", "RecordQueue", "chunk_ranges"]

MAX_QUEUED_BATCHES: Final = 2
"""How many batches may wait behind the one that is with the function: one would leave it idle while the next is made up
from many small fetches, more would only cost memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive records of one partition, in Arrow; `at` is the loop's time when they came.

    `leader_epoch` is that of the last record, -1 if unknown.
    """

    tp: TopicPartition
    start: int
    end: int
    at: float
    records: pa.RecordBatch
    leader_epoch: int = -1
    rows: int = field(init=False)
    bytes: int = field(init=False)
    """The size of `records`, which pyarrow adds up at every look."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", self.records.num_rows)
        object.__setattr__(self, "bytes", self.records.nbytes)

    def before(self, offset: int) -> Chunk | None:
        """What of it lies before `offset`; None if that holds no record."""
        if self.end <= offset:
            return self
        rows = bisect_left(self.records["offset"].to_pylist(), offset)
        return Chunk(self.tp, self.start, offset, self.at, self.records.slice(0, rows)) if rows else None


class RecordQueue:
    """Pieces in the order in which they came, which is fair to all partitions and keeps each one's own order.

    A batch holds at most `max_rows` rows and `max_bytes` bytes (in Arrow), or one piece if that alone is larger. Two
    batches may wait; then partitions hand over nothing more, except a first piece each.
    """

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self.max_rows, self.max_bytes = max_rows, max_bytes
        self.rows = self.bytes = 0
        self._chunks: deque[Chunk] = deque()
        self._waiting: Counter[TopicPartition] = Counter()

    def __repr__(self) -> str:
        return f"<RecordQueue: {self.rows} rows, {self.bytes} bytes of {len(self._waiting)} partitions>"

    @property
    def oldest(self) -> float | None:
        """When the first piece came; None if there is none."""
        return self._chunks[0].at if self._chunks else None

    @property
    def is_full(self) -> bool:
        """Whether a batch can be made that need not wait for more."""
        return self.rows >= self.max_rows or self.bytes >= self.max_bytes

    @property
    def has_room(self) -> bool:
        """Whether less than two batches wait."""
        return (
            self.rows < MAX_QUEUED_BATCHES * self.max_rows
            and self.bytes < MAX_QUEUED_BATCHES * self.max_bytes
        )

    def accepts(self, tp: TopicPartition) -> bool:
        """Whether a partition may hand over more: while there is room, and always a first piece."""
        return self.has_room or not self._waiting[tp]

    def next_start(self, tp: TopicPartition, default: int) -> int:
        """Where what waits of a partition begins; `default` if nothing does."""
        return next((chunk.start for chunk in self._chunks if chunk.tp == tp), default)

    def rewind(self, tp: TopicPartition, offset: int) -> int:
        """Forget what waits of a partition from `offset` on; returns where the piece that comes now has to start."""
        waiting = [chunk for chunk in self._chunks if chunk.tp == tp]
        self.drop(tp)
        for chunk in waiting:
            if (part := chunk.before(offset)) is None:
                return min(chunk.start, offset)
            self.put(part)
        return offset

    def put(self, chunk: Chunk) -> None:
        """Take in a piece behind all others."""
        self._chunks.append(chunk)
        self._count(chunk, 1)

    def requeue(self, chunks: Iterable[Chunk]) -> None:
        """Take in again, before all others, what was taken and not delivered."""
        for chunk in reversed(list(chunks)):
            self._chunks.appendleft(chunk)
            self._count(chunk, 1)

    def pop_batch(self, is_alive: Callable[[TopicPartition], bool] = lambda _: True) -> list[Chunk]:
        """The next batch; pieces of partitions that are not alive are dropped. Empty if nothing is left."""
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
        """Forget what a partition has handed over."""
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
    """One range for each partition in `chunks`, whose pieces follow one another; sorted."""
    ranges: dict[TopicPartition, OffsetRange] = {}
    for chunk in chunks:
        start = ranges[chunk.tp].start if chunk.tp in ranges else chunk.start
        ranges[chunk.tp] = OffsetRange(*chunk.tp, start, chunk.end)
    return tuple(sorted(ranges.values()))
