"""`BatchId`: the number of a batch, with the offset ranges that it consists of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from asyncgroup.spark.ranges import OffsetRange

__all__ = ["BatchId"]


class BatchId(int):
    """The number of a batch, like the batch id of Spark's foreachBatch, with the offset ranges of the batch.

    The number increases within a member and is not comparable between members. It survives restarts in the metadata of
    offset commits: a member continues after the largest number in the commits of its partitions. The number of a batch
    that was never committed is not stored, and may be used again for other rows. What stays the same when rows are
    delivered again is (topic, partition, start) of each range: sinks must overwrite by that key, not by the number.
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
