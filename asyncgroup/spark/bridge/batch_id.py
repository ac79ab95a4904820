"""What a batch is made of: ranges of offsets, and the number that carries them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from asyncgroup.spark.ranges import OffsetRange

__all__ = ["BatchId"]


class BatchId(int):
    """The number of a batch, as Spark's foreachBatch gives it, with the offset ranges that the batch holds.

    The number rises within a member, and says nothing to another one. It outlives restarts in the metadata of commits:
    a member counts on from the largest number that it finds in those of its partitions. A batch that was never committed
    has left no trace there, so that its number may come again with other rows. What stays the same when rows are
    delivered again is (topic, partition, start) of each range: sinks overwrite by that key, and by no number.
    """

    ranges: tuple[OffsetRange, ...]
    """One range per partition, in order of topic and partition."""

    def __new__(cls, number: int, ranges: Iterable[OffsetRange] = ()) -> Self:
        made = super().__new__(cls, number)
        made.ranges = tuple(ranges)
        return made

    def __repr__(self) -> str:
        return f"<BatchId {int(self)}: {', '.join(map(str, self.ranges))}>"

    def __str__(self) -> str:
        return str(int(self))

    def __reduce__(self) -> tuple[type[Self], tuple[int, tuple[OffsetRange, ...]]]:
        return type(self), (int(self), self.ranges)
