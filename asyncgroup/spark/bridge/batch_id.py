"""What a batch is made of: ranges of offsets, and the number that carries them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from asyncgroup.spark.ranges import OffsetRange

__all__ = ["BatchId"]


class BatchId(int):
    """The number of a batch, as Spark's foreachBatch gives it, with the offset ranges that the batch holds.

    The number counts from 0 in each `ForeachBatch` and says nothing to another member or after a restart. What stays
    the same when a batch is delivered again is (topic, partition, start) of each range: sinks overwrite by that key.
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
